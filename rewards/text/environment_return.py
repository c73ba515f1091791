"""Rewards of exchanges with an environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample


@final
class EnvironmentReturn:
    """Reward: what the environment gave for the turns of a sample, added up.

    sum_k ``discount``^k r_k over the turns k = 0, 1, ... that it gave a reward for. None where it gave none.

    Example: ``{name: environment_return, discount: 0.95}``.
    Settings: ``discount``, of each turn against the one before it; below 1 it pays to be done early.
    Range: that of the rewards of ``rollout.environment``, added.
    Source: own; the return of an episode.
    Traps: a turn that was cut off is not answered, so it has no reward: a game that pays only at its end gives a sample
    that never came there None where no turn before was paid, and 0 only if the environment says 0.
    """

    deterministic = True

    def __init__(self, discount: float = 1.0) -> None:
        if not 0 <= discount <= 1 or not math.isfinite(discount):
            raise ConfigError(f"EnvironmentReturn.discount must lie in [0, 1], got {discount}")
        self._discount = discount

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._total(sample) for sample in samples]

    def _total(self, sample: Sample) -> float | None:
        rewards = [(k, reward) for k, reward in enumerate(sample.turn_rewards) if reward is not None]
        return sum(self._discount**k * reward for k, reward in rewards) if rewards else None
