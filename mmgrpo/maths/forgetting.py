"""What makes drawn decisions less likely, so that others are drawn next.

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
"""Name of weights that have moved away from what was drawn at this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgetting:
    """How the weights that draw further rounds of a step come of those of now: one step of plain gradient descent.

    Attributes:
        rate: its size; descends ``forgetting_loss`` of what was drawn at this step.
        below: mean entropy of these decisions, in nats, under which it is taken; else they are those of now.
        limit: probabilities above 1 - limit count as that.
    """

    rate: float
    below: float
    limit: float

    def __post_init__(self) -> None:
        if not self.rate > 0 or not 0 < self.limit < 1:
            raise ConfigError(f"forgetting needs a rate above 0 and a limit between 0 and 1, got {self}")


def forgetting_loss(logprob_BT: Tensor, mask_BT: Tensor, *, limit: float) -> Tensor:
    """Of each decision -log(1 - p), so that likely ones lose most; 0 where the mask is False.

    p = min(exp logprob, 1 - limit), held where the limit is reached.

    Shapes: (B, T) x 2 -> (B, T).   Units: nats; limit is a probability.
    Source: EEPO, arXiv:2510.05837, its complementary loss.
    """
    probability_BT = logprob_BT.where(mask_BT, -torch.inf).exp().clamp(max=1 - limit)
    return -torch.log1p(-probability_BT).where(mask_BT, 0.0)
