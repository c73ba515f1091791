"""What views a run has, and how often it looks at them."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig, ViewConfig
from mmgrpo.config.views import MOVING


def view_rows(algorithm: Algorithm) -> Iterator[tuple[str, str]]:
    """A row for each view that is read beside the weights every run has; kept weights are views without a section."""
    through = algorithm.objective.through
    for name in sorted(algorithm.views_read()):
        section = algorithm.config.views.get(name)
        said = "weights that are kept under the name" if section is None else _described(section)
        yield f"view {name}", f"{said}; {_often(section)}{', and one with gradient' if name in through else ''}"


def still_views(config: RunConfig) -> frozenset[str]:
    """The views that are looked at once, before the first update of a rollout."""
    return frozenset(name for name, section in config.views.items() if not _moves(section))


def _described(section: ViewConfig) -> str:
    whose = f"weights {section.weights}" if section.policy is None else f"policy {section.policy.name}"
    if section.context is None:
        return whose
    numbers = ", ".join(f"{name} {value}" for name, value in section.context.numbers.items())
    return f"{whose}, behind {section.context.name}" + (f" ({numbers})" if numbers else "")


def _often(section: ViewConfig | None) -> str:
    if section is not None and not _moves(section):
        return "a pass after the rollout"
    return "a pass beside each of the policy's"


def _moves(section: ViewConfig) -> bool:
    return section.policy is None and section.weights in MOVING
