"""Rewards from an environment."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample


@final
class EnvironmentReturn:
    """Reward: discounted sum of the environment's rewards for the turns of a sample.

    sum_k ``discount``^k r_k over the turns k = 0, 1, ... with a reward. None if no turn has a reward.

    Example: ``{name: environment_return, discount: 0.95}``.
    Settings: ``discount``, factor per turn; below 1 it favors early success.
    Range: that of the summed rewards of ``rollout.environment``.
    Source: designed for mmgrpo; the return of an episode.
    Traps: a truncated turn gets no response and no reward: with a reward only at the end of a game, a sample that does
    not reach the end gets None, and 0 only if the environment returns 0.
    """

    deterministic = True

    def __init__(self, discount: float = 1.0) -> None:
        if not 0 <= discount <= 1 or not math.isfinite(discount):
            raise ConfigError(f"EnvironmentReturn.discount must be in [0, 1], got {discount}")
        self._discount = discount

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [self._total(sample) for sample in samples]

    def _total(self, sample: Sample) -> float | None:
        rewards = [(k, reward) for k, reward in enumerate(sample.turn_rewards) if reward is not None]
        return sum(self._discount**k * reward for k, reward in rewards) if rewards else None
