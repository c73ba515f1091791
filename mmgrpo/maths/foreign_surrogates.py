"""Surrogates for samples of others, and of a likelihood rather than a ratio: on policy they are no policy gradient.

Called as those of ``mmgrpo.maths.surrogates``, which names them all.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.surrogate import Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def shaped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, gamma: float) -> Surrogate:
    """The ratio, saturating: unlikely decisions move most.

    l = -A r / (r + gamma), whose slope in r is -A gamma / (r + gamma)^2.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; gamma is a ratio (0.1).
    Source: policy shaping of LUFFY, arXiv:2504.14945, on the ratio to the policy that stored the sample: ExGRPO,
        arXiv:2510.02245, and its code (ElliottYan/LUFFY, ``mix_core_alg.py``).
    """
    del logprob_BT
    return unclipped(-advantage_BT * ratio_BT / (ratio_BT + gamma))


def shaped_probability(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, gamma: float) -> Surrogate:
    """``shaped`` of the probability itself, for samples whose author's probabilities are not known.

    l = -A p / (p + gamma), p = exp(logprob). For decisions that have a probability: a density above 1 counts as 1.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; gamma is a probability (0.1).
    Source: LUFFY, arXiv:2504.14945; Critique-GRPO, arXiv:2506.03106, and its code (zhangxy-2019/critique-GRPO).
    """
    return shaped(probability_of(logprob_BT), ratio_BT, advantage_BT, gamma=gamma)


def probability_of(logprob_BT: Tensor) -> Tensor:
    return logprob_BT.clamp(max=0).exp()


def unclipped(loss_BT: Tensor) -> Surrogate:
    never_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
    return Surrogate(loss_BT, never_BT, never_BT)
