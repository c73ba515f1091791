"""PROF (process consistency filter), arXiv:2509.03403.

Right samples are kept for high step rewards, wrong ones for low step rewards, as many of each kind as there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import members, require_positive, standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(parts=lambda reward: (reward,), keeps=lambda count: count, check=require_positive)
def consistent_members(
    feedback: Feedback,
    advantage_BT: Tensor,
    *,
    reward: str,
    count: int,
    penalty: float = 10.0,
    most_steps: int = 30,
    right: float = 0.5,
    eps: float = 1e-4,
) -> Tensor:
    """Of the right members those with the best steps train, of the wrong ones those with the worst steps.

    A = (r - mean_S r) / (std_S r + eps) over the S = ``count`` members kept, 0 for the others; it replaces the
    advantage.

    Of both kinds as many are kept, as far as there are. A member's score is the mean of the reward's scores of its
    steps; a single step, or ``most_steps`` of them or more, cost a right member ``penalty`` and give it to a wrong one.

    Units: count is members; penalty in the units of the step scores; right and eps in the reward's. reward is a label.
    Raises: ConfigError for a count below 1.
    Source: PROF, arXiv:2509.03403, algorithm 1, PROF-BOTH; its code is not out. Reading: the advantages are those among
        the members kept. Deviation: eps in the denominator.
    """
    scoped = feedback.scopes(reward)
    steps_B = scoped.valid_BS.sum(1)
    score_B = scoped.value_BS.double().where(scoped.valid_BS, 0.0).sum(1) / steps_B.clamp(min=1)
    right_B = feedback.reward_B >= right
    extreme_B = (steps_B <= 1) | (steps_B >= most_steps)
    # of an odd number, one fewer is kept of the right ones and of the wrong ones, of which the worst are kept
    score_B = score_B - penalty * extreme_B * (2 * right_B.double() - 1)
    keep_B = torch.zeros_like(feedback.valid_B)
    for rows in members(feedback):
        good, bad = rows[right_B[rows]], rows[~right_B[rows]]
        num_good, num_bad = _balanced(len(good), len(bad), count)
        keep_B[good[score_B[good].argsort(descending=True, stable=True)[:num_good]]] = True
        keep_B[bad[score_B[bad].argsort(stable=True)[:num_bad]]] = True
    return standardized_among(feedback, advantage_BT, keep_B, eps=eps)


def _balanced(num_good: int, num_bad: int, count: int) -> tuple[int, int]:
    """The numbers of each kind that make up the count, as even as possible; an odd one is right."""
    keep_good = min(num_good, max(count - count // 2, count - num_bad))
    return keep_good, min(num_bad, count - keep_good)
