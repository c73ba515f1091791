"""MobileRL, arXiv:2509.18119.

Shorter successes are worth more, tasks that keep failing are sampled less, and earlier successes join the groups.
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


def _check_shortest_path(weight: float) -> None:
    if not 0 <= weight <= 1:
        raise ConfigError(f"shortest_path: weight must be in [0, 1], got {weight}")


@ESTIMATORS.register
@estimator(turns=True, check=_check_shortest_path)
def shortest_path(
    feedback: Feedback, advantage_BT: Tensor, *, weight: float = 1.0, right: float = 1.0, eps: float = 1e-6
) -> Tensor:
    """Rewards of successes shrink with their turns beyond those of the group's shortest success.

    A = z(r (1 - weight (K - K_min) / K)), z = (x - mean) / (std + eps) over the group, sample std; K the turns of the
    sample, K_min the fewest of the group's samples with r >= ``right``. Other samples keep their r.

    Units: right and eps in the reward's units.
    Raises: ConfigError for a weight out of range, and if no sample has turns.
    Source: MobileRL, arXiv:2509.18119, shortest-path reward adjustment.
    """
    turn_BT = feedback.turns.rewards.scope_BT.where(feedback.mask_BT, -1)
    turns_B = (turn_BT.amax(1) + 1).clamp(min=1).double()
    reward_B, groups = feedback.reward_B.double(), feedback.groups
    succeeds_B = feedback.valid_B & (reward_B >= right)
    least_P1 = groups.matrix(turns_B).where(groups.valid(succeeds_B), torch.inf).amin(1, keepdim=True)
    least_B = groups.rows(least_P1.expand(groups.present_PG.shape)).where(succeeds_B, turns_B)
    value_B = reward_B * (1 - weight * (turns_B - least_B) / turns_B)
    credit_B = standardized_among(value_B.where(feedback.valid_B, torch.nan), feedback.group_B, eps=eps)
    return credit_B[:, None].expand(advantage_BT.shape).to(advantage_BT)


@SAMPLERS.register
def fewer_failures(*, after: int = 2, pace: float = 1.0, wrong: float = 0.0) -> PromptSampler:
    """Prompts whose last visits all failed are sampled less often the more of them there were.

    w = exp(-pace max(z - after + 1, 0)), z = visits in a row with a mean reward of at most ``wrong``; sampled without
    replacement within a step.

    Units: visits.   Raises: ConfigError for after < 1 or a negative pace.
    Source: MobileRL, arXiv:2509.18119, failure curriculum filtering. Deviation: a smaller weight in place of a number
        of epochs without the prompt.
    """
    if after < 1 or pace < 0:
        raise ConfigError(f"fewer_failures needs after >= 1 and pace >= 0, got {after} and {pace}")
    streak = column_of("wrong_streak", {"wrong": wrong})

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        streak_N = memory.read("wrong_streak", pool.keys).double()
        return sample_by_weight(-pace * (streak_N - after + 1).clamp(min=0), step, num, seed)

    return PromptSampler(draw, (streak,))
