"""Surrogates: the loss of one decision as a function of its ratio, its log-probability and its advantage.

All are called as (ratio_BT, logprob_BT, advantage_BT, *, numbers) and work elementwise, so any matching shapes do. They
are minimised: a positive advantage with a lower loss makes the decision likelier. At ratio 1, inside every bound, each
has the gradient -A * grad logprob, the policy gradient (``sapo`` included); those for samples of others
(``mmgrpo.maths.foreign_surrogates``) need not. Where a bound is a number, a tensor of one for each decision does too,
which is what modulations give.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmgrpo.maths.foreign_surrogates import mixture, nft, shaped, shaped_probability
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.surrogate import Surrogate as Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def clipped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float) -> Surrogate:
    """The pessimistic one of the ratio and the clipped ratio (PPO, GRPO).

    l = max(-A r, -A clip(r, 1 - low, 1 + high)).

    A bound of exactly 0 meets the ratio of an on-policy update, where both arms of the maximum are equal: PyTorch gives
    each half of the gradient, and the clipped one has none on the bound, so that an on-policy gradient is halved (and
    is all or nothing where rounding moves the ratio off 1). TRL's formula does the same; use a bound above 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; low and high are dimensionless, around 0.2 for
    tokens, 1e-5 to 1e-3 for denoising steps whose log-probability is a mean over the latent.
    Source: PPO, arXiv:1707.06347, eq. 7; separate bounds: DAPO, arXiv:2503.14476, eq. 10.
    """
    del logprob_BT
    floor, ceiling = _limit(1 - low, ratio_BT), _limit(1 + high, ratio_BT)
    bounded_BT = _held(ratio_BT, floor, ceiling)
    return Surrogate(
        torch.maximum(-advantage_BT * ratio_BT, -advantage_BT * bounded_BT),
        (ratio_BT < floor) & (advantage_BT < 0),
        (ratio_BT > ceiling) & (advantage_BT > 0),
    )


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


def two_sided_clipped(
    ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float, delta: float
) -> Surrogate:
    """``clipped`` with the ratio of the unclipped term capped by delta.

    l = max(-A min(r, delta), -A clip(r, 1 - low, 1 + high)). Equal to ``dual_clipped`` where delta >= 1 + high.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; delta is a ratio, above 1 + high (INTELLECT-2: 4).
    Source: INTELLECT-2, arXiv:2505.07291; TRL's ``delta``.
    """
    del logprob_BT
    floor, ceiling = _limit(1 - low, ratio_BT), _limit(1 + high, ratio_BT)
    capped_BT = _held(ratio_BT, None, delta)
    bounded_BT = _held(ratio_BT, floor, ceiling)
    flat_BT = ((ratio_BT > delta) | (ratio_BT > ceiling)) & (advantage_BT > 0)
    capped_flat_BT = (ratio_BT > delta) & (ratio_BT > ceiling) & (advantage_BT < 0)
    return Surrogate(
        torch.maximum(-advantage_BT * capped_BT, -advantage_BT * bounded_BT),
        (ratio_BT < floor) & (advantage_BT < 0),
        flat_BT | capped_flat_BT,
    )


def policy_gradient(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor) -> Surrogate:
    """Advantage-weighted log-likelihood, without a ratio.

    l = -A logprob.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats.
    Source: REINFORCE, Williams 1992; GPG, arXiv:2504.02546.
    """
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * logprob_BT, never_BT, never_BT)


def one_sided(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float) -> Surrogate:
    """Advantage-weighted log-likelihood that stops where the ratio has gone past a bound on the side of the gain.

    l = -A logprob where (A >= 0 and r <= 1 + high) or (A <= 0 and r >= 1 - low), else 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats; low and high are dimensionless.
    Source: REC-OneSide without importance weights, arXiv:2509.24203, and its code (modelscope/Trinity-RFT,
    trinity/algorithm/policy_loss_fn/rec_policy_loss.py, ``clip_mode: one-side``).
    """
    floor, ceiling = _limit(1 - low, ratio_BT), _limit(1 + high, ratio_BT)
    low_BT = (ratio_BT.detach() < floor) & (advantage_BT < 0)
    high_BT = (ratio_BT.detach() > ceiling) & (advantage_BT > 0)
    loss_BT = (-advantage_BT * logprob_BT).where(~(low_BT | high_BT), 0.0)
    return Surrogate(loss_BT, low_BT, high_BT)


def cispo(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float | None, high: float) -> Surrogate:
    """Policy gradient weighted by the bounded ratio: every decision keeps a gradient.

    l = -A sg(clip(r, 1 - low, 1 + high)) logprob, sg = no gradient.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage times nats; low=None leaves small ratios as they are.
    Source: MiniMax-M1 (CISPO), arXiv:2506.13585, eq. 4. TRL's ``epsilon_high`` is the absolute cap, 1 + high here.
    """
    floor = None if low is None else _limit(1 - low, ratio_BT)
    weight_BT = _held(ratio_BT.detach(), floor, _limit(1 + high, ratio_BT))
    counts_BT = advantage_BT != 0
    return Surrogate(
        -advantage_BT * weight_BT * logprob_BT,
        (weight_BT > ratio_BT) & counts_BT,
        (weight_BT < ratio_BT) & counts_BT,
    )


def sapo(
    ratio_BT: Tensor,
    logprob_BT: Tensor,
    advantage_BT: Tensor,
    *,
    positive_temperature: float,
    negative_temperature: float,
) -> Surrogate:
    """A smooth gate in place of the clip: the gradient fades as the ratio leaves 1, and nowhere stops.

    l = -A (4 / tau) sigmoid(tau (r - 1)), tau = positive_temperature where A > 0, else negative_temperature.
    There is no bound, so none is reported.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; temperatures are dimensionless (1.0 and 1.05).
    Source: SAPO, arXiv:2511.20347, eqs. 5-6.
    """
    del logprob_BT
    temperature_BT = torch.full_like(ratio_BT, negative_temperature).masked_fill(advantage_BT > 0, positive_temperature)
    gate_BT = torch.sigmoid(temperature_BT * (ratio_BT - 1)) * 4 / temperature_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * gate_BT, never_BT, never_BT)


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
    """Policy gradient whose weight grows as a power of the ratio and then decays exponentially: no bound, no cliff.

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


def unclipped(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor) -> Surrogate:
    """Importance-weighted advantage, without a bound.

    l = -A r.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage.
    Source: conservative policy iteration's surrogate, PPO, arXiv:1707.06347, eq. 6.
    """
    del logprob_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(-advantage_BT * ratio_BT, never_BT, never_BT)


def gppo(
    ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, low: float, high: float, bound: float | None = None
) -> Surrogate:
    """``clipped`` whose bounds hold the ratio and keep its gradient, scaled to the bound.

    l = max(-A r, -A r sg(clip(r, 1 - low, 1 + high) / r)), sg = no gradient.
    Where A < 0 and there is a bound it is min(l, -A bound), which has none. Flags mark where a bound acted.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; bound is a ratio, above 1 + high, None for none.
    Source: Klear-Reasoner (GPPO), arXiv:2508.07629, and its code (suu990901/KlearReasoner, ``compute_gppo_loss``).
    """
    del logprob_BT
    floor, ceiling = _limit(1 - low, ratio_BT), _limit(1 + high, ratio_BT)
    held_BT = _held(ratio_BT, floor, ceiling).detach()
    inside_BT = held_BT == ratio_BT
    kept_BT = ratio_BT.where(inside_BT, held_BT * (ratio_BT / ratio_BT.detach()))
    loss_BT = torch.maximum(-advantage_BT * ratio_BT, -advantage_BT * kept_BT)
    low_BT, high_BT = (ratio_BT < floor) & (advantage_BT < 0), (ratio_BT > ceiling) & (advantage_BT > 0)
    if bound is None:
        return Surrogate(loss_BT, low_BT, high_BT)
    negative_BT = advantage_BT < 0
    capped_BT = torch.minimum(loss_BT, -advantage_BT * bound)
    return Surrogate(capped_BT.where(negative_BT, loss_BT), low_BT, high_BT | (negative_BT & (ratio_BT > bound)))


def spo(ratio_BT: Tensor, logprob_BT: Tensor, advantage_BT: Tensor, *, eps: float) -> Surrogate:
    """A parabola in place of the clip: beyond 1 + eps on the side of the gain it pulls back.

    l = -(A r - |A| (r - 1)^2 / (2 eps)), lowest at r = 1 + eps sign A. There is no bound, so none is reported.

    Shapes: (B, T) x 3 -> (B, T).   Units: those of the advantage; eps is dimensionless (0.2).
    Source: Simple Policy Optimization, arXiv:2401.16025.
    """
    del logprob_BT
    loss_BT = advantage_BT.abs() * (ratio_BT - 1) ** 2 / (2 * eps) - advantage_BT * ratio_BT
    never_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    return Surrogate(loss_BT, never_BT, never_BT)


def _limit(limit: float | Tensor, ratio_BT: Tensor) -> float | Tensor:
    """A bound, of the ratio's dtype where it is one for each decision."""
    return limit.to(ratio_BT) if isinstance(limit, torch.Tensor) else limit


def _held(ratio_BT: Tensor, floor: float | Tensor | None, ceiling: float | Tensor) -> Tensor:
    """The ratio within bounds, without a gradient at a bound.

    ``clamp`` has all, half or none of the gradient there, by the version of torch and the type of the bound.
    """
    bounded_BT = ratio_BT if floor is None else torch.where(ratio_BT <= floor, floor, ratio_BT)
    return torch.where(bounded_BT >= ceiling, ceiling, bounded_BT)


SURROGATES: Registry[Callable[..., Surrogate]] = Registry(
    {
        "clipped": clipped,
        "dual_clipped": dual_clipped,
        "two_sided_clipped": two_sided_clipped,
        "policy_gradient": policy_gradient,
        "one_sided": one_sided,
        "cispo": cispo,
        "sapo": sapo,
        "vespo": vespo,
        "unclipped": unclipped,
        "gppo": gppo,
        "spo": spo,
        "nft": nft,
        "shaped": shaped,
        "shaped_probability": shaped_probability,
        "mixture": mixture,
    }
)
"""Surrogates by the name that a method's configuration uses; bind their numbers with functools.partial."""
