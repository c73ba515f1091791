"""The YAML that ships: it loads, every number has a source, and what it names exists in the real classes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, final, get_args

import pytest
import yaml
from diffusers import QwenImageEditPipeline
from mmgrpo.policies.adapter_formats import DiffusersFiles
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.lora_targets import adapter_targets
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.weights import Weights
from torch import nn

from mmgrpo.algorithm import Algorithm, objective_of
from mmgrpo.config import MethodKind, RunConfig
from mmgrpo.config.auxiliary import AuxiliaryConfig
from mmgrpo.config.loading import dump_config, find_config, load_config, read_layers, shipped
from mmgrpo.config.objective import TermConfig
from mmgrpo.config.sections import at, has
from mmgrpo.errors import ConfigError
from mmgrpo.maths.surrogates import SURROGATES
from mmgrpo.policy import SupportsWindows
from mmgrpo.runs.alerts import watchdog_inputs
from mmgrpo.training.build import build_rewards, plan_at
from tests.breadth.assembly import build
from tests.configs.written import plain, written
from tests.tiny.pipelines import PIPELINES

METHODS = shipped("methods")
RECIPES = [name for name in shipped("recipes") if not name.endswith("-one-gpu")]
TASKS = shipped("tasks")
TINY = {
    "sd3.5-medium": "sd3",
    "flux.1-dev": "flux",
    "flux.1-kontext-dev": "flux-kontext",
    "flux.2-klein-base-4b": "flux2-klein",
    "qwen-image": "qwen-image",
    "qwen-image-edit": "qwen-image",
    "wan2.1-1.3b": "wan",
    "wan2.2-ti2v-5b": "wan",
    "wan2.2-t2v-a14b": "wan",
    "hunyuanvideo-1.5": "HunyuanVideo15Pipeline",
    "ltx-video": "ltx",
    "cogvideox-2b": "cogvideox",
    "stable-audio-open": "StableAudioPipeline",
}
OTHER_CLASSES = {"models/qwen-image-edit": QwenImageEditPipeline}  # than that of the tiny one, with its transformer
TINY_LANGUAGE = {"qwen2.5-vl-3b": "qwen2.5-vl", "qwen3-vl-4b": "qwen3-vl", "qwen2-audio-7b": "qwen2-audio"}
DRAWING_MODELS = [f"models/{name}" for name in TINY]
OTHER_VIDEOS = [f"models/{name}" for name in TINY if name.startswith(("wan2.2", "hunyuan", "ltx", "cog"))]
WRITING_MODELS = [f"models/{name}" for name in TINY_LANGUAGE]
MODELS = [*DRAWING_MODELS, *WRITING_MODELS]


def tiny_of(name: str) -> Any:
    """The tiny pipeline of a model's class."""
    tiny = TINY[name.removeprefix("models/")]
    return PIPELINES[tiny].build() if tiny in PIPELINES else build(tiny)


DRAWING = [name for name in METHODS if "sampler" in written(name).get("policy", {})]
WRITING = [name for name in METHODS if written(name)["method"].get("applies_to") in ("tokens", "both")]


def settings_in(name: str) -> list[tuple[str, Any]]:
    """The keys and values of a file, but for ``include``, ``method``, ``published`` and the list of rewards."""
    return [
        (key, [as_written(item) for item in value] if isinstance(value, list) else value)
        for key, value in leaves(written(name))
        if key.split(".")[0] not in ("include", "method", "paper_hparams", "use_paper_hparams", "rewards")
    ]


def found_at(values: Mapping[str, Any], key: str) -> Any:
    """The value at a key, a function without numbers as its bare name."""
    value = at(values, key)
    if isinstance(value, list):
        return [as_written(item) for item in value]
    return value["name"] if isinstance(value, Mapping) and set(value) == {"name"} else value


def as_written(item: Any) -> Any:
    """An item of a list without the keys that a file leaves to their defaults."""
    if not isinstance(item, Mapping):
        return item
    fields = (TermConfig if "name" in item else AuxiliaryConfig).model_fields
    defaults = {key: field.default for key, field in fields.items() if not field.is_required()}
    return {key: value for key, value in item.items() if key not in defaults or defaults[key] != value}


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def covered(key: str, sources: Mapping[str, str]) -> bool:
    return any(key == source or key.startswith(f"{source}.") for source in sources)


def over(model: str, method: str, folder: Path, *, use_paper_hparams: bool = False) -> RunConfig:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"include": [model, method]}))
    return load_config(path, {"use_paper_hparams": use_paper_hparams})


def settings_of(config: RunConfig) -> DenoisingSettings:
    assert config.policy is not None
    return DenoisingSettings(**config.policy.numbers)


def test_everything_asked_for_ships() -> None:
    drawing = {
        "awm",
        "branch-grpo",
        "diffusion-nft",
        "dance-grpo",
        "flow-grpo",
        "flow-grpo-fast",
        "grpo-guard",
        "mix-grpo",
        "mix-grpo-flash",
        "chunk-grpo",
        "dgpo",
        "flow-dppo",
        "g2rpo",
        "sage-grpo",
        "tempflow-grpo",
    }
    any_kind = {"grpo", "dr-grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "gpg", "luspo", "bnpo", "vespo", "rloo"}
    any_kind |= {"token-mean-grpo", "nsr", "ngrpo", "pass-k-training", "f-grpo", "mapo"}
    any_kind |= {"gfpo", "cppo", "archer", "dcpo-clip", "clip-cov", "kl-cov", "klear-gppo", "nft"}
    any_kind |= {"rl-zvp", "edge-grpo", "gtpo", "tempo", "lambda-grpo", "gvpo", "pacs", "real", "disco", "online-dpo"}
    any_kind |= {"prorl", "greso", "competence-curriculum", "simple-policy-optimization", "spo"}
    any_kind |= {"treerpo"}
    reading = {"luffy", "mm-helix", "repo", "rl-plus", "scaf-grpo"}
    assert drawing | any_kind | reading <= {name.removeprefix("methods/") for name in METHODS}
    assert set(MODELS) == set(shipped("models"))


@pytest.mark.parametrize("name", [*METHODS, *MODELS, *RECIPES])
def test_numbers_are_numbers(name: str) -> None:
    """To readers of YAML 1.1, of which PyYAML is one, 1e-4 is a text; 1.0e-4 is a number to all."""
    for key, value in leaves(written(name)):
        if isinstance(value, str) and key != "method.paper":
            with pytest.raises(ValueError, match="could not convert"):
                float(value)


@pytest.mark.parametrize("method", DRAWING)
@pytest.mark.parametrize(
    "model",
    [pytest.param(name, marks=pytest.mark.nightly if name in OTHER_VIDEOS else ()) for name in DRAWING_MODELS],
)
def test_every_method_lies_over_every_model(model: str, method: str, tmp_path: Path) -> None:
    config = over(model, method, tmp_path)
    resolved = plain(dump_config(config))
    expected = dict(settings_in(model)) | dict(settings_in(method))
    assert {key: found_at(resolved, key) for key in expected} == expected
    settings = settings_of(config)
    assert settings.rollout_batch == settings.update_batch
    steps = settings.call["num_inference_steps"]  # the model's own
    algorithm = Algorithm.of(config)
    assert all(algorithm.window_at(Steps(steps - 1), step) for step in range(60))


@final
class Steps(SupportsWindows):
    """So many decisions, which is all that a window asks of a policy."""

    def __init__(self, num_decisions: int) -> None:
        self._num_decisions = num_decisions

    @property
    def num_decisions(self) -> int:
        return self._num_decisions


@pytest.mark.parametrize("method", WRITING)
@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.nightly if n else ()) for n, name in enumerate(WRITING_MODELS)]
)
def test_every_method_of_any_kind_lies_over_every_language_model(model: str, method: str, tmp_path: Path) -> None:
    config = over(model, method, tmp_path)
    resolved = plain(dump_config(config))
    expected = dict(settings_in(model)) | dict(settings_in(method))
    assert {key: found_at(resolved, key) for key in expected} == expected
    Algorithm.of(config)


@pytest.mark.parametrize("name", METHODS)
def test_every_key_of_a_method_has_a_source(name: str) -> None:
    values = read_layers(find_config(name))
    method, published = values.pop("method"), values.pop("paper_hparams", {})
    unsourced = [key for part in (values, published) for key, _ in leaves(part) if not covered(key, method["sources"])]
    assert unsourced == []
    everywhere = (values | {"method": method}, published)
    assert [key for key in method["sources"] if not any(has(part, key) for part in everywhere)] == []
    assert ("method.rewards" in method["sources"]) == ("rewards" in method)
    assert "rewards" not in values  # a run's would replace them
    assert method["name"] == name.removeprefix("methods/")
    assert method["kind"] in get_args(MethodKind)
    reads = values.get("rollout", {}).get("training_states") == "renoised"
    assert (method["applies_to"] in ("denoising", "masked")) == (reads or "sampler" in values.get("policy", {}))


OPEN = ("steps", "policy.call", "policy.model", "rollout.prompts_per_step", "rollout.group_size", "update")
UPDATES = {
    "methods/gpg": ["update.epochs", "update.minibatches"],  # what a loss without a ratio needs
    "methods/sfpo": ["update.epochs", "update.hooks"],  # a round is so many passes
    "methods/multiple-ticket-hypothesis": ["update.hooks"],
    "methods/rlvr-linearity": ["update.hooks"],
    "methods/g2rpo-a": ["rollout.group_size"],  # of which two are guided
    "methods/expo": ["rollout.group_size"],  # of which one explains
    "methods/meml-grpo": ["rollout.group_size"],  # in three parts
    "methods/diffu-grpo": ["update.cycle_masks"],  # a pass for each masking
    "methods/maskgrpo": ["update.cycle_masks"],
}
"""Methods that are about the updates or the group themselves."""


@pytest.mark.parametrize("name", METHODS)
def test_a_method_leaves_the_scale_open(name: str) -> None:
    set_by_it = [key for key, _ in settings_in(name) if any(key == one or key.startswith(f"{one}.") for one in OPEN)]
    assert set_by_it == UPDATES.get(name, [])


@pytest.mark.parametrize("name", METHODS)
def test_a_method_sets_its_objective(name: str) -> None:
    objective = objective_of(RunConfig.model_validate({"objective": written(name)["objective"]}).objective)
    if written(name)["objective"]["surrogate"] is None:
        assert objective.surrogate is None
        assert [term.name.partition("@")[0] for term in objective.further] == [
            term["name"] for term in written(name)["objective"]["terms"]
        ]
        return
    numbers = dict(written(name)["objective"]["surrogate"])
    assert objective.surrogate.func is SURROGATES[numbers.pop("name")]  # type: ignore[attr-defined]
    assert objective.surrogate.keywords == numbers  # type: ignore[attr-defined]


def windows(name: str, folder: Path, steps: range) -> list[tuple[int, ...] | None]:
    config = over("models/sd3.5-medium", name, folder, use_paper_hparams=True)
    call = {"num_inference_steps": settings_of(config).call["num_inference_steps"]}
    policy = DenoisingPolicy(PIPELINES["sd3"].build(), {"call": call})
    return [plan_at(Algorithm.of(config), policy, step).stochastic for step in steps]


def test_windows_of_all_steps(tmp_path: Path) -> None:
    for name in ("methods/flow-grpo", "methods/grpo-guard"):  # ten steps, the last of which is never drawn
        assert set(windows(name, tmp_path, range(3))) == {tuple(range(9))}


def test_window_of_flow_grpo_fast(tmp_path: Path) -> None:
    found = windows("methods/flow-grpo-fast", tmp_path, range(100))
    assert set(found) == {(0, 1, 2), (1, 2, 3), (2, 3, 4)}


def test_window_of_dance_grpo(tmp_path: Path) -> None:
    found = windows("methods/dance-grpo", tmp_path, range(200))
    assert {len(window or ()) for window in found} == {6}  # int(0.6 * 11)
    assert {step for window in found for step in window or ()} == set(range(11))


def test_window_of_mix_grpo(tmp_path: Path) -> None:
    found = windows("methods/mix-grpo", tmp_path, range(501))
    assert found[0] == found[24] == (0, 1, 2, 3)
    assert found[25] == (1, 2, 3, 4)
    assert found[299] == (11, 12, 13, 14)  # the last of the published 300 iterations
    assert found[499] == (19, 20, 21, 22)  # the reference code never trains step 23
    assert found[500] == (0, 1, 2, 3)


@pytest.mark.parametrize("name", DRAWING_MODELS)
def test_lora_targets_exist_in_the_class(name: str) -> None:
    config = load_config(name)
    settings = settings_of(config)
    pipeline = tiny_of(name)
    assert settings.lora is not None
    linear = [path for path, module in pipeline.transformer.named_modules() if isinstance(module, nn.Linear)]
    targets = settings.lora.targets or adapter_targets({"transformer": pipeline.transformer})
    matched = {t: [p for p in linear if p == t or p.endswith(f".{t}")] for t in targets}
    assert [target for target, paths in matched.items() if not paths] == []
    Weights({"transformer": pipeline.transformer}, settings.lora, targets, DiffusersFiles())
    adapted = {
        path.removesuffix(".lora_A.default.weight")
        for path, _ in pipeline.transformer.named_parameters()
        if path.endswith(".lora_A.default.weight")
    }
    assert adapted == {path for paths in matched.values() for path in paths}


@pytest.mark.parametrize("name", DRAWING_MODELS)
def test_call_arguments_exist_in_the_pipeline(name: str) -> None:
    settings = settings_of(load_config(name))
    pipeline = tiny_of(name)
    known = inspect.signature(OTHER_CLASSES.get(name, type(pipeline)).__call__).parameters
    assert set(settings.call) | set(settings.evaluation_call) <= set(known)


def test_second_attention_of_sd35_is_left_alone() -> None:
    settings = settings_of(load_config("models/sd3.5-medium"))
    plain = PIPELINES["sd3"].build().transformer
    transformer = plain.from_config({**plain.config, "dual_attention_layers": (0,)})
    Weights({"transformer": transformer}, settings.lora, (), DiffusersFiles())
    paths = [path for path, _ in transformer.named_parameters() if ".lora_" in path]
    assert any(".attn.to_q." in path for path in paths)
    assert not any(".attn2." in path for path in paths)


@pytest.mark.parametrize("name", RECIPES)
def test_recipe_keeps_what_it_includes_and_accounts_for_what_it_changes(name: str) -> None:
    model, method, *task = written(name)["include"]
    resolved = plain(dump_config(load_config(name)))
    published = list(leaves(written(method).get("paper_hparams", {}))) if written(name).get("use_paper_hparams") else []
    layers = [settings_in(model), settings_in(method), published, *map(settings_in, task), settings_in(name)]
    expected = {key: value for layer in layers for key, value in layer}
    assert {key: found_at(resolved, key) for key in expected if key != "evaluation.rewards"} == {
        key: value for key, value in expected.items() if key != "evaluation.rewards"
    }
    sourced = written(method)["method"]["sources"]
    changed = [key for key, _ in settings_in(name) if covered(key, sourced)]
    accounted = written(name).get("method", {"sources": {}})["sources"]
    assert [key for key in changed if not covered(key, accounted)] == []
    assert (model in DRAWING_MODELS) == (len(task) == 1)


@pytest.mark.parametrize("name", TASKS)
def test_a_task_says_where_its_sections_are_from(name: str) -> None:
    sections = {key for key in written(name) if key != "method"}
    assert sections == {"prompts", "rewards", "evaluation", "watchdog"}
    assert sections - {"prompts"} <= set(written(name)["method"]["sources"])


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_is_trained_on_rewards_that_exist_and_watched_by_others(name: str) -> None:
    config = load_config(name)
    assert config.evaluation is not None
    trained = [reward.name for reward in build_rewards(config.rewards)]
    judges = [reward.name for reward in build_rewards(config.evaluation.rewards)]
    assert not {"jpeg_size", "brightness"} & set(trained)
    subject = watchdog_inputs(config, trained, judges)
    assert subject is not None
    assert subject.held_out
    assert not set(subject.held_out) & set(trained)
    assert config.prompts is not None
    assert config.prompts.source != config.evaluation.prompts.source


@pytest.mark.parametrize("name", [*RECIPES, *shipped("quickstart")])
def test_what_a_run_folder_keeps_reads_back_to_the_same(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    (tmp_path / "config.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "config.yaml") == config


def test_unknown_source_key_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no key 'policy\.strenght'"):
        at(written("methods/flow-grpo"), "policy.strenght")
