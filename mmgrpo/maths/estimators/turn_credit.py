"""Credit by turns: estimators that compare the turns of conversations.

Axes: B samples, T decisions, S turns of a sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback, Scoped
from mmgrpo.maths.group_stats import centered_among, standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_same_turns(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ConfigError(f"same_turns: discount must be in [0, 1], got {discount}")


@ESTIMATORS.register
@estimator(turns=True, turn_rewards=True, check=_check_same_turns)
def same_turns(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    weight: float = 1.0,
    discount: float = 0.5,
    right: float | None = 1.0,
    normalize: bool = True,
    eps: float = 1e-6,
) -> Tensor:
    """A turn's return against those of the group's turns of the same number.

    A_t <- A_t + weight (R_k - mean) / (std + eps) over the group's turns of number k, the one that contains token t;
    without the divisor where not ``normalize``. R_k = r_k + discount R_{k + 1}, but R_k = r_k of a turn with r <
    ``right`` (null: never), which also counts as 0 in R_{k - 1}. Sample std; 0 where fewer than two are known, or all
    are equal. A turn without a reward has no return, and counts as 0 in that of the turn before it.

    Units: right and eps in the reward's units.
    Raises: ConfigError for a discount out of range, and if no sample has turns.
    Source: UI-S1, arXiv:2509.11543, and its code (X-PLUG/MobileAgent, UI-S1/uis1/core_uis1.py); Step-GRPO (R1-Router),
        arXiv:2505.22095, with a discount of 0.
    """
    turns = feedback.turns.rewards
    return_BS = returns_until_wrong(turns, discount=discount, right=right)
    return_BS = return_BS.where(feedback.valid_B[:, None], torch.nan)
    S = return_BS.shape[1]
    group_BS = feedback.group_B[:, None] * S + torch.arange(S)
    if normalize:
        score_M = standardized_among(return_BS.flatten(), group_BS.flatten(), eps=eps)
    else:
        score_M = centered_among(return_BS.flatten(), group_BS.flatten())
    return advantage_BT + weight * turns.at_decisions(score_M.reshape(return_BS.shape)).to(advantage_BT)


def returns_until_wrong(turns: Scoped, *, discount: float, right: float | None) -> Tensor:
    """The return of each turn, which ends before the next turn with a reward under ``right``; NaN without a reward.

    Rewards 1, 1, 0.5, 1 at 0.5 give 1.5, 1, 0.5, 1.

    Shapes: -> float64 (B, S).   Units: those of the reward.
    Source: UI-S1's code, ``compute_step_discounted_returns``.
    """
    reward_BS = turns.value_BS.double()
    return_BS, following_B = torch.empty_like(reward_BS), torch.zeros_like(reward_BS[:, 0])
    for turn in reversed(range(reward_BS.shape[1])):
        value_B, valid_B = reward_BS[:, turn], turns.valid_BS[:, turn]
        goes_on_B = valid_B if right is None else valid_B & (value_B >= right)
        following_B = (value_B + discount * following_B).where(goes_on_B, 0.0)
        return_BS[:, turn] = following_B.where(goes_on_B, value_B).where(valid_B, torch.nan)
    return return_BS
