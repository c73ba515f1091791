"""Runs of every shipped method in seconds, and the same runs without one mechanism of the method's file.

A mechanism is a key of the file that changes sampling, credit or the loss: an item of a list
of functions (``advantage.estimators.0``), or a key such as ``objective.ratio_level``. Without it the key has its
default.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from mmgrpo.config import AdvantageConfig, Named, RunConfig
from mmgrpo.config.loading import find_config, load_config, read_layers, shipped
from mmgrpo.config.registry import settings_type
from mmgrpo.config.sections import at, has
from mmgrpo.errors import MmgrpoError
from mmgrpo.explain.formulas import with_defaults
from mmgrpo.maths.advantages import SCALES
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample, Scope, Score

SECTIONS = ("prompts", "policy", "rollout", "advantage", "objective", "update")
"""Sections whose keys are mechanisms, besides ``schedules``."""

LISTS = (
    "advantage.estimators",
    "advantage.filters",
    "objective.terms",
    "objective.modulations",
    "objective.selections",
    "update.hooks",
    "objective.auxiliary",
)
"""Lists of functions: each item is a mechanism."""

BLOCKS = ("advantage.kl", "objective.kl", "update.optimizer")
"""Sections within sections: each key is a mechanism."""

TOGETHER = {
    "objective.kl.beta": ("objective.kl.divergence",),
    "advantage.kl.beta": ("advantage.kl.divergence",),
    "rollout.strategy": ("rollout.prompt_templates", "rollout.group_size"),
    "policy.sampler": ("policy.strength", "policy.density", "policy.reduction"),
}
"""Keys that are removed with another one: its settings, or what has nothing to act on without it."""

SHARED = (
    "advantage.scale",
    "objective.surrogate",
    "objective.aggregate",
    "objective.kl.beta",
    "objective.entropy_bonus",
)
"""Keys whose values many methods have: each value is taken away from the first of them that has it, and from methods
that have no mechanism but these."""

REWARDS = "about.method.rewards"
"""The rewards that a method adds to those of the run, or computes of its verifiers."""

NO_MECHANISMS = ("update.epochs", "update.minibatches", "update.optimizer.lr", "objective.views")
"""Keys that say how much is trained, a number that keeps a division finite, and forward passes that others read."""

ROUNDING = 1e-5
"""Relative distance of the weights up to which two runs are the same: several times what rounding causes."""

SMALL = {
    "steps": 2,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 4,
    "update.minibatches": 2,
    "update.optimizer.lr": 0.005,
    "rollout.saved_groups": 0,
    "rewards": [],
}
"""Of every run; the second update of a step finds ratios on both sides of the usual bounds."""

COLUMNS = {
    **dict.fromkeys(("solution", "equivalent_1", "equivalent_2"), "two red squares"),
    **{"different_1": "a blue cat", "different_2": "three dogs"},
    **{f"{kind}_{n}": f"a {kind} {n}" for kind in ("knowledge", "solution", "paraphrase") for n in range(1, 7)},
    **{"answer": "two", "hint": "count them", "criteria": "counts them", "policy": "be kind", "thought": "red squares"},
    **{"variant": "how many squares", "teacher_1": "two squares", "teacher_2": "red squares"},
    **{"chosen": "two squares", "rejected": "a blue cat"},
    **{"question": "which?", "response": "it is 8", "verdict": "Correct"},
    **{"reward_without_thought": 0},
}
TEXTS = (
    "what number is this",
    "how many red squares do you see",
    "why",
    "what is on the left of it",
    "a cat",
    "two dogs",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyRun:
    """A run in which a method has what it needs.

    Attributes:
        changes: overrides of the method's file, by dotted key.
        policy: builds what is trained, from the run's configuration.
        rewards: what is trained on.
        prompts: what is trained on.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    policy: Callable[[RunConfig], Policy]
    rewards: Sequence[NamedReward]
    prompts: Sequence[Prompt]


def some_right(samples: Sequence[Sample]) -> list[float]:
    """Of four groups in turn one, three, two, and all or no members in four are right, by the prompt's length."""
    counts = [(1, 3, 2, 4 * (len(sample.prompt.text) % 2))[sample.group % 4] for sample in samples]
    return [float(sample.member % 4 < count) for sample, count in zip(samples, counts, strict=True)]


def halves(samples: Sequence[Sample]) -> list[Score]:
    """The two halves of a text, the second worth more for later members."""
    scores = []
    for sample in samples:
        length = len(sample.text or "")
        ends = [(0, length // 2), (length // 2, length)]
        parts = [
            Scope(*end, (sample.member + n * sample.group) % 3 / 2) for n, end in enumerate(ends) if end[0] < end[1]
        ]
        scores.append(Score(0.0, scopes=parts))
    return scores


def mechanism_keys(name: str) -> tuple[str, ...]:
    """The dotted keys of a method's file that are mechanisms, in its order; of a list each item by its number."""
    keys = tuple(_keys(_layers(name)))
    method_keys = [key for key in keys if key not in SHARED]
    if not method_keys:
        return keys
    return tuple(key for key in keys if key in method_keys or _first_with()[_shared_value(name, key)] == name)


@cache
def _layers(name: str) -> Mapping[str, Any]:
    return read_layers(find_config(f"methods/{name}"))


@cache
def _first_with() -> Mapping[tuple[str, str, str], str]:
    """The first method that has a value of a shared key, for each kind of policy."""
    first: dict[tuple[str, str, str], str] = {}
    for name in (name.removeprefix("methods/") for name in shipped("methods")):
        for key in set(_keys(_layers(name))) & set(SHARED):
            first.setdefault(_shared_value(name, key), name)
    return first


def _shared_value(name: str, key: str) -> tuple[str, str, str]:
    values = _layers(name)
    parts = [repr(at(values, each, None)) for each in (key, *TOGETHER.get(key, ()))]
    is_text = values["about"]["method"]["applies_to"] in ("both", "tokens")
    return ("text" if is_text else values["about"]["method"]["applies_to"], key, " ".join(parts))


def _keys(values: Mapping[str, Any]) -> Iterator[str]:
    followers = {key for keys in TOGETHER.values() for key in keys}
    for section in SECTIONS:
        inner = values.get(section, {})
        keys = [f"{section}.{key}" for key in inner] if isinstance(inner, Mapping) else [section]
        blocks = {key: [f"{key}.{name}" for name in at(values, key)] for key in keys if key in BLOCKS}
        keys = [inner_key for key in keys for inner_key in blocks.get(key, [key])]
        for key in keys:
            if key in LISTS:
                items = inner if key == section else inner[key.removeprefix(f"{section}.")]
                yield from (f"{key}.{number}" for number in range(len(items)))
            elif key not in NO_MECHANISMS and not (key in followers and _leader(key, values)):
                yield key
    yield from (f"schedules:{key}" for key in values.get("schedules", {}))
    if any(values["about"]["method"].get("rewards", {}).get(part) for part in ("added", "substitutes")):
        yield REWARDS


def _leader(key: str, values: Mapping[str, Any]) -> bool:
    """Whether the key that it is removed with is in the file."""
    leaders = [leader for leader, keys in TOGETHER.items() if key in keys]
    return any(has(values, leader) for leader in leaders)


def without(config: RunConfig, key: str) -> RunConfig:
    """The configuration with the default of a key, or without an item of a list."""
    values = config.model_dump()
    if key == REWARDS:
        values["about"]["method"]["rewards"] = {}
        values["rewards"] = [reward for reward in values["rewards"] if reward["from_method"] is None]
        return RunConfig.model_validate(values)
    section, colon, moved = key.partition(":")
    if colon:
        del values[section][moved]
        return RunConfig.model_validate(values)
    head, _, last = key.rpartition(".")
    if head in LISTS:
        items = list(_at(values, head))
        del items[int(last)]
        _remove(values, head)
        _put(values, head, items)
        names = (
            [item["label"] or item["name"] for item in _at(config.model_dump(), head)] if head.endswith("terms") else []
        )
        if names:
            _drop_moves(values, f"{head}.{names[int(last)]}.")
        elif head.startswith(("advantage", "objective")) and head != "objective.auxiliary":
            _drop_moves(values, f"{head}.{_at(config.model_dump(), head)[int(last)]['name']}.")
        if head == "objective.terms" and not items and values["objective"]["surrogate"] is None:
            del values["objective"]["surrogate"]  # a loss of no term is none
        return RunConfig.model_validate(values)
    for each in (key, *TOGETHER.get(key, ())):
        _remove(values, each)
        _drop_moves(values, f"{each}.")
    if key == "advantage.scale" and "eps" in config.advantage.scale.settings:
        _put(values, key, {"name": "group", "eps": config.advantage.scale.settings["eps"]})  # which is no mechanism
    return RunConfig.model_validate(values)


def _drop_moves(values: dict[str, Any], start: str) -> None:
    schedules = values["schedules"]
    values["schedules"] = {key: value for key, value in schedules.items() if not key.startswith(start)}


def _at(values: Any, key: str) -> Any:
    for part in key.split("."):
        values = values[part]
    return values


def _remove(values: Any, key: str) -> None:
    head, _, last = key.rpartition(".")
    inner = _at(values, head) if head else values
    inner.pop(last, None)


def _put(values: Any, key: str, value: Any) -> None:
    head, _, last = key.rpartition(".")
    (_at(values, head) if head else values)[last] = value


def trained_weights(config: RunConfig, run: TinyRun) -> tuple[Tensor, Tensor]:
    """The weights before and after a run, each as one vector."""
    policy = run.policy(config)
    before = _vector(policy)
    with tempfile.TemporaryDirectory() as folder:
        config = config.model_copy(update={"output": folder})
        Trainer(policy, list(run.rewards), list(run.prompts), config).train()
    return before, _vector(policy)


def _vector(policy: Policy) -> Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in policy.trainable])


def distance(before: Tensor, after: Tensor, other: Tensor) -> float:
    """How far apart two runs from the same weights end, as a share of how far the first one moved."""
    return float((after - other).norm() / (after - before).norm().clamp(min=1e-30))


@dataclass(frozen=True, slots=True)
class Ablation:
    """A method without one of its mechanisms.

    Attributes:
        key: the mechanism.
        outcome: ``changes``, ``same``, ``default`` where the file states the default, or ``error`` where the method
            cannot run without it.
        measured: relative distance of the weights, or the error.
    """

    key: str
    outcome: str
    measured: str


def ablations(name: str, run: TinyRun, keys: Sequence[str] | None = None) -> Iterator[Ablation]:
    """Mechanisms of a method taken away, one at a time: all of them, or some."""
    config = config_of(name, run)
    before, after = trained_weights(config, run)
    assert not torch.equal(before, after), f"{name} does not move the weights"
    for key in mechanism_keys(name) if keys is None else keys:
        try:
            other_config = without(config, key)
        except ValueError as error:
            yield Ablation(key, "error", str(error).splitlines()[-1][:100])
            continue
        if is_same(config, other_config):
            yield Ablation(key, "default", "")
            continue
        try:
            run_rewards = [reward for reward in run.rewards if reward.from_method is None]
            other_run = replace(run, rewards=run_rewards) if key == REWARDS else run
            apart = distance(before, after, trained_weights(other_config, other_run)[1])
        except (MmgrpoError, ValueError) as error:
            yield Ablation(key, "error", f"{type(error).__name__}: {error}"[:100])
            continue
        yield Ablation(key, "changes" if apart > ROUNDING else "same", f"{apart:.1e}")


def config_of(name: str, run: TinyRun) -> RunConfig:
    """The configuration of a tiny run of a method."""
    changes = {**SMALL, **_near_bounds(name), **run.changes}
    if not any(key.startswith("policy.") for key in changes):
        changes["policy"] = None
    return load_config(f"methods/{name}", changes)


def _near_bounds(name: str) -> dict[str, Any]:
    """Bounds of the surrogate as close to 1 as the ratios of a tiny run are, unless they are the default ones."""
    surrogate = at(_layers(name), "objective.surrogate", None)
    if not isinstance(surrogate, Mapping) or surrogate == {"name": "clipped", "low": 0.2, "high": 0.2}:
        return {}
    bounds = {key: surrogate[key] for key in ("low", "high") if isinstance(surrogate.get(key), float)}
    return {f"objective.surrogate.{key}": min(bound / 20, 0.005) for key, bound in bounds.items()}


def is_same(config: RunConfig, other: RunConfig) -> bool:
    """Whether two configurations are of one run: settings of the policy and of ``advantage.scale`` include defaults."""
    compared = {"policy": config.policy, "advantage": _with_defaults(config.advantage)}
    other_compared = {"policy": config.policy, "advantage": _with_defaults(other.advantage)}
    is_equal = config.model_copy(update=compared) == other.model_copy(update=other_compared)
    return is_equal and _settings(config) == _settings(other)


def _with_defaults(advantage: AdvantageConfig) -> AdvantageConfig:
    """The section with every number of its scale, where the function's defaults hold too."""
    numbers = with_defaults(SCALES[advantage.scale.name], advantage.scale.settings)
    return advantage.model_copy(update={"scale": Named(name=advantage.scale.name, **numbers)})


def _settings(config: RunConfig) -> Any:
    if config.policy is None or (kind := settings_type(config.policy.name)) is None:
        return config.policy
    return kind(**config.policy.settings)
