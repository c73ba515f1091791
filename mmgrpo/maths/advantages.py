"""Advantages: how much better a sample did than the group it was drawn with.

Rewards come as prompt-major matrices. A reward that does not exist (None) is False in ``valid_PG``: it enters no mean
and no spread, its value is ignored (it may be NaN), and its advantage is 0. A group with fewer than two valid rewards,
or with equal ones, says nothing about its members and gets zeros, exactly.

Whatever is measured over the batch (``batch_scaled_advantage``, ``gdpo_advantage``) is measured over the matrix that
comes in: it has to be the matrix of the whole job, not of one rank.

Axes: P prompts, G group size, R rewards.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def group_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centred on its group and divided by the group's spread.

    A = (r - mean_G r) / (std_G r + eps), std^2 = sum (r - mean_G r)^2 / (n - correction).
    correction is 1 for the sample's spread (TRL, DanceGRPO), 0 for the population's (Flow-GRPO).

    Shapes: (P, G) -> (P, G), G >= 2.   Units: any reward scale -> dimensionless; eps in the reward's units.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: DeepSeekMath, arXiv:2402.03300, sec. 4.1.2. Deviation: eps in the denominator.
    """
    valid_PG = _checked(reward_PG, valid_PG)
    centred_PG = _centred(reward_PG, valid_PG)
    return _divided(centred_PG, _spread(centred_PG, valid_PG, dim=(-1,), correction=correction) + eps)


def batch_scaled_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, eps: float = 1e-4, correction: int = 1
) -> Tensor:
    """Reward centred on its group and divided by the spread of the whole batch.

    A = (r - mean_G r) / (std_PG r + eps): a group of nearly equal rewards is not blown up to unit spread.

    Shapes: (P, G) of the whole batch -> (P, G), G >= 2.   Units: any reward scale -> dimensionless.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: "Tricks or Traps", arXiv:2508.08221; the ``global_std`` of Flow-GRPO, arXiv:2505.05470 (which
    takes correction=0). Deviation: eps in the denominator.
    """
    valid_PG = _checked(reward_PG, valid_PG)
    reward_PG = reward_PG.where(valid_PG, 0.0)
    count = valid_PG.sum().clamp(min=1)
    deviation_PG = (reward_PG - reward_PG.sum() / count).where(valid_PG, 0.0)
    spread = _spread(deviation_PG, valid_PG, dim=(-2, -1), correction=correction)
    return _divided(_centred(reward_PG, valid_PG), spread + eps)


def unscaled_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward centred on its group, in the reward's own units.

    A = r - mean_G r.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: Dr. GRPO, arXiv:2503.20783, sec. 3.2.
    """
    return _centred(reward_PG, _checked(reward_PG, valid_PG))


def leave_one_out_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None) -> Tensor:
    """Reward less the mean of the other members' rewards: an unbiased baseline.

    A_i = r_i - mean_{j != i} r_j = n / (n - 1) * (r_i - mean_G r), n valid rewards in the group.

    Shapes: (P, G) -> (P, G), G >= 2.   Units: those of the reward.
    Raises: ShapeError if not 2-D, G < 2, or valid_PG is not a bool matrix of the same shape.
    Source: RLOO, arXiv:2402.14740; Kool et al. 2019.
    """
    valid_PG = _checked(reward_PG, valid_PG)
    count_P1 = valid_PG.sum(-1, keepdim=True)
    return _centred(reward_PG, valid_PG) * count_P1 / (count_P1 - 1).clamp(min=1)


def gdpo_advantage(
    reward_RPG: Tensor,
    weight_R: Tensor,
    valid_RPG: Tensor | None = None,
    penalty_PG: Tensor | None = None,
    *,
    eps: float = 1e-4,
    correction: int = 0,
) -> Tensor:
    """Each reward standardised within its group, then summed by weight, then standardised over the batch.

    z_r = (r - mean_G r) / (std_G r + eps);   s = sum_r w_r z_r - (p - mean_G p);   A = s / (std_PG s + eps).
    The mean of s over the batch is 0 by construction, so the last step only divides. A reward that does not apply to a
    sample adds nothing to its sum; a sample to which no reward applies is left out of the last spread. p is a penalty
    of the sample itself, which is not standardised: it keeps its size beside the z_r.

    Shapes: (R, P, G) of the whole batch, (R,) -> (P, G), G >= 2.   Units: any reward scales -> dimensionless;
    penalty_PG in standard deviations of a reward within its group.
    Raises: ShapeError if not 3-D, G < 2, weight_R is not (R,), or valid_RPG is not bool of the same shape.
    Source: GDPO, arXiv:2601.05242, sec. 3: eq. 4 (each reward), 7 (weights) and 6 (batch). Its code has eps = 1e-4 in
    both denominators, as here, takes correction=1 (as TRL does), and counts a missing reward as 0.
    """
    valid_RPG = _checked(reward_RPG, valid_RPG, ndim=3)
    if weight_R.shape != reward_RPG.shape[:1]:
        raise ShapeError(f"weight_R must be ({reward_RPG.shape[0]},), one per reward, got {tuple(weight_R.shape)}")
    centred_RPG = _centred(reward_RPG, valid_RPG)
    score_RPG = _divided(centred_RPG, _spread(centred_RPG, valid_RPG, dim=(-1,), correction=correction) + eps)
    total_PG = torch.einsum("r,rpg->pg", weight_R.to(score_RPG), score_RPG)
    valid_PG = valid_RPG.any(0)
    if penalty_PG is not None:
        total_PG = total_PG - _centred(penalty_PG.to(total_PG), valid_PG)
    return _divided(total_PG, _spread(total_PG, valid_PG, dim=(-2, -1), correction=correction) + eps)


def clamp_advantage(advantage: Tensor, *, limit: float) -> Tensor:
    """Advantage held within [-limit, limit].

    Shapes: any -> same.   Units: those of the advantage.   Raises: ConfigError if limit <= 0.
    Source: Flow-GRPO's code, ``adv_clip_max`` = 5 (arXiv:2505.05470).
    """
    if limit <= 0:
        raise ConfigError(f"the advantage limit must be above 0, got {limit}; leave it out to not clamp")
    return advantage.clamp(-limit, limit)


ADVANTAGES: Mapping[str, Callable[..., Tensor]] = MappingProxyType(
    {
        "group": group_advantage,
        "batch": batch_scaled_advantage,
        "none": unscaled_advantage,
        "leave_one_out": leave_one_out_advantage,
    }
)
"""Advantages of a single reward by the name that a method's configuration uses; called with (reward_PG, valid_PG)."""


def _checked(reward: Tensor, valid: Tensor | None, *, ndim: int = 2) -> Tensor:
    axes = "(P, G)" if ndim == 2 else "(R, P, G)"
    if reward.ndim != ndim or reward.shape[-1] < 2 or not reward.is_floating_point():
        raise ShapeError(
            f"rewards must be floating point {axes} with a group of at least 2, got {reward.dtype} "
            f"{tuple(reward.shape)}; raise the group size, or reshape prompt-major"
        )
    if valid is None:
        return torch.ones_like(reward, dtype=torch.bool)
    if valid.shape != reward.shape or valid.dtype != torch.bool:
        raise ShapeError(f"valid must be bool {tuple(reward.shape)}, got {valid.dtype} {tuple(valid.shape)}")
    return valid


def _centred(reward: Tensor, valid: Tensor) -> Tensor:
    """Reward less the mean of its group; 0 where invalid and in groups that say nothing."""
    kept = reward.where(valid, 0.0)
    mean = kept.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    highest = reward.where(valid, -torch.inf).amax(-1, keepdim=True)
    lowest = reward.where(valid, torch.inf).amin(-1, keepdim=True)
    # the mean of equal numbers need not be that number in floating point, and eps would not hide it
    return (kept - mean).where(valid & (highest > lowest), 0.0)


def _divided(deviation: Tensor, scale: Tensor) -> Tensor:
    """Deviations over their scale; 0 where the scale is 0, since then all of them are."""
    return deviation / scale.where(scale > 0, 1.0)


def _spread(deviation: Tensor, valid: Tensor, *, dim: tuple[int, ...], correction: int) -> Tensor:
    """Root mean square of deviations that are 0 where invalid."""
    count = valid.sum(dim, keepdim=True) - correction
    return (deviation.square().sum(dim, keepdim=True) / count.clamp(min=1)).sqrt()
