"""Statistics within groups of rewards, some of which may be missing.

Axes: R rewards, P prompts, G group size.
"""

from __future__ import annotations

from dataclasses import dataclass
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


def centered(reward: Tensor, valid: Tensor) -> Tensor:
    """Reward less the mean of its group; 0 where invalid and in groups that say nothing.

    Shapes: (..., G), bool of the same -> the same.   Units: those of the reward.
    """
    valid_reward = reward.where(valid, 0.0)
    mean = valid_reward.sum(-1, keepdim=True) / valid.sum(-1, keepdim=True).clamp(min=1)
    highest = reward.where(valid, -torch.inf).amax(-1, keepdim=True)
    lowest = reward.where(valid, torch.inf).amin(-1, keepdim=True)
    # the mean of equal numbers need not be that number in floating point, and eps would not hide it
    return (valid_reward - mean).where(valid & (highest > lowest), 0.0)


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


def standardized(reward: Tensor, valid: Tensor, *, eps: float, correction: int) -> Tensor:
    """Reward less the mean of its group, over the group's spread and eps; 0 where ``centered`` is.

    Shapes: (..., G), bool of the same -> the same.   Units: eps in the reward's.
    """
    deviation = centered(reward, valid)
    return divided(deviation, spread(deviation, valid, dim=(-1,), correction=correction) + eps)


@dataclass(frozen=True, slots=True)
class Groups:
    """The rows of each group, side by side; of groups that all have G rows, prompt-major, it is a reshape.

    Attributes:
        index_PG: row of each place; 0 where there is none.
        present_PG: bool, whether there is a row in the place.
    """

    index_PG: Tensor
    present_PG: Tensor

    def matrix(self, value_B: Tensor) -> Tensor:
        """A value of each row by group; in places without a row, another row's.

        Shapes: (..., B) -> (..., P, G).
        """
        return value_B[..., self.index_PG]

    def rows(self, value_PG: Tensor) -> Tensor:
        """The inverse of ``matrix``: entries without a row are dropped.

        Shapes: (..., P, G) -> (..., B).
        """
        value_B = value_PG.new_empty((*value_PG.shape[:-2], int(self.present_PG.sum())))
        value_B[..., self.index_PG[self.present_PG]] = value_PG[..., self.present_PG]
        return value_B

    def valid(self, valid_B: Tensor) -> Tensor:
        """Whether there is a row in the place, and it is valid.

        Shapes: bool (..., B) -> bool (..., P, G).
        """
        return self.matrix(valid_B) & self.present_PG.to(valid_B.device)


def grouped(group_B: Tensor) -> Groups:
    """The groups of rows by their integer identities, in the order in which they first appear, rows in theirs.

    Shapes: integers (B,) -> (P, G) x 2.   Raises: ShapeError if they are no integers of one axis.
    """
    if group_B.ndim != 1 or group_B.is_floating_point():
        raise ShapeError(f"group_B must be integers (B,), got {group_B.dtype} {tuple(group_B.shape)}")
    rows_of: dict[int, list[int]] = {}
    for row, group in enumerate(group_B.tolist()):
        rows_of.setdefault(group, []).append(row)
    G = max((len(rows) for rows in rows_of.values()), default=0)
    index = [rows + [0] * (G - len(rows)) for rows in rows_of.values()]
    present = [[True] * len(rows) + [False] * (G - len(rows)) for rows in rows_of.values()]
    shape = (len(rows_of), G)
    return Groups(torch.tensor(index, dtype=torch.long).reshape(shape), torch.tensor(present).bool().reshape(shape))


def centered_among(value_M: Tensor, group_M: Tensor) -> Tensor:
    """Values less the mean of their group; 0 where fewer than two are known, or all equal. NaN marks an unknown value.

    Shapes: (M,), integer (M,) -> (M,).   Units: those of the value.
    """
    group_M = _dense_ids(group_M)
    return _deviations(value_M, group_M).where(_is_comparable(value_M, group_M), 0.0)


def standardized_among(value_M: Tensor, group_M: Tensor, *, eps: float, least: float = 0.0) -> Tensor:
    """Values centered on their subgroup and divided by its spread; 0 where fewer than two are known, or all equal.

    A = (V - mean) / (std + eps), sample std, 0 where std < least. NaN marks an unknown value.

    Shapes: (M,), integer (M,) -> (M,).   Units: any -> dimensionless; eps and least in the value's units.
    """
    group_M = _dense_ids(group_M)
    centered_M = _deviations(value_M, group_M)
    std_M = (_sum_over_group(centered_M.square(), group_M) / (_count(value_M, group_M) - 1).clamp(min=1)).sqrt()
    differs_M = _is_comparable(value_M, group_M) & (std_M >= least)
    return (centered_M / (std_M + eps).where(differs_M, 1.0)).where(differs_M, 0.0)


def _dense_ids(group_M: Tensor) -> Tensor:
    return group_M.unique(return_inverse=True)[1] if len(group_M) else group_M


def _sum_over_group(each_M: Tensor, group_M: Tensor) -> Tensor:
    return each_M.new_zeros(len(each_M)).index_add(0, group_M, each_M)[group_M]


def _count(value_M: Tensor, group_M: Tensor) -> Tensor:
    return _sum_over_group((~value_M.isnan()).to(value_M), group_M)


def _deviations(value_M: Tensor, group_M: Tensor) -> Tensor:
    is_finite_M = ~value_M.isnan()
    finite_M = value_M.where(is_finite_M, 0.0)
    mean_M = _sum_over_group(finite_M, group_M) / _count(value_M, group_M).clamp(min=1)
    return (finite_M - mean_M).where(is_finite_M, 0.0)


def _is_comparable(value_M: Tensor, group_M: Tensor) -> Tensor:
    """Whether a value is known and those of its group differ: the std of equal numbers need not be 0."""
    limits = [
        value_M.new_full((len(value_M),), -end).scatter_reduce(0, group_M, value_M.nan_to_num(-end), how)[group_M]
        for end, how in ((torch.inf, "amax"), (-torch.inf, "amin"))
    ]
    return ~value_M.isnan() & (limits[0] > limits[1])
