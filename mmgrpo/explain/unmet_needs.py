"""Settings that need another one, which a run does not have: they have no effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.binding import named_in
from mmgrpo.config.registry import decides, is_scheduled
from mmgrpo.explain.formulas import with_defaults
from mmgrpo.explain.view_passes import compares_with_reference
from mmgrpo.maths.strategies import STRATEGIES
from mmgrpo.values import VALUE


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """Settings that have an effect in some runs only.

    Attributes:
        keys: dotted keys.
        other: the setting that gives them an effect, for messages.
        is_met: whether a run has it.
    """

    keys: tuple[str, ...]
    other: str
    is_met: Callable[[Algorithm], bool]


def _has_beta(run: Algorithm) -> bool:
    return run.config.objective.kl.beta > 0 or "objective.kl.beta" in run.config.schedules


def _may_truncate(run: Algorithm) -> bool:
    policy = run.config.policy
    return policy is None or not is_scheduled(policy.name)


def _may_be_off_policy(run: Algorithm) -> bool:
    return run.strategy.off_policy or any(key.startswith("rollout.strategy") for key in run.schedules.keys)


def _samples_differ(run: Algorithm) -> bool:
    policy, evaluation = run.config.policy, run.config.evaluation
    is_noisy = policy is None or decides(policy.name) != "tokens"  # masked ones have evaluation_temperature
    return evaluation is None or evaluation.sampled or is_noisy


NEEDS = (
    Needs(
        keys=tuple(f"rollout.{key}" for key in ("max_turns", "environment_workers", "environment_timeout_s")),
        other="rollout.environment",
        is_met=lambda run: run.config.rollout.environment is not None,
    ),
    Needs(
        keys=("advantage.off_policy_baseline", "objective.off_policy"),
        other="a rollout.strategy with rows of replay, of the data, or trained without their prompt template",
        is_met=_may_be_off_policy,
    ),
    Needs(
        keys=("advantage.filtered_samples",),
        other="advantage.filters",
        is_met=lambda run: bool(run.config.advantage.filters),
    ),
    Needs(
        keys=("advantage.critic",),
        other="an estimator that reads its values, such as advantage.estimators: [{name: gae, ...}]",
        is_met=lambda run: VALUE in run.advantages.values,
    ),
    Needs(
        keys=tuple(
            f"objective.{key}" for key in ("ratio_level", "bound", "selections", "normalize_ratio", "step_weight")
        ),
        other="objective.surrogate",
        is_met=lambda run: run.config.objective.surrogate is not None,
    ),
    Needs(keys=("objective.truncated",), other="a policy whose samples have a length limit", is_met=_may_truncate),
    Needs(keys=("objective.kl.divergence",), other="objective.kl.beta above 0", is_met=_has_beta),
    Needs(keys=("update.cycle_masks",), other="update.epochs above 1", is_met=lambda run: run.config.update.epochs > 1),
    Needs(
        keys=("update.reference",),
        other="objective.kl.beta above 0, or another reader of the reference",
        is_met=compares_with_reference,
    ),
    Needs(
        keys=("evaluation.samples_per_prompt",),
        other="evaluation.sampled: true, as the likeliest tokens are the same in each sample",
        is_met=_samples_differ,
    ),
    Needs(
        keys=("checkpoint.warmup_every",),
        other="update.warmup",
        is_met=lambda run: run.config.update.warmup is not None,
    ),
)
"""Settings without an effect where another one is missing, in the order of the configuration."""


def unmet_needs(algorithm: Algorithm) -> Iterator[str]:
    """A sentence with its fix for each setting of a run that has no effect as another one is missing.

    Settings of an included method are left out: they are for runs that turn the other one on.

    Args:
        algorithm: of the run.

    Yields:
        str: Sentences.
    """
    by_methods = {key for method in algorithm.config.about.methods for key in method.sources}
    for needs in NEEDS:
        keys = [key for key in needs.keys if key not in by_methods and _is_set(algorithm.config, key)]
        if keys and not needs.is_met(algorithm):
            yield f"no effect: {', '.join(keys)} without {needs.other}; set that too, or leave it out"
    yield from _unread_names(algorithm, by_methods)
    yield from _unknown_roles(algorithm)


def _unread_names(algorithm: Algorithm, by_methods: set[str]) -> Iterator[str]:
    """Named passes and prompt templates that nothing names."""
    rollout, objective = algorithm.config.rollout, algorithm.config.objective
    strategy = named_in("rollout.strategy", STRATEGIES, rollout.strategy.name)
    templates = set(_texts(with_defaults(strategy, rollout.strategy.settings)))
    views = {*algorithm.views_read(), *(value.view for value in algorithm.values)}
    for key, names, readers, reader in (
        ("rollout.prompt_templates", rollout.prompt_templates, templates, "a rollout.strategy that names it"),
        ("objective.views", objective.views, views, "a term, estimator, filter or modulation that names it"),
    ):
        for name in names:
            if name not in readers and not {key, f"{key}.{name}"} & by_methods:
                yield f"no effect: {key}.{name} without {reader}; set that too, or leave it out"


def _unknown_roles(algorithm: Algorithm) -> Iterator[str]:
    """Names of other roles in prompt templates that are none; after another task, roles are names of tasks too."""
    rollout = algorithm.config.rollout
    roles = [] if rollout.task and rollout.task.after else list(rollout.prompt_templates.items())
    for name, template in roles:
        for key in ("same", "reads") if template.name == "role" else ():
            for other in template.settings.get(key) or ():
                if other not in rollout.prompt_templates:
                    setting = f"rollout.prompt_templates.{name}.{key}: {other}"
                    yield f"no effect: {setting} without a prompt template of that name; set that too, or leave it out"


def _texts(value: Any) -> Iterator[str]:
    """Every text within a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for inner in value.items() for text in _texts(inner))
    elif isinstance(value, list | tuple):
        yield from (text for inner in value for text in _texts(inner))


def _is_set(section: BaseModel, key: str) -> bool:
    """Whether the value at a dotted key is another one than the default."""
    name, _, inner = key.partition(".")
    value = getattr(section, name)
    if inner:
        return value is not None and _is_set(value, inner)
    return value != type(section).model_fields[name].get_default(call_default_factory=True)
