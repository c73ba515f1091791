"""Advantages of groups in parts, whose members were shown different prompts, and of several groups taken as one.

The members of a group come in order: the first part, then the next, as the planner ``in_contexts`` asks for them. What
a group is, and what ``valid_PG`` says, is as in ``mmgrpo.maths.advantages``, whose registry holds these functions too.

Axes: P prompts, G group size, K parts of a group, M members of a part, N bundles of prompts, S prompts of a bundle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.centring import centred, checked_rewards, divided, spread
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def group_and_part_advantage(
    reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, eps: float = 1e-6
) -> Tensor:
    """Reward standardised within its group, and within its part of the group, added up.

    A = (r - mean_G r) / (std_G r + eps) + (r - mean_M r) / (std_M r + eps), M the members of the sample's part.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: any reward scale -> dimensionless; eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group, or are of one.
    Source: Share-GRPO (R1-ShareVL), arXiv:2505.16673, and its code (HJYao00/R1-ShareVL, ``core_algos.py``,
        compute_grpo_outcome_advantage): all variants of a question, and each variant.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = _parted(reward_PG, parts), _parted(valid_PG, parts)
    return _standardised(reward_PG, valid_PG, eps) + _standardised(part_PKM, valid_PKM, eps).flatten(1)


def part_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, eps: float = 1e-6) -> Tensor:
    """Reward standardised within its part of the group alone.

    A = (r - mean_M r) / (std_M r + eps), M the members of the sample's part.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: any reward scale -> dimensionless; eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group.
    Source: each expert's samples compared among themselves: MEML-GRPO, arXiv:2508.09670; each paraphrase's: PS-GRPO,
        arXiv:2510.04392.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    return _standardised(_parted(reward_PG, parts), _parted(valid_PG, parts), eps).flatten(1)


def part_baseline_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    baselines: Sequence[float],
    weight: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """Reward standardised within its group, and how far its part of the group lies above what is expected of it.

    A = (r - mean_G r) / (std_G r + eps) + weight (mean_M r - b), M the members of the sample's part, b its baseline. A
    group of equal rewards teaches too.

    Shapes: (P, G) -> (P, G), a part for each of the baselines.   Units: baselines and eps in the reward's.
    Raises: ShapeError as the other advantages; ConfigError for baselines whose number does not divide the group.
    Source: HBPO, arXiv:2507.15844, and its code (ZJU-REAL/HBPO, ``core_algos.py``, compute_grpo_outcome_advantage),
        which adds the second term twice.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = _parted(reward_PG, len(baselines)), _parted(valid_PG, len(baselines))
    mean_PK1 = part_PKM.where(valid_PKM, 0.0).sum(2, keepdim=True) / valid_PKM.sum(2, keepdim=True).clamp(min=1)
    above_PK1 = mean_PK1 - reward_PG.new_tensor(list(baselines))[:, None]
    above_PG = above_PK1.expand_as(part_PKM).where(valid_PKM, 0.0).flatten(1)
    return _standardised(reward_PG, valid_PG, eps) + weight * above_PG


def staged_advantage(reward_PG: Tensor, valid_PG: Tensor | None = None, *, parts: int, alpha: float = 0.5) -> Tensor:
    """Reward less a share of what succeeds from where its answer begins, or later on; then centred on the group.

    A = (r - alpha V) - mean_G (r - alpha V), V the mean reward of the sample's part and of all parts after it: the
    parts begin ever later in one solution, so that these are what goes on from its beginning.

    Shapes: (P, G) -> (P, G), G a multiple of parts.   Units: those of the reward; alpha is dimensionless.
    Raises: ShapeError as the other advantages; ConfigError for parts that do not divide the group.
    Source: Tree-OPO, arXiv:2509.09284, its expectation baseline V(p), of a single trace in place of a tree.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    part_PKM, valid_PKM = _parted(reward_PG.where(valid_PG, 0.0), parts), _parted(valid_PG, parts)
    sum_PK, count_PK = (value_PKM.sum(2).flip(1).cumsum(1).flip(1) for value_PKM in (part_PKM, valid_PKM))
    value_PKM = (sum_PK / count_PK.clamp(min=1))[:, :, None].expand_as(part_PKM)
    return centred(reward_PG - alpha * value_PKM.flatten(1), valid_PG)


def risk_advantage(
    reward_PG: Tensor,
    valid_PG: Tensor | None = None,
    *,
    bundle: int = 5,
    low: float = 0.2,
    high: float = 0.9,
    tail: float = 1.5,
    eps: float = 1e-6,
) -> Tensor:
    """What a sheet of answers, one to each of several prompts, is worth to the middle and the low end of all sheets.

    s = the sum of the rewards of the m-th members of ``bundle`` prompts; q_l and q_h its quantiles over m;
    A = (tail C + R) / (tail + 1) / (std s + eps) / (d + eps), R = ([s - q_l]+ - [s - q_h]+ + q_l - q_h) / (high - low +
    eps), C = -[q_l - s]+ / (low + eps), d = the prompt's own std, or 1 where that is at most 0.001. What is good is 0.

    Shapes: (P, G) of the whole batch -> (P, G), G >= 2; the last bundle may be smaller.   Units: any reward scale ->
    dimensionless; low and high are shares of the sheets.
    Raises: ShapeError as the other advantages; ConfigError unless 0 < low < high <= 1.
    Source: RiskPO, arXiv:2510.00911, and its code (RTkenny/RiskPO, ``core_algos.py``, credit_assign_mode std and
        use_q_track_mode batch). A member that some prompt of the bundle lacks is worth 0.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if bundle < 1 or not 0 < low < high <= 1:
        raise ConfigError(f"a bundle is of prompts, and 0 < low < high <= 1, got {bundle}, {low} and {high}")
    own_P1 = spread(centred(reward_PG, valid_PG), valid_PG, dim=(-1,), correction=1)
    own_P1 = own_P1.where(own_P1 > 1e-3, 1.0) + eps
    sheets = [
        _of_sheets(score_G, whole_G, low=low, high=high, tail=tail, eps=eps).expand_as(reward_SG)
        for reward_SG, valid_SG in zip(reward_PG.split(bundle), valid_PG.split(bundle), strict=True)
        for score_G, whole_G in [(reward_SG.where(valid_SG, 0.0).sum(0), valid_SG.all(0))]
    ]
    return (torch.cat(sheets) / own_P1).where(valid_PG, 0.0)


def _of_sheets(score_G: Tensor, whole_G: Tensor, *, low: float, high: float, tail: float, eps: float) -> Tensor:
    """What each sheet is worth, (G,); 0 where it is not whole, or alone."""
    whole = score_G[whole_G]
    if len(whole) < 2:
        return torch.zeros_like(score_G)
    begin, end = whole.quantile(low), whole.quantile(high)
    middle_G = ((score_G - begin).clamp(min=0) - (score_G - end).clamp(min=0) + begin - end) / (high - low + eps)
    lowest_G = -(begin - score_G).clamp(min=0) / (low + eps)
    worth_G = (tail * lowest_G + middle_G) / (tail + 1) / (whole.std() + eps)
    return worth_G.where(whole_G, 0.0)


def _parted(value_PG: Tensor, parts: int) -> Tensor:
    """(P, K, M), the members of each part side by side."""
    G = value_PG.shape[1]
    if parts < 1 or G % parts:
        raise ConfigError(f"a group of {G} has no {parts} equal parts: choose rollout.group_size as a multiple of them")
    return value_PG.unflatten(1, (parts, G // parts))


def _standardised(reward: Tensor, valid: Tensor, eps: float) -> Tensor:
    """Rewards over the last axis, centred and divided by their spread."""
    deviation = centred(reward, valid)
    return divided(deviation, spread(deviation, valid, dim=(-1,), correction=1) + eps)
