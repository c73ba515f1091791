"""The contract between the engine and anything that judges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from mmgrpo.types import Sample


@runtime_checkable
class Reward(Protocol):
    """Judges samples; sees whole groups, so a score may compare a sample with its siblings.

    Returns one number per sample, in order; None where the reward does not apply. It may raise: the samples it was
    given then count as failed, never as zero.
    """

    def __call__(self, samples: Sequence[Sample], /) -> Sequence[float | None]: ...
