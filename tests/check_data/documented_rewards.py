"""Rewards with and without the docstring that a reward needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmgrpo.types import Sample


class Documented:
    """Reward: the same number for every sample.

    Range: 0 to 1.
    Source: of tests.
    Traps: none.
    Example: ``{name: "python:tests.check_data.documented_rewards:Documented", scale: 0.5}``
    """

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [self._scale for _ in samples]


class Undescribed:
    """The same number for every sample."""

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0 for _ in samples]


class UnclosedLiteral:
    """Reward: the same number for ``every sample.

    Range: 0 to 1.
    Source: of tests.
    Traps: none.
    """

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [1.0 for _ in samples]


class WrongExample:
    """Reward: the same number for every sample.

    Range: 0 to 1.
    Source: of tests.
    Traps: none.
    Example: ``{name: "python:tests.check_data.documented_rewards:WrongExample", scal: 0.5}``
    """

    def __init__(self, scale: float = 1.0) -> None:
        self._scale = scale

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [self._scale for _ in samples]


class Untyped:
    """Reward: the same number for every sample.

    Range: 0 to 1.
    Source: of tests.
    Traps: none.
    """

    def __init__(self, scale=1.0) -> None:
        self._scale: Any = scale

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        return [self._scale for _ in samples]
