"""OTC-PO, arXiv:2504.14870.

Right answers are worth the more the closer their number of tool calls is to the smallest that was enough.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_fewest_calls(smooth: float, weight: float) -> None:
    if smooth <= 0 or weight <= 0:
        raise ConfigError(f"fewest_calls needs smooth and weight above 0, got {smooth} and {weight}")


@ESTIMATORS.register
@estimator(turns=True, check=_check_fewest_calls)
def fewest_calls(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    weight: float = 1.0,
    smooth: float = 1.0,
    right: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """Rewards times the efficiency of the tool calls, standardized over the group.

    A = z(weight e(m, n) r), z = (x - mean) / (std + eps), sample std. m counts the sample's turns after its first, each
    of which follows an answer; n is the smallest m of the group's samples with r >= ``right``, or 0 without any.
    e = cos(m pi / (2 m + smooth)) where n = 0, else sin(f pi / (2 n)) with f = 2 n m / (m + n): 1 for m = n.

    Units: smooth in calls; right and eps in the reward's units.
    Raises: ConfigError for numbers that are not above 0, and if no sample has turns.
    Source: OTC-GRPO, arXiv:2504.14870, sec. 4.
    """
    turn_BT = feedback.turns.rewards.scope_BT.where(feedback.mask_BT, -1)
    calls_B = turn_BT.amax(1).clamp(min=0).double()
    fewest_B = _fewest_of_group(calls_B, feedback, right)
    value_B = weight * efficiency(calls_B, fewest_B, smooth) * feedback.reward_B.double()
    credit_B = standardized_among(value_B.where(feedback.valid_B, torch.nan), feedback.group_B, eps=eps)
    return credit_B[:, None].expand(advantage_BT.shape).to(advantage_BT)


def efficiency(calls_B: Tensor, fewest_B: Tensor, smooth: float) -> Tensor:
    """The efficiency of a number of calls, given the smallest number that was enough.

    Shapes: (B,) x 2 -> (B,), from 0 to 1.   Units: calls.   Source: OTC-GRPO, arXiv:2504.14870, sec. 4.
    """
    without_B = torch.cos(calls_B * math.pi / (2 * calls_B + smooth))
    mean_B = 2 * fewest_B * calls_B / (calls_B + fewest_B).clamp(min=1)
    return torch.sin(mean_B * math.pi / (2 * fewest_B.clamp(min=1))).where(fewest_B > 0, without_B)


def _fewest_of_group(calls_B: Tensor, feedback: Feedback, right: float) -> Tensor:
    groups = feedback.groups
    right_PG = groups.valid(feedback.valid_B & (feedback.reward_B >= right))
    fewest_P1 = groups.matrix(calls_B).where(right_PG, torch.inf).amin(1, keepdim=True)
    fewest_P1 = fewest_P1.where(fewest_P1.isfinite(), 0.0)
    return groups.rows(fewest_P1.expand(right_PG.shape))
