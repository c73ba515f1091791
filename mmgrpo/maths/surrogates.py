"""Surrogates: the loss of one decision as a function of its ratio, its log-probability and its advantage.

All are called as (ratio_BT, logprob_BT, advantage_BT, *, numbers) and work elementwise, so any matching shapes do. They
are minimized: a positive advantage with a lower loss makes the decision likelier. At ratio 1, inside every bound, each
has the gradient -A * grad logprob, the policy gradient (``sapo`` included); those for off-policy rows
(``mmgrpo.maths.surrogates``) need not. A bound may be a number, or a tensor with one number per decision, as
modulations set it.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


SURROGATES: Registry[Callable[..., Surrogate]] = Registry(arguments=("ratio_BT", "logprob_BT", "advantage_BT"))
"""Surrogates by the name that a method's configuration uses; bind their numbers with functools.partial."""


@SURROGATES.register
def clipped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float) -> Surrogate:
    """The pessimistic one of the ratio and the clipped ratio (PPO, GRPO).

    l = max(-A r, -A clip(r, 1 - low, 1 + high)).

    A bound of exactly 0 meets the ratio of an on-policy update, where both arms of the maximum are equal: PyTorch gives
    each half of the gradient, and the clipped one has none on the bound, so that an on-policy gradient is halved (and
    is all or nothing where rounding moves the ratio off 1). TRL's formula does the same; use a bound above 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; low and high are dimensionless, around 0.2 for
    tokens, 1e-5 to 1e-3 for denoising steps with log-probabilities that are means over the latent.
    Source: PPO, arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476, eq. 10.
    """
    del logprob_BT
    floor, ceiling = bound_like(1 - low, ratio_BT), bound_like(1 + high, ratio_BT)
    bounded_BT = clamped_ratio(ratio_BT, floor, ceiling)
    return Surrogate(
        torch.maximum(-advantage_BT * ratio_BT, -advantage_BT * bounded_BT),
        (ratio_BT < floor) & (advantage_BT < 0),
        (ratio_BT > ceiling) & (advantage_BT > 0),
    )


@SURROGATES.register
def dual_clipped(
    ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float, bound: float
) -> Surrogate:
    """``clipped`` with a ceiling on the loss of decisions that did badly and became much likelier.

    l = max(-A r, -A clip(r, 1 - low, 1 + high));   where A < 0: min(l, -A bound).

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; bound is a ratio, above 1 + high (often 3).
    Source: Ye et al., arXiv:1912.09729, eq. 5.
    """
    base = clipped(ratio_BT, logprob_BT, advantage_BT, low=low, high=high)
    negative_BT = advantage_BT < 0
    capped_BT = torch.minimum(base.loss_BT, -advantage_BT * bound)
    return Surrogate(
        capped_BT.where(negative_BT, base.loss_BT), base.low_BT, base.high_BT | (negative_BT & (ratio_BT > bound))
    )


@SURROGATES.register
def two_sided_clipped(
    ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float, delta: float
) -> Surrogate:
    """``clipped`` with the ratio of the unclipped term capped by delta.

    l = max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)). Equal to ``dual_clipped`` where delta >= 1 + high.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; delta is a ratio, above 1 + high (INTELLECT-2: 4).
    Source: INTELLECT-2, arXiv:2505.07291; TRL's ``delta``.
    """
    del logprob_BT
    floor, ceiling = bound_like(1 - low, ratio_BT), bound_like(1 + high, ratio_BT)
    capped_BT = clamped_ratio(ratio_BT, None, delta)
    bounded_BT = clamped_ratio(ratio_BT, floor, ceiling)
    flat_BT = ((ratio_BT > delta) | (ratio_BT > ceiling)) & (advantage_BT > 0)
    capped_flat_BT = (ratio_BT > delta) & (ratio_BT > ceiling) & (advantage_BT < 0)
    return Surrogate(
        torch.maximum(-advantage_BT * capped_BT, -advantage_BT * bounded_BT),
        (ratio_BT < floor) & (advantage_BT < 0),
        flat_BT | capped_flat_BT,
    )


@SURROGATES.register
def policy_gradient(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor) -> Surrogate:
    """Advantage-weighted log-likelihood, without a ratio.

    l = -A logprob.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats.
    Source: REINFORCE, Williams 1992; GPG, arXiv:2504.02546.
    """
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * logprob_BT, never_BT, never_BT)


@SURROGATES.register
def unclipped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor) -> Surrogate:
    """Importance-weighted advantage, without a bound.

    l = -A r.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage.
    Source: conservative policy iteration's surrogate, PPO, arXiv:1707.06347, eq. 6.
    """
    del logprob_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * ratio_BT, never_BT, never_BT)


def bound_like(limit: float | Tensor, ratio_BT: Tensor) -> float | Tensor:
    """A bound, of the ratio's dtype where it is one for each decision."""
    return limit.to(ratio_BT) if isinstance(limit, torch.Tensor) else limit


def clamped_ratio(ratio_BT: Tensor, floor: float | Tensor | None, ceiling: float | Tensor) -> Tensor:
    """The ratio within bounds, without a gradient at a bound.

    ``clamp`` has all, half or none of the gradient there, by the version of torch and the type of the bound.
    """
    bounded_BT = ratio_BT if floor is None else torch.where(ratio_BT <= floor, floor, ratio_BT)
    return torch.where(bounded_BT >= ceiling, ceiling, bounded_BT)


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Loss of each decision and where a bound acted on it.

    Attributes:
        loss_BT: loss, with grad.
        low_BT: bool, decisions where the lower bound removed the gradient (in ``cispo``: raised the weight).
        high_BT: bool, decisions where an upper bound removed the gradient (in ``cispo``: lowered the weight).
    """

    loss_BT: Tensor
    low_BT: Tensor
    high_BT: Tensor


@SURROGATES.register
def shaped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, gamma: float) -> Surrogate:
    """The ratio, saturating: unlikely decisions move most.

    l = -A r / (r + gamma), with the slope -A gamma / (r + gamma)^2 in r.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; gamma is a ratio (0.1).
    Source: policy shaping of LUFFY, arXiv:2504.14945, on the ratio to the policy that stored the sample: ExGRPO,
        arXiv:2510.02245, and its code (ElliottYan/LUFFY, ``mix_core_alg.py``).
    """
    del logprob_BT
    return without_bounds(-advantage_BT * ratio_BT / (ratio_BT + gamma))


@SURROGATES.register
def shaped_probability(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, gamma: float) -> Surrogate:
    """``shaped`` of the probability itself, for samples without log-probabilities of their author.

    l = -A p / (p + gamma), p = exp(logprob). For decisions that have a probability: a density above 1 counts as 1.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; gamma is a probability (0.1).
    Source: LUFFY, arXiv:2504.14945; Critique-GRPO, arXiv:2506.03106, and its code (zhangxy-2019/critique-GRPO).
    """
    return shaped(probability_of(logprob_BT), ratio_BT, advantage_BT, gamma=gamma)


def probability_of(logprob_BT: Tensor) -> Tensor:
    """exp(logprob), at most 1."""
    return logprob_BT.clamp(max=0).exp()


def without_bounds(loss_BT: Tensor) -> Surrogate:
    """A loss of which no decision is clipped."""
    never_BT = torch.zeros_like(loss_BT, dtype=torch.bool)
    return Surrogate(loss_BT, never_BT, never_BT)
