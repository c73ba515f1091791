"""The views of a run, and the passes that evaluate them."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig, ViewConfig
from mmgrpo.config.schedules import steps_of_change
from mmgrpo.config.update import average_name
from mmgrpo.config.views import MOVING
from mmgrpo.memory import Memory
from mmgrpo.values import REFERENCE

EVERY_PASS = "a pass with each pass of the policy"


def view_rows(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """A row per view that is read; named weights are views without a section."""
    through = algorithm.objective.through
    weight_sets = {*algorithm.weight_sets, *map(average_name, algorithm.weight_sets)}
    for name in sorted(algorithm.views_read().keys() - {REFERENCE}):
        section = algorithm.config.objective.views.get(name)
        named = "the weights of update.weight_sets" if name in weight_sets else "the saved weights of that name"
        weights = named if section is None else _view_text(section)
        with_grad = ", and one with gradient" if name in through else ""
        passes = EVERY_PASS if name in algorithm.objective.views_with_logits else _passes_text(section)
        yield f"view {name}", f"{weights}; {passes}{with_grad}"


def frozen_views(config: RunConfig) -> frozenset[str]:
    """The views that are evaluated once per rollout, before its first update."""
    return frozenset(name for name, section in config.objective.views.items() if not _is_moving(section))


def reads_reference(algorithm: Algorithm) -> bool:
    """Whether a step of a run may read the reference, sample with it or move it, at any weight.

    Args:
        algorithm: of the run.

    Returns:
        Whether one may, with the values of any schedule.

    Raises:
        ConfigError: as ``Algorithm.at`` and ``Algorithm.views_read``.
    """
    is_read = algorithm.config.update.reference is not None or bool(algorithm.weight_sets)
    return is_read or compares_with_reference(algorithm)


def compares_with_reference(algorithm: Algorithm) -> bool:
    """``reads_reference`` for a reference that never moves."""
    changes = {step for named in algorithm.config.schedules.values() for step in steps_of_change(named)}
    is_scheduled = any(key.endswith(".kl.beta") for key in algorithm.schedules.keys)
    return is_scheduled or any(_step_reads_reference(algorithm.at(step, Memory())) for step in sorted({0, *changes}))


def _step_reads_reference(algorithm: Algorithm) -> bool:
    config = algorithm.config
    return (
        config.advantage.kl.beta > 0
        or REFERENCE in algorithm.strategy.weights
        or REFERENCE in algorithm.views_read()
        or any(view.weights == REFERENCE for view in config.objective.views.values())
    )


def _view_text(section: ViewConfig) -> str:
    weights = f"weights {section.weights}" if section.policy is None else f"policy {section.policy.name}"
    if section.prompt_template is None:
        return weights
    numbers = ", ".join(f"{name} {value}" for name, value in section.prompt_template.settings.items())
    return f"{weights}, prompt template {section.prompt_template.name}" + (f" ({numbers})" if numbers else "")


def _passes_text(section: ViewConfig | None) -> str:
    if section is not None and not _is_moving(section):
        return "a pass after the rollout"
    return EVERY_PASS


def _is_moving(section: ViewConfig) -> bool:
    return section.policy is None and section.weights in MOVING
