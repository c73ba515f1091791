"""What a replayed decision can be asked beside its log-probability."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.divergences import GAUSSIAN_DIVERGENCES, LOGPROB_DIVERGENCES
from mmgrpo.values import OLD, Value

from .replay import Replayer


def require_denoising_values(values: Collection[Value], kept: Collection[str]) -> None:
    """Raises ConfigError for a value that drawn denoising steps do not have, or of a view that is not kept."""
    known = {OLD: [*GAUSSIAN_DIVERGENCES]}
    known |= {name: ["logprob", *GAUSSIAN_DIVERGENCES, *LOGPROB_DIVERGENCES] for name in kept}
    for value in values:
        if value.view is None or value.name not in known.get(value.view, ()):
            have = "; ".join(f"of {view}: {', '.join(sorted(names))}" for view, names in known.items())
            raise ConfigError(f"denoising steps have no value {value}: leave out what asks for it; known are {have}")


def value_N(value: Value, now: Replayer, other: Replayer | None, logprob_N: Tensor) -> Tensor:
    """A value of N rows at the decision that was replayed."""
    if value.view == OLD:
        stored = now.stored_moments()
        if stored is None:
            raise ConfigError(f"the rollout kept nothing that {value} takes: name it in Plan.values before it is drawn")
        return now.divergence_N(value.name, stored)
    assert other is not None
    if value.name in GAUSSIAN_DIVERGENCES:
        return now.divergence_N(value.name, other.moments)
    other_N = other.logprob_N()
    return other_N if value.name == "logprob" else LOGPROB_DIVERGENCES[value.name](logprob_N, other_N)
