"""GRPO-CARE, arXiv:2506.16141.

Right samples get a bonus if their reasoning makes their answer likely under a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, row_mean
from mmgrpo.maths.group_stats import centered_among, standardized_among
from mmgrpo.system.lazy import torch
from mmgrpo.values import of_view

if TYPE_CHECKING:
    from torch import Tensor


def _check_likely_answers(strength: float, margin: float, ceiling: float) -> None:
    if strength < 0 or margin < 0 or not 0 < ceiling <= 1:
        raise ConfigError(
            "likely_answers needs strength >= 0, margin >= 0 and ceiling in (0, 1], got "
            f"{strength}, {margin} and {ceiling}"
        )


@ESTIMATORS.register
@estimator(values=lambda view: (of_view(view),), parts=lambda part: (part,), check=_check_likely_answers)
def likely_answers(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    view: str,
    of: str,
    part: str,
    strength: float = 0.5,
    margin: float = 0.01,
    ceiling: float = 0.95,
    eps: float = 1e-4,
) -> Tensor:
    """A bonus for right samples with reasoning that makes their answer likely in a view; advantages are recomputed with
    it.

    A = (r + b - mean) / (std + eps) over the group, sample std, with b_i = ``strength`` a_i where the sample is
    right by the reward ``of``, a_i > 0.1 and at least the group's mean; and p_i, the geometric mean of the view's
    probabilities over the decisions that the reward ``part`` marks, cut at ``ceiling``, is at least the mean over the
    right ones less ``margin``. A sample without such decisions has no bonus; groups of equal numbers earn nothing.

    Units: any reward scale -> standard deviations; eps in the reward's units.
    Raises: ConfigError for numbers out of range.
    Source: GRPO-CARE, arXiv:2506.16141, and its code (TencentARC/GRPO-CARE, ``grpo_trainer_ref_ema.py``).
    """
    answer_BT = feedback.mask_BT & feedback.view_mask(view) & (feedback.scopes(part).scope_BT >= 0)
    likely_B = row_mean(feedback[of_view(view)], answer_BT).double().exp().clamp(max=ceiling)
    column = feedback.reward(of)
    has_answer_B = feedback.valid_B & column.valid_B & answer_BT.any(1)
    right_B = has_answer_B & (column.value_B > 0.1)
    right_B &= centered_among(column.value_B.where(column.valid_B, torch.nan), feedback.group_B) >= 0
    above_B = centered_among(likely_B.where(right_B, torch.nan), feedback.group_B)
    bonus_B = (strength * column.value_B).where(right_B & (above_B >= -margin), 0.0)
    reward_B = (feedback.reward_B + bonus_B).where(feedback.valid_B, torch.nan)
    return standardized_among(reward_B, feedback.group_B, eps=eps).to(advantage_BT)[:, None].expand_as(advantage_BT)
