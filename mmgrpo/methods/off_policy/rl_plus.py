"""RL-PLUS, arXiv:2508.00222.

The ratio of external data is that to a mixture of the behavior policy and an unknown author.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogates import SURROGATES, Surrogate, probability_of, without_bounds

if TYPE_CHECKING:
    from torch import Tensor


@SURROGATES.register
def mixture(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, power: float) -> Surrogate:
    """The ratio to a mixture of the policy that sampled and of an author of which nothing is known.

    l = -A (1 - sg p)^power 2 p / (p_old + w), w = (p_old + 1) / 2, p = exp(logprob), p_old = p / r, sg = no gradient.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; power is dimensionless (0.5), 0 for no factor.
    Source: RL-PLUS, arXiv:2508.00222, and its code (YihongDong/RL-PLUS, ``rlplus_core_alg.py``). For decisions that
        have a probability; the ratio has to be that of the decision.
    """
    probability_BT = probability_of(logprob_BT)
    old_BT = (probability_BT / ratio_BT).detach()
    weight_BT = 2 * probability_BT / (old_BT + (old_BT + 1) / 2)
    unlikely_BT = (1 - probability_BT.detach()).clamp(min=0) ** power
    return without_bounds(-advantage_BT * unlikely_BT * weight_BT)
