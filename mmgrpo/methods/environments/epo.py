"""EPO, arXiv:2502.12486.

Every turn of a strategist has its discounted return, relative to the largest of the sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _check_relative_returns(discount: float) -> None:
    if not 0 <= discount <= 1:
        raise ConfigError(f"relative_returns: discount must be in [0, 1], got {discount}")


@ESTIMATORS.register
@estimator(turns=True, turn_rewards=True, unscored=True, check=_check_relative_returns)
def relative_returns(feedback: Feedback, advantage_BT: Tensor, *, discount: float = 0.99) -> Tensor:
    """A turn's discounted return over the largest absolute return of the sample; no sample is compared with another.

    A_t = G_k / max_j |G_j| of the turn k that contains token t, G_k = r_k + discount G_{k + 1}, a turn without a reward
    counts as 0; 0 where all are. It replaces the advantage.

    Units: any reward scale -> -1 to 1.   Raises: ConfigError for a discount out of range, and if no sample has turns.
    Source: EPO, arXiv:2502.12486, and its code (lxqpku/EPO, LLaMA-Factory/data_new/utils/preprocessing.py).
    """
    turns = feedback.turns.rewards
    reward_BS = turns.value_BS.double().where(turns.valid_BS, 0.0)
    return_BS, following_B = torch.empty_like(reward_BS), torch.zeros_like(reward_BS[:, 0])
    for turn in reversed(range(reward_BS.shape[1])):
        following_B = reward_BS[:, turn] + discount * following_B
        return_BS[:, turn] = following_B
    largest_B1 = return_BS.abs().amax(1, keepdim=True)
    return turns.at_decisions(return_BS / largest_B1.where(largest_B1 > 0, 1.0)).to(advantage_BT)
