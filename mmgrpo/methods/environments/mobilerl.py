"""MobileRL, arXiv:2509.18119.

Of the successful samples of a task those with fewer turns are worth more, and tasks that fail repeatedly are sampled
less and less, and then no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, sample_by_weight
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import column_of
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.memory import Memory
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

NEVER = -1e6
"""Log-weight of prompts that are sampled only if no others are left."""


def _check_shortest_path(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise ConfigError(f"shortest_path needs alpha from 0 to 1, got {alpha}")


@ESTIMATORS.register
@estimator(turns=True, check=_check_shortest_path)
def shortest_path(
    feedback: Feedback, advantage_BT: Tensor, *, alpha: float = 0.5, right: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """Rewards of right samples less a share for turns beyond the shortest right one, standardized over the group.

    A = z(r (1 - alpha (T - T_min) / T)) for r >= ``right``, z(r) for others; T is the number of turns, T_min the
    smallest of the group's right samples, and z = (x - mean) / (std + eps), sample std. It replaces the advantage.

    Units: right and eps in the reward's units; alpha is a share.
    Raises: ConfigError for alpha out of range, and if no sample has turns.
    Source: MobileRL, arXiv:2509.18119, shortest-path reward adjustment.
    """
    turn_BT = feedback.turns.rewards.scope_BT.where(feedback.mask_BT, -1)
    turns_B = (turn_BT.amax(1) + 1).clamp(min=1).double()
    right_B = feedback.valid_B & (feedback.reward_B >= right)
    groups = feedback.groups
    shortest_P1 = groups.matrix(turns_B).where(groups.valid(right_B), torch.inf).amin(1, keepdim=True)
    shortest_B = groups.rows(shortest_P1.expand(groups.valid(right_B).shape))
    share_B = (1 - alpha * (turns_B - shortest_B) / turns_B).where(right_B, 1.0)
    value_B = feedback.reward_B.double() * share_B
    credit_B = standardized_among(value_B.where(feedback.valid_B, torch.nan), feedback.group_B, eps=eps)
    return credit_B[:, None].expand(advantage_BT.shape).to(advantage_BT)


@SAMPLERS.register
def cool_failed(*, patience: int = 2, cooling: int = 3, wrong: float = 0.0) -> PromptSampler:
    """Samples prompts less likely the more visits in a row failed, and after too many of them no more.

    weight = 1 up to f < ``patience`` failed visits in a row, then exp(-f), and 0 from ``patience`` + ``cooling`` on; a
    visit failed if its mean reward is <= ``wrong``. Prompts of weight 0 are sampled only if no others are left.

    Raises: ConfigError for patience below 1, or negative cooling.
    Source: MobileRL, arXiv:2509.18119, failure curriculum filtering: all wrong for two epochs, then three of cooling.
        Deviation: visits are counted, not epochs.
    """
    if patience < 1 or cooling < 0:
        raise ConfigError(f"cool_failed needs patience of 1 or more and cooling >= 0, got {patience} and {cooling}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        failed_N = memory.read("wrong_streak", pool.keys).double()
        log_weight_N = (-failed_N).where(failed_N >= patience, 0.0)
        return sample_by_weight(log_weight_N.where(failed_N < patience + cooling, NEVER), step, num, seed)

    return PromptSampler(draw, (column_of("wrong_streak", {"wrong": wrong}),))
