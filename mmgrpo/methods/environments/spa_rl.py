"""SPA-RL, arXiv:2505.20732.

A critic predicts how much each turn contributes to the outcome; the contributions are the rewards of the turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.critics import CRITIC_LOSSES, CriticRows, critic_loss
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.scoped_credit import standardized_among_BS, to_end
from mmgrpo.maths.feedback import Feedback, Scoped
from mmgrpo.system.lazy import torch
from mmgrpo.values import VALUE

if TYPE_CHECKING:
    from torch import Tensor


def last_of_segments(mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """The last kept decision of each segment of a row. Shapes: bool (B, T), integer (B, T) -> bool (B, T)."""
    last_BT = torch.zeros_like(mask_BT)
    following_B = torch.full_like(segment_BT[:, 0], -1)
    for column in reversed(range(mask_BT.shape[1])):
        last_BT[:, column] = mask_BT[:, column] & (segment_BT[:, column] != following_B)
        following_B = segment_BT[:, column].where(mask_BT[:, column], following_B)
    return last_BT


def _one_per_row(rows: CriticRows) -> Tensor:
    return last_of_segments(rows.mask_BT, torch.zeros_like(rows.segment_BT))


@CRITIC_LOSSES.register
@critic_loss(terms=_one_per_row)
def contributions(value_BT: Tensor, rows: CriticRows) -> Tensor:
    """The values at the last decisions of a sample's turns sum to its reward.

    L = (sum_k V_k - r)^2 of each sample, V_k the value at the last decision of turn k; the mean is over samples.

    Shapes: (B, T) -> (B, T), the sample's loss at each of its decisions.   Units: the square of the reward's.
    Source: SPA-RL, arXiv:2505.20732, and its code (WangHanLinHenry/SPA-RL-Agent, prm/train_our_progress_model.py).
    """
    sum_B = value_BT.where(last_of_segments(rows.mask_BT, rows.segment_BT), 0.0).sum(1)
    return (sum_B - rows.reward_B.to(sum_B)).square()[:, None].expand_as(value_BT)


@ESTIMATORS.register
@estimator(turns=True, values=(VALUE,))
def contributions_to_end(
    feedback: Feedback, advantage_BT: Tensor, *, grounding: float = 0.5, eps: float = 1e-4
) -> Tensor:
    """The critic's contributions of the turns, standardized over the group's turns and summed from each to the end.

    A_t = sum_{j >= turn of t} z_j, z = (c + ``grounding`` e - mean) / (std + eps) over all turns of the group's samples
    that a reward applied to, sample std; c is the critic's value at the last decision of the turn, e the environment's
    reward of the turn, 0 without one. It replaces the advantage.

    Units: grounding is reward per reward of the environment; eps in the reward's units.
    Raises: ConfigError if no sample has turns.
    Source: SPA-RL, arXiv:2505.20732, and its code, prm/rl_data_org.py. Deviation: returns are relative to the group, as
        in process supervision (arXiv:2402.03300, sec. 4.1.3), in place of generalized advantages.
    """
    turns = feedback.turns.rewards
    turn_BT = turns.scope_BT.where(feedback.mask_BT, -1)
    last_BT = last_of_segments(turn_BT >= 0, turn_BT)
    index_BT = turn_BT.clamp(min=0)
    value_BS = torch.zeros_like(turns.value_BS, dtype=torch.float64)
    value_BS.scatter_add_(1, index_BT, feedback[VALUE].double().where(last_BT, 0.0))
    value_BS += grounding * turns.value_BS.double().where(turns.valid_BS, 0.0)
    has_turn_BS = torch.zeros_like(turns.valid_BS, dtype=torch.long).scatter_add(1, index_BT, last_BT.long()) > 0
    scores = Scoped(scope_BT=turn_BT, value_BS=value_BS, valid_BS=has_turn_BS & feedback.valid_B[:, None])
    score_BS = standardized_among_BS(scores, feedback.groups, eps).where(scores.valid_BS, 0.0)
    return scores.at_decisions(to_end(score_BS)).to(advantage_BT)
