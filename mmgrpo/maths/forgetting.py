"""Unlearning: makes sampled decisions less likely, so that other ones are sampled next.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

FORGETTING = "forgetting"
"""Name of the weights that have unlearned the samples of this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """The step of plain gradient descent from the current weights to those that sample the further rounds of a step.

    Attributes:
        rate: its size; descends ``forgetting_loss`` of the samples of this step.
        below: mean entropy of these decisions, in nats, under which it is taken; else the weights are the current ones.
        limit: probabilities above 1 - limit are clamped to it.
    """

    rate: float
    below: float
    limit: float

    def __post_init__(self) -> None:
        if not self.rate > 0 or not 0 < self.limit < 1:
            raise ConfigError(f"forgetting needs a rate above 0 and a limit between 0 and 1, got {self}")


def forgetting_loss(logprob_BT: Tensor, mask_BT: Tensor, *, limit: float) -> Tensor:
    """Of each decision -log(1 - p), so that likely ones lose most; 0 where the mask is False.

    p = min(exp logprob, 1 - limit), without gradient where the limit is reached.

    Shapes: (B, T) x 2 -> (B, T).   Units: nats; limit is a probability.
    Source: EEPO, arXiv:2510.05837, its complementary loss.
    """
    probability_BT = logprob_BT.where(mask_BT, -torch.inf).exp().clamp(max=1 - limit)
    return -torch.log1p(-probability_BT).where(mask_BT, 0.0)
