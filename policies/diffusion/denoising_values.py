"""Values of a replayed decision other than its log-probability."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES
from mmgrpo.values import OLD, Value

from .replay import Replayer


def require_denoising_values(values: Collection[Value], views: Collection[str]) -> None:
    """Raises ConfigError for a value that sampled denoising steps do not have, or of a view without stored weights."""
    names_of = {OLD: [*GAUSSIAN_DIVERGENCES]}
    names_of |= {name: ["logprob", *GAUSSIAN_DIVERGENCES, *LOGPROB_DIVERGENCES] for name in views}
    for value in values:
        if value.view is None or value.name not in names_of.get(value.view, ()):
            supported = "; ".join(f"of {view}: {', '.join(sorted(names))}" for view, names in names_of.items())
            raise ConfigError(f"denoising steps have no value {value}; supported are {supported}")


def value_N(value: Value, current: Replayer, other: Replayer | None, iteration: int) -> Tensor:
    """A value of N rows at a replayed decision."""
    if value.view == OLD:
        stored = current.stored_moments(iteration)
        if stored is None:
            raise ConfigError(f"the rollout stored no means for {value}; add it to Plan.values before sampling")
        return current.divergence_N(value.name, stored, iteration)
    assert other is not None
    if value.name in GAUSSIAN_DIVERGENCES:
        return current.divergence_N(value.name, other.moments(iteration), iteration)
    other_N = other.logprob_N(iteration)
    if value.name == "logprob":
        return other_N
    return LOGPROB_DIVERGENCES[value.name](current.logprob_N(iteration), other_N)
