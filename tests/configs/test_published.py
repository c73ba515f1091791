"""Published scales of methods: no effect by default, applied by ``use_paper_hparams``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.check_data import DataFiles
from mmgrpo.check_data.method_rules import with_paper_hparams
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import dump_config, load_config, validated
from mmgrpo.config.sections import at, updated
from mmgrpo.errors import ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.runs.resuming import config_changes

Write = Callable[[str, dict[str, Any]], Path]

METHOD = {
    "about": {
        "method": {
            "name": "ours",
            "title": "Ours",
            "paper": "2601.00001",
            "published_on": "a large model",
            "paper_hparams": {
                "steps": 7,
                "rollout": {"prompts_per_step": 48, "window": {"size": 6}},
                "update": {"optimizer": {"lr": 0.5}, "minibatches": 3},
            },
        }
    },
    "objective": {"kl": {"beta": 0.0}},
    "rollout": {"window": {"name": "random_subset", "size": 0.5}},
}
MODEL = {"update": {"optimizer": {"lr": 0.25, "weight_decay": 0.125}}}

RESOLVED = {
    "recipes/flux-dance-grpo-one-gpu": "1d49a85cb78f437c",
    "recipes/flux-mix-grpo-one-gpu": "3fd3745fd8e4bc67",
    "recipes/sd3.5-flow-grpo-fast-one-gpu": "13140de09ccdd108",
    "recipes/sd3.5-flow-grpo-geneval-one-gpu": "109d774981a3ba5c",
    "recipes/sd3.5-flow-grpo-ocr-one-gpu": "109d774981a3ba5c",
    "recipes/sd3.5-flow-grpo-pick-score-one-gpu": "ba44eaea944ca636",
    "quickstart/arithmetic-text": "e7eae563bfb68875",
    "quickstart/digits-image": "c319d780b4563b3d",
    "quickstart/digits-vlm": "ead2493a762ba95b",
    "recipes/flux-dance-grpo": "49895b637abddd66",
    "recipes/flux-mix-grpo": "be7053d498c2e2b8",
    "recipes/qwen2.5-vl-clevr-count": "ca56e44906559c9d",
    "recipes/qwen2.5-vl-geometry3k": "a9c7be14ae1cbcbe",
    "recipes/qwen2.5-vl-gui": "e42b28bfb59262e3",
    "recipes/qwen3-vl-refcoco": "60f0eda5e46d130c",
    "recipes/sd3.5-flow-grpo-fast": "593b7c189936c86d",
    "recipes/sd3.5-flow-grpo-geneval": "33a8f5c37f9ed455",
    "recipes/sd3.5-flow-grpo-ocr": "33a8f5c37f9ed455",
    "recipes/sd3.5-flow-grpo-pick-score": "f2bce5b53cc4dc84",
    "recipes/wan-flow-grpo": "0cd4e0eac3c9840d",
}
"""SHA-256 of what ``resolved`` gives, taken at a70d5d6, when methods set their scale whether asked for it or not.

The values have been the same since, under every later name of a key, except those of an update's
batch in geometry3k, refcoco and gui, and of gui's system turn."""

KEYS = (
    "steps",
    "policy",
    *(f"rollout.{key}" for key in ("prompts_per_step", "group_size", "same_initial_noise", "window")),
    *(f"advantage.{key}" for key in ("scale", "combine", "eps", "correction", "clamp", "zero_variance_groups")),
    *(f"objective.{key}" for key in ("surrogate", "ratio_level", "bound", "aggregate", "step_weight")),
    *("objective.kl.divergence", "objective.kl.beta", "objective.normalize_ratio"),
    *("update.epochs", "update.minibatches", "update.ema"),
    *(f"update.optimizer.{key}" for key in ("lr", "betas", "weight_decay", "max_grad_norm")),
)


def resolved(name: str) -> str:
    """The values of ``KEYS`` of a shipped run, without the model's name."""
    values = load_config(name).model_dump(mode="json")
    values["policy"].pop("model")
    numbers = values["advantage"]["scale"]  # of which two were next to the name when the hashes were taken
    values["advantage"] |= {key: numbers.pop(key, None) for key in ("eps", "correction")}
    values["update"]["optimizer"] = {"betas": [0.9, 0.999], "weight_decay": 0.0} | values["update"]["optimizer"]
    return json.dumps([at(values, key) for key in KEYS], sort_keys=True)


@pytest.mark.parametrize("name", RESOLVED)
def test_shipped_runs_resolve_to_their_pinned_values(name: str) -> None:
    assert hashlib.sha256(resolved(name).encode()).hexdigest()[:16] == RESOLVED[name], resolved(name)


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def written(name: str, values: dict[str, Any]) -> Path:
        path = tmp_path / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values))
        return path

    written("model", MODEL)
    written("ours", METHOD)
    written("masked", {"policy": {"name": "masked", "model": "GSAI-ML/LLaDA-8B-Instruct"}})
    return written


def scale(config: RunConfig) -> tuple[int, int, float, int, float | None]:
    rollout, update = config.rollout, config.update
    return (
        config.steps,
        rollout.prompts_per_step,
        update.optimizer.lr,
        update.minibatches,
        update.optimizer.settings.get("weight_decay"),
    )


def test_a_method_leaves_the_scale_to_the_run(write: Write) -> None:
    config = load_config(write("run", {"include": ["model", "ours"]}))
    assert scale(config) == (100, 8, 0.25, 1, 0.125)  # the model's lr and decay, else the defaults
    assert config.rollout.window is not None
    assert config.rollout.window.settings == {"size": 0.5}
    assert config.about.method is not None
    assert config.about.method.paper_hparams == METHOD["about"]["method"]["paper_hparams"]


def test_a_file_puts_it_in_force_between_the_model_and_itself(write: Write) -> None:
    values = {"include": ["model", "ours"], "use_paper_hparams": True, "update": {"minibatches": 4}}
    path = write("run", values)
    config = load_config(path)
    assert scale(config) == (7, 48, 0.5, 4, 0.125)
    assert config.rollout.window is not None
    assert (config.rollout.window.name, config.rollout.window.settings) == ("random_subset", {"size": 6})
    assert scale(load_config(path, ["update.optimizer.lr=0.75", "steps=2"])) == (2, 48, 0.75, 4, 0.125)


def test_an_override_puts_it_in_force_under_the_file(write: Write) -> None:
    path = write("run", {"include": ["model", "ours"], "update": {"minibatches": 4}})
    assert scale(load_config(path, ["use_paper_hparams=true"])) == (7, 48, 0.5, 4, 0.125)
    assert scale(load_config(path, {"use_paper_hparams": True})) == (7, 48, 0.5, 4, 0.125)
    assert scale(load_config(path)) == (100, 8, 0.25, 4, 0.125)


def test_including_a_run_overrides_its_paper_hparams(write: Write) -> None:
    write("run", {"include": ["model", "ours"], "use_paper_hparams": True, "update": {"minibatches": 4}})
    above = write("above", {"include": ["run"], "steps": 3})
    assert scale(load_config(above)) == (3, 48, 0.5, 4, 0.125)
    assert scale(load_config(above, ["use_paper_hparams=false"])) == (3, 8, 0.25, 4, 0.125)
    off = write("off", {"include": ["run"], "use_paper_hparams": False})
    assert scale(load_config(off)) == (100, 8, 0.25, 4, 0.125)


def test_paper_hparams_of_another_method_apply_with_it(write: Write) -> None:
    published = {"update": {"optimizer": {"lr": 0.0625}}}
    write("theirs", {"about": {"method": {**METHOD["about"]["method"], "name": "theirs", "paper_hparams": published}}})
    config = load_config(write("run", {"include": ["ours", "theirs"]}))
    assert config.about.method is not None
    assert config.about.method.paper_hparams == published
    assert config.about.method.over[0].paper_hparams == {}
    task = write(
        "task", {"include": ["ours"], "about": {"method": {"sources": {"rewards": "own"}}}}
    )  # names no other method
    method = load_config(task).about.method
    assert method is not None
    assert method.paper_hparams == METHOD["about"]["method"]["paper_hparams"]


def test_the_resolved_file_reads_back_to_the_same(write: Write, tmp_path: Path) -> None:
    for use_paper_hparams in (True, False):
        config = load_config(write("run", {"include": ["model", "ours"], "use_paper_hparams": use_paper_hparams}))
        (tmp_path / "config.yaml").write_text(dump_config(config))
        assert load_config(tmp_path / "config.yaml") == config


def test_paper_hparams_are_no_change_of_a_resumed_run(write: Write) -> None:
    before = load_config(write("run", {"include": ["model", "ours"]}))
    assert list(config_changes(before, updated(before, "about.method", None))) == []


@pytest.mark.parametrize("values", [{"include": ["model"], "use_paper_hparams": True}, {"use_paper_hparams": True}])
def test_requesting_missing_paper_hparams_raises(values: dict[str, Any], write: Write) -> None:
    with pytest.raises(ConfigError, match="use_paper_hparams: true asks for the published values of a method, but"):
        load_config(write("run", values))
    with pytest.raises(ConfigError, match="use_paper_hparams=true asks for the published values of a method, but"):
        load_config(write("run", {"include": ["model"]}), ["use_paper_hparams=true"])


@pytest.mark.parametrize(
    ("paper_hparams", "text"),
    [
        (
            {"update": {"learning_rate": 1.0}, "model": "x"},
            "no key of the configuration is update.learning_rate, model",
        ),
        (3, "paper_hparams: must be a mapping, such as {key: value}; got 3"),
    ],
)
def test_published_values_are_those_of_keys_that_exist(paper_hparams: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        validated({"about": {"method": {"name": "ours", "title": "Ours", "paper_hparams": paper_hparams}}})


def test_a_live_configuration_has_no_paper_hparams(write: Write) -> None:
    with pytest.raises(ConfigError, match="true or false in a file that includes a method"):
        validated({"use_paper_hparams": True})
    with pytest.raises(ConfigError, match="use_paper_hparams=true or use_paper_hparams=false, got 3"):
        load_config(write("run", {"include": ["ours"]}), ["use_paper_hparams=3"])


@pytest.mark.nightly
def test_every_method_is_explained() -> None:
    data, environment = DataFiles(), "python:tests.training.test_credit_of_turns:Corridor"
    for name in data.names("methods"):
        needs = data.merged(name)["about"]["method"].get("needs", ())
        rollout: dict[str, Any] = {}
        policy = {"segment_end": "\n"} if "segments" in needs else {}
        if "turns" in needs or "environment_reward" in needs:
            rollout["environment"] = environment
        if "engine" in needs:
            rollout["engine"] = {"name": "vllm", "url": "http://127.0.0.1:8000"}
        sections = {"rollout": rollout, "policy": policy}
        config = with_paper_hparams(data, name, **{key: values for key, values in sections.items() if values})
        assert config.about.method is not None
        assert f" method {config.about.method.title} " in rows(config), name


def rows(config: RunConfig) -> str:
    return " ".join(explanation(config).split())


def test_explanation_lists_the_differences_from_the_published_run(write: Write) -> None:
    values = {"include": ["models/flux.1-dev", "methods/dance-grpo"], "update": {"optimizer": {"lr": 0.25}}}
    path = write("run", values)
    expected = """
        published the published run (FLUX.1-dev at 720 x 720, LoRA of rank 128) had steps = 301 (here 100),
        policy.call.num_inference_steps = 12 (here 6), rollout.prompts_per_step = 16 (here 8), rollout.group_size = 12
        (here 8), rollout.window.size = 6 (here 0.6), update.minibatches = 2 (here 1),
        update.optimizer.lr = 0.0003 (here 0.25);
        use_paper_hparams=true on the command line, or use_paper_hparams: true in the file that includes the method,
        applies the ones that the file does not set
        """
    assert " ".join(expected.split()) in rows(load_config(path))
    assert "LoRA of rank 128) had update.optimizer.lr = 0.0003 (here 0.25); " in rows(
        load_config(path, ["use_paper_hparams=true"])
    )
    text = rows(load_config(path, ["use_paper_hparams=true", "update.optimizer.lr=3e-4"]))
    assert "every value of the published run (FLUX.1-dev at 720 x 720, LoRA of rank 128) is in force" in text


def test_explanation_lists_the_keys_of_the_method_with_their_values(write: Write) -> None:
    path = write("run", {"include": ["models/flux.1-dev", "methods/dance-grpo"], "policy": {"strength": 0.5}})
    expected = """
        method DanceGRPO (2505.07818), for denoising policies it sets policy.sampler = dance_sde, policy.strength =
        0.5, policy.density = gaussian, policy.reduction = mean, rollout.same_initial_noise = true, rollout.window =
        random_subset (size 0.6), advantage.scale = group (eps 1e-08, correction 1), advantage.clamp = 5,
        objective.surrogate = clipped (low 0.0001, high 0.0001), objective.aggregate = sequence_mean,
        objective.kl.beta = 0 plain GRPO has rollout.same_initial_noise = false, rollout.window not set,
        advantage.scale = group, advantage.clamp not set, objective.surrogate = clipped (low 0.2, high 0.2),
        objective.kl.beta = 0.04
        """
    assert " ".join(expected.split()) in rows(load_config(path))
