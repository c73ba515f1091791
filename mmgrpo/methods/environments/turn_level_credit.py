"""Turn-level credit, arXiv:2505.11821.

The first turn of a sample that called a tool has the advantage of a reward of the call in addition to the outcome's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(turns=True)
def first_turn(
    feedback: Feedback, advantage_BT: Tensor, *, reward: str, weight: float = 1.0, eps: float = 1e-4
) -> Tensor:
    """The first turn has the advantage of a reward of its tool call in addition to that of the outcome.

    Of two turns or more: A_t <- A_t + weight z(v) in the first turn, unchanged in the others. Of one turn:
    A_t <- z(v + r). z = (x - mean) / (std + eps) over the group, sample std, v the reward ``reward`` and r the combined
    reward; a sample without v has v = 0.

    Units: weight is advantage per standard deviation; eps in the rewards' units.
    Raises: ConfigError for a reward that the run does not have, and if no sample has turns.
    Source: turn-level credit (MT-GRPO), arXiv:2505.11821, and its code (SiliangZeng/Multi-Turn-RL-Agent,
        ``mt_grpo_env_trainer.py``, ``_assign_advantages``).
    """
    turn_BT = feedback.turns.rewards.scope_BT.where(feedback.mask_BT, -1)
    column = feedback.reward(reward)
    of_call_B = column.value_B.double().where(column.valid_B, 0.0)
    call_B = _standardized(of_call_B, feedback, eps)
    both_B = _standardized(of_call_B + feedback.reward_B.double(), feedback, eps)
    credit_BT = advantage_BT + weight * call_B[:, None].to(advantage_BT) * (turn_BT == 0)
    has_called_B = turn_BT.amax(1) > 0
    return credit_BT.where(has_called_B[:, None], both_B[:, None].to(advantage_BT))


def _standardized(value_B: Tensor, feedback: Feedback, eps: float) -> Tensor:
    return standardized_among(value_B.where(feedback.valid_B, torch.nan), feedback.group_B, eps=eps)
