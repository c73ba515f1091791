"""A temperature schedule along a completion: later tokens are sampled at a lower temperature."""

from __future__ import annotations

import math

from pydantic import Field

from mmgrpo.config.sections import Section


class TemperatureSchedule(Section):
    """Factor on the temperature of a token at sampling: 1 + high - exp(t / pace), at least low.

    t counts the tokens before it; the factor is 1 for the first ``after`` tokens.
    Source: Yang et al., arXiv:2510.05251, exploratory annealed decoding, and its code (yangalan123/EAD-RLVR,
    verl/workers/rollout/vllm_rollout/annealed_sampling.py, ``negexp``).
    """

    high: float = Field(default=1.2, gt=0, description="initial factor of the schedule")
    low: float = Field(default=0.1, gt=0, description="minimum of the factor")
    pace: float = Field(default=500.0, gt=0, description="number of tokens after which the factor has fallen by e - 1")
    after: int = Field(default=10, ge=0, description="number of first tokens with factor 1")

    def factor(self, t: int) -> float:
        """The factor of the token after t tokens."""
        return 1.0 if t < self.after else max(1 + self.high - math.exp(min(t / self.pace, 99.0)), self.low)
