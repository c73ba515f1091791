"""What is measured within groups of rewards, of which some may be missing.

Axes: R rewards, P prompts, G group size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def checked_rewards(reward: Tensor, valid: Tensor | None, *, ndim: int = 2, least: int = 2) -> Tensor:
    """Where rewards exist: ``valid``, or everywhere.

    Shapes: (P, G) or (R, P, G) -> bool, the same.
    Raises: ShapeError if the rewards have other axes, G < least, or valid is not bool of the same shape.
    """
    axes = "(P, G)" if ndim == 2 else "(R, P, G)"
    if reward.ndim != ndim or reward.shape[-1] < least or not reward.is_floating_point():
        raise ShapeError(
            f"rewards must be floating point {axes} with a group of at least {least}, got {reward.dtype} "
            f"{tuple(reward.shape)}; raise the group size, or reshape prompt-major"
        )
    if valid is None:
        return torch.ones_like(reward, dtype=torch.bool)
    if valid.shape != reward.shape or valid.dtype != torch.bool:
        raise ShapeError(f"valid must be bool {tuple(reward.shape)}, got {valid.dtype} {tuple(valid.shape)}")
    return valid


def centred(reward: Tensor, valid: Tensor) -> Tensor:
    """Reward less the mean of its group; 0 where invalid and in groups that say nothing.

    Shapes: (..., G), bool of the same -> the same.   Units: those of the reward.
    """
    kept = reward.where(valid, 0.0)
    mean = kept.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    highest = reward.where(valid, -torch.inf).amax(-1, keepdim=True)
    lowest = reward.where(valid, torch.inf).amin(-1, keepdim=True)
    # the mean of equal numbers need not be that number in floating point, and eps would not hide it
    return (kept - mean).where(valid & (highest > lowest), 0.0)


def divided(deviation: Tensor, scale: Tensor) -> Tensor:
    """Deviations over their scale; 0 where the scale is 0, since then all of them are.

    Shapes: any that go together.
    """
    return deviation / scale.where(scale > 0, 1.0)


def spread(deviation: Tensor, valid: Tensor, *, dim: tuple[int, ...], correction: int) -> Tensor:
    """Root mean square of deviations that are 0 where invalid, over the dimensions ``dim``, which stay as 1.

    correction is taken off the number of values: 1 for the sample's spread, 0 for the population's.

    Shapes: any, bool of the same -> the same with 1 at ``dim``.   Units: those of the deviation.
    """
    count = valid.sum(dim, keepdim=True) - correction
    return (deviation.square().sum(dim, keepdim=True) / count.clamp(min=1)).sqrt()


def standardised(reward: Tensor, valid: Tensor, *, eps: float, correction: int) -> Tensor:
    """Reward less the mean of its group, over the group's spread and eps; 0 where ``centred`` is.

    Shapes: (..., G), bool of the same -> the same.   Units: eps in the reward's.
    """
    deviation = centred(reward, valid)
    return divided(deviation, spread(deviation, valid, dim=(-1,), correction=correction) + eps)
