"""APO (asymmetric policy optimization), arXiv:2506.21655.

Wrong samples that are longer than the group's right ones are penalized more, and the divergence of right samples is
scaled down where they are rare.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members
from mmgrpo.maths.group_stats import grouped
from mmgrpo.maths.modulations import ADVANTAGE, MODULATIONS, JobValues, Modulated, detached, modulation
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def concise_failures(feedback: Feedback, advantage_BT: Tensor, *, base: float = 1.00001, right: float = 1.0) -> Tensor:
    """Wrong samples that are longer than the group's right ones get a larger negative advantage.

    A <- A (2 - base^-(n - m)) where r < right and n > m, n the sample's kept decisions and m the mean of them over the
    group's right members; groups without a right one keep A.

    Units: base is per decision (1.00001); right in the reward's units.
    Source: APO, arXiv:2506.21655, suboptimal trajectory complexity regularization, and its code
        (Indolent-Kawhi/View-R1, openrlhf/trainer/ppo_utils/experience_maker.py).
    """
    length_B, factor_B = feedback.length_B.double(), torch.ones_like(feedback.reward_B)
    for rows in members(feedback):
        right_G = feedback.reward_B[rows] >= right
        if bool(right_G.any()):
            excess_G = (length_B[rows] - length_B[rows][right_G].mean()).clamp(min=0)
            factor_B[rows] = (2 - base**-excess_G).where(~right_G, 1.0)
    return advantage_BT * factor_B[:, None].to(advantage_BT)


@MODULATIONS.register
@modulation()
def divergence_by_success(decisions: Decisions, job_values: JobValues, *, right: float = 1.0) -> Modulated:
    """Right samples have a smaller divergence weight the rarer they are in their group.

    divergence = 1 - exp(-e p) where A > 0, p the share of the group that is right, between 0 and 1; else 1.

    Units: right in the reward's units; divergence is a factor of kl_beta.
    Raises: ConfigError if the decisions carry no rewards or no groups.
    Source: APO, arXiv:2506.21655, difficulty-adaptive divergence shaping, and its code (Indolent-Kawhi/View-R1,
        openrlhf/trainer/ray/ppo_actor.py, calculate_kl_weight).
    """
    del job_values
    if decisions.reward_BT is None or decisions.group_BT is None:
        raise ConfigError("divergence_by_success needs reward_BT and group_BT: the rewards and groups of the samples")
    trains_B = decisions.mask_BT.any(1) & ~decisions.reward_BT[:, 0].isnan()
    groups = grouped(decisions.group_BT[:, 0])
    valid_PG = groups.valid(trains_B)
    right_PG = valid_PG & (groups.matrix(decisions.reward_BT[:, 0]) >= right)
    share_PG = (right_PG.sum(1, keepdim=True) / valid_PG.sum(1, keepdim=True).clamp(min=1)).expand(valid_PG.shape)
    share_B1 = groups.rows(share_PG)[:, None]
    applies_BT = (detached(decisions, ADVANTAGE) > 0) & (share_B1 > 0) & (share_B1 < 1)
    factor_BT = (-torch.expm1(-math.e * share_B1)).where(applies_BT, 1.0)
    return Modulated(divergence_BT=factor_BT.to(decisions.logprob_BT.detach()))
