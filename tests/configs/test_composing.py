"""Methods of different mechanisms in one run: each pair either trains as both say, or is refused with the reason."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations, permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, merge
from mmgrpo.config.sections import at
from mmgrpo.errors import ConfigError
from mmgrpo.explain.advantage_inputs import require_advantages
from mmgrpo.explain.method_settings import method_rows
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.policies.tiny_language import measured_policy_of, prompts_of

# One of: scale, remembered baseline, filter, surrogate, ratio level, group loss, strategy, order of prompts, moving
# reference, group reward, replayed rows.
BOTH = ["mapo", "spo", "gfpo", "sapo", "gspo", "disco", "dapo", "greso", "prorl", "unlikeliness-reward", "repo"]
# Credit of tokens, selection, modulation, trees, rows of others, views, auxiliary losses.
TOKENS = [*BOTH, "rl-zvp", "kl-cov", "archer", "treerpo", "luffy", "on-policy-distillation", "mm-helix"]
# Samples that are noised again, weights of steps, trees, chunks.
DENOISING = [
    *[name for name in BOTH if name not in ("gfpo", "unlikeliness-reward", "repo")],
    *("diffusion-nft", "tempflow-grpo", "branch-grpo", "chunk-grpo"),
]
TRAINED = [name for name in TOKENS if name not in ("treerpo", "luffy", "on-policy-distillation", "mm-helix")]

NO_EFFECT = "would have no effect under"
DRAWS = "needs its rollout.strategy"
READ = "training_states: renoised samples without noise"
# (task, lower method) -> the uppers that it does not go under, and why
REFUSED: dict[tuple[str, str], dict[str, str]] = {
    ("arithmetic-text", "mapo"): dict.fromkeys(["prorl", "unlikeliness-reward", "archer"], NO_EFFECT),
    ("arithmetic-text", "sapo"): dict.fromkeys(
        ["mapo", "spo", "gspo", "dapo", "unlikeliness-reward", "kl-cov", "archer", "luffy", "on-policy-distillation"],
        NO_EFFECT,
    ),
    ("arithmetic-text", "repo"): {"luffy": NO_EFFECT},
    ("arithmetic-text", "archer"): dict.fromkeys(["sapo", "kl-cov", "luffy"], "has no parameter"),
    **{
        ("arithmetic-text", name): dict.fromkeys(["dapo", "greso", "prorl", "repo", "kl-cov", other], DRAWS)
        for name, other in (("treerpo", "luffy"), ("luffy", "treerpo"))
    },
    ("calculator-tool", "mapo"): {"gigpo": NO_EFFECT},
    ("calculator-tool", "sapo"): {"gigpo": NO_EFFECT},
    ("digits-image", "mapo"): dict.fromkeys(["prorl", "tempflow-grpo"], NO_EFFECT),
    ("digits-image", "sapo"): dict.fromkeys(["mapo", "spo", "gspo", "dapo", "tempflow-grpo"], NO_EFFECT),
    ("digits-image", "diffusion-nft"): dict.fromkeys(["tempflow-grpo", "branch-grpo", "chunk-grpo"], READ),
    ("digits-image", "tempflow-grpo"): {"diffusion-nft": READ, "branch-grpo": "share their initial noise"},
    ("digits-image", "branch-grpo"): {"diffusion-nft": READ, "tempflow-grpo": "share their initial noise"},
}
PAIRS = {
    "arithmetic-text": list(permutations(TOKENS, 2)),
    "calculator-tool": [pair for name in BOTH for pair in permutations(("gigpo", name))],
    "digits-image": list(permutations(DENOISING, 2)),
}


def laid(folder: Path, *names: str, changes: dict[str, Any] | None = None) -> RunConfig:
    """The configuration of a file that includes these."""
    file = folder / "run.yaml"
    file.write_text(yaml.safe_dump({"include": list(names), **(changes or {})}))
    return load_config(file)


def refusal(folder: Path, *names: str) -> str:
    """Why a file that includes these cannot be, empty if it can: then all its functions can be made."""
    try:
        rewarding = (
            {"environment": "python:tests.training.test_credit_of_turns:Corridor"} if "methods/gigpo" in names else {}
        )
        config = laid(folder, *names, changes={"rollout": {"group_size": 16, **rewarding}})
        require_advantages(Algorithm.of(config))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("task", PAIRS)
def test_every_mechanism_combines_with_every_other_or_raises_with_a_reason(task: str, tmp_path: Path) -> None:
    wrong = []
    for lower, upper in PAIRS[task]:
        expected = REFUSED.get((task, lower), {}).get(upper, "")
        message = refusal(tmp_path, f"quickstart/{task}", f"methods/{lower}", f"methods/{upper}")
        if bool(message) != bool(expected) or expected not in message:
            wrong.append((lower, upper, message))
    assert wrong == []


def test_functions_that_follow_each_other_are_joined(tmp_path: Path) -> None:
    """Of both the estimators and the filters, the lower method's first; one that both name is there once."""
    config = laid(tmp_path, "methods/rl-zvp", "methods/gfpo")
    alone = [laid(tmp_path, f"methods/{name}").advantage.estimators for name in ("rl-zvp", "gfpo")]
    assert config.advantage.estimators == (*alone[0], *alone[1])
    changes: dict[str, Any] = {"advantage": {"estimators": []}}
    assert laid(tmp_path, "methods/rl-zvp", "methods/gfpo", changes=changes).advantage.estimators == ()


def test_list_of_a_run_does_not_drop_functions_of_a_method(tmp_path: Path) -> None:
    (name,) = (estimator.name for estimator in laid(tmp_path, "methods/rl-zvp").advantage.estimators)
    changes: dict[str, Any] = {"advantage": {"estimators": [{"name": "length"}]}}
    lost = rf"advantage.estimators replaces the list of methods/rl-zvp and drops {name}: state it in"
    with pytest.raises(ConfigError, match=rf"run.yaml: {lost}"):
        laid(tmp_path, "methods/rl-zvp", changes=changes)
    laid(tmp_path, "methods/rl-zvp")
    with pytest.raises(ConfigError, match=rf"the override advantage.estimators: {lost}"):
        load_config(tmp_path / "run.yaml", ["advantage.estimators=[length]"])
    fragment = tmp_path / "fragment.yaml"
    fragment.write_text(yaml.safe_dump(changes))
    with pytest.raises(ConfigError, match=rf"include: {lost}"):
        laid(tmp_path, "methods/rl-zvp", str(fragment))
    changes["advantage"]["estimators"] = [{"name": "length"}, {"name": name, "weight": 0.5}]
    assert [estimator.name for estimator in laid(tmp_path, "methods/rl-zvp", changes=changes).advantage.estimators] == [
        "length",
        name,
    ]
    alone = laid(
        tmp_path,
        "methods/rl-zvp",
        changes={"about": {"method": None}, "advantage": {"estimators": [{"name": "length"}]}},
    )
    assert [estimator.name for estimator in alone.advantage.estimators] == ["length"]


def test_numbers_belong_to_the_scale_of_their_file(tmp_path: Path) -> None:
    """gspo's 1e-6 of its scale, which spo's scale has no setting for."""
    assert laid(tmp_path, "methods/gspo").advantage.scale.settings["eps"] == 1e-6
    assert laid(tmp_path, "methods/gspo", "methods/spo").advantage.scale.settings == {}


def test_replaced_keys_are_listed(tmp_path: Path) -> None:
    config = laid(tmp_path, "methods/dapo", "methods/gspo")
    assert config.about.method is not None
    (dapo,) = config.about.method.over
    assert (config.about.method.name, dapo.name) == ("gspo", "dapo")
    assert dapo.replaced["objective.surrogate"] == {"name": "clipped", "low": 0.2, "high": 0.28}
    assert "rollout.strategy" not in dapo.replaced
    assert config.about.method.replaced == {}
    of_dapo = list(method_rows(config))
    of_dapo = of_dapo[of_dapo.index(("merged below", "DAPO (2503.14476)")) :]
    replaced = dict(of_dapo)
    assert replaced["replaced"].startswith("methods included later override ")
    assert "objective.surrogate = clipped (low 0.2, high 0.28)" in replaced["replaced"]
    assert replaced["it sets"].startswith("rollout.strategy = refill (rounds 10), ")
    assert [text for label, text in of_dapo if label == "deviation"] == list(dapo.deviations)
    assert load_config(tmp_path / "run.yaml", {"seed": 1}).about.method == config.about.method
    fragment = tmp_path / "fragment.yaml"
    fragment.write_text("objective: {surrogate: {name: clipped, low: 0.1, high: 0.1}}")
    below = laid(tmp_path, "methods/gspo", str(fragment)).about.method
    assert below is not None
    assert "objective.surrogate" in below.replaced
    null = laid(tmp_path, "methods/drpo", "methods/dr-grpo").about.method
    assert null is not None
    assert null.over[0].replaced["objective.surrogate"] is None


def test_a_method_of_each_policy_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"no policy is of both kinds: luffy for tokens and branch-grpo for denoising"
    ):
        laid(tmp_path, "methods/luffy", "methods/branch-grpo")


def test_the_strategy_of_a_method_is_not_replaced_by_another(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"with_answer, which dapo replaces by refill; put luffy after dapo"):
        laid(tmp_path, "methods/luffy", "methods/dapo")
    below = laid(tmp_path, "methods/dapo", "methods/luffy", "methods/gspo").about.method
    assert below is not None
    assert [(layer.name, layer.replaced.get("rollout.strategy")) for layer in below.over] == [
        ("dapo", {"name": "refill", "rounds": 10}),
        ("luffy", None),
    ]


def test_filter_that_keeps_every_member_raises(tmp_path: Path) -> None:
    """gfpo keeps 8, and the task draws 8."""
    config = laid(tmp_path, "quickstart/arithmetic-text", "methods/gfpo")
    with pytest.raises(
        ConfigError, match=r"among_most_efficient keeps 8 members of a group and rollout\.group_size is 8"
    ):
        require_advantages(Algorithm.of(config))
    varied = {"advantage": {"estimators": [], "filters": [{"name": "most_varied", "count": 8}]}}
    with pytest.raises(ConfigError, match=r"advantage\.filters: most_varied keeps 8 members"):
        require_advantages(Algorithm.of(laid(tmp_path, "quickstart/arithmetic-text", changes=varied)))


def test_custom_method_needs_no_paper(tmp_path: Path) -> None:
    config = laid(tmp_path, "methods/gspo", changes={"about": {"method": {"name": "mine", "title": "Mine"}}})
    assert next(method_rows(config)) == ("method", "Mine (not published)")


@pytest.mark.parametrize(
    ("task", "method", "message"),
    [
        ("arithmetic-text", "flow-grpo-fast", "flow-grpo-fast is for denoising policies, and the policy language is"),
        ("digits-image", "luffy", "luffy is for tokens, and the policy denoising is for denoising policies"),
    ],
)
def test_method_of_another_policy_raises(task: str, method: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        laid(tmp_path, f"quickstart/{task}", f"methods/{method}")


@pytest.mark.nightly
@pytest.mark.parametrize(("lower", "upper"), combinations(TRAINED, 2))
def test_a_pair_trains(lower: str, upper: str, tmp_path: Path) -> None:
    size = 9 if "gfpo" in (lower, upper) else 4
    small = {
        "steps": 1,
        "rollout": {"prompts_per_step": 2, "group_size": size},
        "update": {"minibatches": 1, "optimizer": {"lr": 1e-3}},
    }
    task = "arithmetic-text"
    if upper in REFUSED.get((task, lower), {}):
        lower, upper = upper, lower
    if upper in REFUSED.get((task, lower), {}):
        pytest.skip("refused in either order")
    config = laid(tmp_path, f"methods/{lower}", f"methods/{upper}", changes={**small, "output": str(tmp_path)})

    def right(samples: Sequence[Sample]) -> list[float]:
        return [float(sample.member < 1 + sample.group % 2) for sample in samples]

    folder = Trainer(
        measured_policy_of("llama", max_new_tokens=5), {"right": right}, prompts_of("llama"), config
    ).train()
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
    assert line["policy/on_policy_gap"] < 1e-5
    assert line["optimizer/grad_norm"] > 0


def test_bare_name_keeps_the_settings_of_the_same_function() -> None:
    below = {"advantage": {"scale": {"name": "group", "eps": 1e-6}, "clamp": 5.0}}
    assert merge(below, {"advantage": {"scale": "group"}}) == below
    assert merge(below, {"advantage": {"scale": "raw"}})["advantage"] == {"scale": "raw", "clamp": 5.0}


def test_settings_are_merged_with_a_bare_name_below() -> None:
    below = {"advantage": {"scale": "group"}, "prompts": "rows.jsonl"}
    assert merge(below, {"advantage": {"scale": {"eps": 1e-6}}, "prompts": {"limit": 2}}) == {
        "advantage": {"scale": {"name": "group", "eps": 1e-6}},
        "prompts": {"source": "rows.jsonl", "limit": 2},
    }
    assert merge(below, {"advantage": {"scale": {"name": "raw"}}})["advantage"] == {"scale": {"name": "raw"}}


@pytest.mark.parametrize(
    ("key", "name"),
    [("update.optimizer.schedule", "cosine"), ("advantage.critic.loss", "returns"), ("rollout.strategy", "refill")],
)
def test_setting_of_a_bare_name_is_overridden(key: str, name: str) -> None:
    config = load_config("methods/gspo", {key: name, f"{key}.setting": 3})
    assert at(config.model_dump(), key) == {"name": name, "setting": 3}


def test_settings_without_a_function_raise() -> None:
    message = r"schedule\.name is missing: write the name of the function next to its settings \(end, warmup_steps\)"
    with pytest.raises(ConfigError, match=message):
        load_config("methods/gspo", {"update.optimizer.schedule": {"end": 0.1, "warmup_steps": 3}})


def test_metadata_of_runs_of_two_names_is_merged() -> None:
    below = {"about": {"name": "first", "method": {"name": "dapo", "title": "DAPO"}}}
    assert merge(below, {"about": {"name": "second"}})["about"] == {**below["about"], "name": "second"}
    gspo = {"name": "gspo", "title": "GSPO"}
    assert merge(below, {"about": {"method": gspo}})["about"] == {"name": "first", "method": gspo}


def test_flow_grpo_leaves_the_sampler_to_the_model(tmp_path: Path) -> None:
    file = tmp_path / "wan.yaml"
    prompts = "prompts: {source: prompts.txt}\n"
    sampler = {}
    for name, lines in {
        "included": "include: [models/wan2.1-1.3b, methods/flow-grpo]\n",
        "after": "include: [methods/flow-grpo, models/wan2.1-1.3b]\n",
        "own": "include: [models/wan2.1-1.3b, methods/flow-grpo]\npolicy: {sampler: cps, strength: 0.5}\n",
        "other method": "include: [models/wan2.1-1.3b, methods/flow-grpo-fast]\n",
        "other model": "include: [models/sd3.5-medium, methods/flow-grpo]\n",
    }.items():
        file.write_text(lines + prompts)
        sampler[name] = [at(load_config(file).model_dump(), f"policy.{key}") for key in ("sampler", "strength")]
    assert sampler == {
        "included": ["wan_sde", 1.0],
        "after": ["wan_sde", 1.0],
        "own": ["cps", 0.5],
        "other method": ["cps", 0.8],
        "other model": ["flow_sde", 0.7],
    }
    file.write_text("include: [models/wan2.1-1.3b, methods/flow-grpo-fast]\n" + prompts)
    config = load_config(file, methods=["methods/flow-grpo"])
    assert dict(method_rows(config))["it leaves"] == (
        "policy.sampler = wan_sde, policy.strength = 1, which the model or run below the method sets"
    )
