"""VESPO, arXiv:2602.10693.

The policy gradient is weighted by a smooth function of the ratio: a power times an exponential decay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def vespo(
    ratio_BT: Tensor,
    logprob_BT: Tensor,
    advantage_BT: Tensor,
    *,
    positive_power: float,
    positive_decay: float,
    negative_power: float,
    negative_decay: float,
) -> Surrogate:
    """Policy gradient with a weight that grows as a power of the ratio and then decays exponentially, without a bound.

    l = -A sg(r^k exp(lambda (1 - r))) logprob, k = the power and lambda = the decay of the advantage's sign, sg = no
    gradient. The weight is 1 at ratio 1, largest at r = k / lambda. Meant for the ratio of the trajectory.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats; powers and decays are dimensionless
    (2 and 3 where A >= 0, else 3 and 2).
    Source: VESPO, arXiv:2602.10693; TRL's ``vespo_k_*`` and ``vespo_lambda_*``.
    """
    bad_BT = advantage_BT < 0
    constant_BT = ratio_BT.detach()
    power_BT = torch.full_like(constant_BT, positive_power).masked_fill(bad_BT, negative_power)
    decay_BT = torch.full_like(constant_BT, positive_decay).masked_fill(bad_BT, negative_decay)
    weight_BT = (power_BT * constant_BT.log() + decay_BT * (1 - constant_BT)).exp()
    never_BT = torch.zeros_like(bad_BT)
    return Surrogate(-advantage_BT * weight_BT * logprob_BT, never_BT, never_BT)
