"""OORL with GEPO, arXiv:2505.12723.

The mean score of right samples is raised above that of wrong ones, with a penalty on the variance among the right ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.terms import TERMS
from mmgrpo.maths.terms.group_losses import Members, group_loss
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@TERMS.register
@group_loss(score_by="sum_log_ratio", against="reference")
def equivalents(members: Members, *, beta: float = 0.1, variance: float = 1.0, right: float = 0.5) -> Tensor:
    """Right members' mean score above the wrong ones', and the right ones' scores alike.

    L = -log sigmoid(mean_right z - mean_wrong z) + variance var_right z, z = beta s, the variance over n.
    It is 0 in groups without both kinds.

    Units: beta is logits per nat; variance is loss per square logit; right is in the reward's units.
    Source: GEPO of OORL, arXiv:2505.12723, sec. 3.2; its lambda of 1 is ``variance``.
    """
    right_PG = (members.reward_PG > right) & members.present_PG
    wrong_PG = ~right_PG & members.present_PG
    score_PG = beta * members.score_PG

    def mean_P(value_PG: Tensor, of_PG: Tensor) -> Tensor:
        return value_PG.where(of_PG, 0.0).sum(1) / of_PG.sum(1).clamp(min=1)

    better_P = mean_P(score_PG, right_PG)
    distance_P = mean_P((score_PG - better_P[:, None]).square(), right_PG)
    loss_P = variance * distance_P - torch.nn.functional.logsigmoid(better_P - mean_P(score_PG, wrong_PG))
    return loss_P.where(right_PG.any(1) & wrong_PG.any(1), 0.0)
