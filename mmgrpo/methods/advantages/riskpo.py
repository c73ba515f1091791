"""RiskPO, arXiv:2510.00911.

The advantage follows a risk measure (middle and lower tail) over bundles of answers to several prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import ADVANTAGES
from mmgrpo.maths.group_stats import centered, checked_rewards, spread
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ADVANTAGES.register("risk")
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
    """The value of a sheet of answers, one to each of several prompts, for the middle and the low end of all sheets.

    s = the sum of the rewards of the m-th members of ``bundle`` prompts; q_l and q_h its quantiles over m;
    A = (tail C + R) / (tail + 1) / (std s + eps) / (d + eps), R = ([s - q_l]+ - [s - q_h]+ + q_l - q_h) / (high - low +
    eps), C = -[q_l - s]+ / (low + eps), d = the prompt's own std, or 1 where that is at most 0.001. A good sheet has 0.

    Shapes: (P, G) of the complete batch -> (P, G), G >= 2; the last bundle may be smaller.   Units: any reward scale ->
    dimensionless; low and high are shares of the sheets.
    Raises: ShapeError as the other advantages; ConfigError unless 0 < low < high <= 1.
    Source: RiskPO, arXiv:2510.00911, and its code (RTkenny/RiskPO, ``core_algos.py``, credit_assign_mode std and
        use_q_track_mode batch). A member that some prompt of the bundle lacks is worth 0.
    """
    valid_PG = checked_rewards(reward_PG, valid_PG)
    if bundle < 1 or not 0 < low < high <= 1:
        raise ConfigError(f"a bundle is of prompts, and 0 < low < high <= 1, got {bundle}, {low} and {high}")
    std_P1 = spread(centered(reward_PG, valid_PG), valid_PG, dim=(-1,), correction=1)
    std_P1 = std_P1.where(std_P1 > 1e-3, 1.0) + eps
    sheets = [
        _of_sheets(score_G, complete_G, low=low, high=high, tail=tail, eps=eps).expand_as(reward_SG)
        for reward_SG, valid_SG in zip(reward_PG.split(bundle), valid_PG.split(bundle), strict=True)
        for score_G, complete_G in [(reward_SG.where(valid_SG, 0.0).sum(0), valid_SG.all(0))]
    ]
    return (torch.cat(sheets) / std_P1).where(valid_PG, 0.0)


def _of_sheets(score_G: Tensor, complete_G: Tensor, *, low: float, high: float, tail: float, eps: float) -> Tensor:
    """The value of each sheet, (G,); 0 where it is incomplete, or the only one."""
    full_score_G = score_G[complete_G]
    if len(full_score_G) < 2:
        return torch.zeros_like(score_G)
    begin, end = full_score_G.quantile(low), full_score_G.quantile(high)
    middle_G = ((score_G - begin).clamp(min=0) - (score_G - end).clamp(min=0) + begin - end) / (high - low + eps)
    lowest_G = -(begin - score_G).clamp(min=0) / (low + eps)
    worth_G = (tail * lowest_G + middle_G) / (tail + 1) / (full_score_G.std() + eps)
    return worth_G.where(complete_G, 0.0)
