"""E-GRPO, arXiv:2510.24694.

Wrong answers have a partial reward for the entities of the question's construction that their trace mentions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_partial_matches(weight: float) -> None:
    if weight < 0:
        raise ConfigError(f"partial_matches: weight must not be negative, got {weight}")


@ESTIMATORS.register
@estimator(check=_check_partial_matches)
def partial_matches(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    reward: str,
    weight: float = 0.3,
    right: float = 1.0,
    eps: float = 1e-6,
) -> Tensor:
    """Wrong answers earn a share of the match rate of their trace, relative to the best trace of the group.

    A = z(r'), z = (x - mean) / (std + eps) over the group, sample std. r' = r where r >= ``right``, else
    r + weight v / max_G v, v the reward ``reward`` of the sample, which is 0 where it does not apply, and so is the
    quotient where the maximum is 0.

    Units: right and eps in the reward's units; weight is reward per share of the best match rate.
    Raises: ConfigError for a negative weight, or a reward that the run does not have.
    Source: E-GRPO, arXiv:2510.24694, the entity-aware reward.
    """
    column, groups = feedback.reward(reward), feedback.groups
    rate_B = column.value_B.double().where(column.valid_B & feedback.valid_B, 0.0)
    rate_PG = groups.matrix(rate_B).where(groups.present_PG, 0.0)
    best_PG = rate_PG.amax(1, keepdim=True)
    share_B = groups.rows((rate_PG / best_PG.where(best_PG > 0, 1.0)).clamp(min=0))
    reward_B = feedback.reward_B.double()
    value_B = reward_B.where(reward_B >= right, reward_B + weight * share_B)
    credit_B = standardized_among(value_B.where(feedback.valid_B, torch.nan), feedback.group_B, eps=eps)
    return credit_B[:, None].expand(advantage_BT.shape).to(advantage_BT)
