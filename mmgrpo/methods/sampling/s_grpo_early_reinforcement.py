"""S-GRPO (early exit), arXiv:2505.07686.

One chain of thought is cut off at several positions, and earlier right answers earn more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.tree_credit import forest_of
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import grouped
from mmgrpo.maths.strategies import STRATEGIES, Strategy
from mmgrpo.maths.strategies.branch_points import before_text
from mmgrpo.maths.strategies.branching import branching, require_text
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def trunk_and_exits(feedback: Feedback, advantage_BT: Tensor, *, decay: float = 0.5) -> Tensor:
    """Exits of one chain of thought against each other: the earlier the right one, the better.

    A = r' - mean r' over the thought's answers, r' = decay^(n - 1) for the n-th right exit, else 0.
    Right is r > 0; of a reconstructed forest, a group's samples are one thought's. Exits count in the order in which
    they leave the trunk, the sample that generated it last. A decision of several samples takes the mean of theirs.

    Units: dimensionless.
    Source: S-GRPO, arXiv:2505.07686, as the catalog of ``research/`` has it. Deviation: the mean on the trunk,
        which does not change the sum over the samples.
    """
    tree = forest_of(feedback)
    shared_BT = tree.sharing() > 1
    drew_BT, groups = torch.ones_like(shared_BT), feedback.groups
    if feedback.sampled_by_BT is not None:
        drew_BT = feedback.sampled_by_BT == torch.arange(len(shared_BT))[:, None]
        groups = grouped(feedback.sampled_by_BT[:, 0])
    stays_B = 2 * shared_BT.sum(1) + (shared_BT & drew_BT).any(1)
    right_B = feedback.valid_B & (feedback.reward_B > 0)
    valid_PG = groups.valid(feedback.valid_B)
    right_PG = groups.valid(right_B)
    stay_PG = groups.matrix(stays_B).where(right_PG, 2 * tree.mask_BT.shape[1] + 2)
    rank_PG = stay_PG.argsort(dim=1, stable=True).argsort(dim=1)
    reward_PG = torch.full(rank_PG.shape, decay, dtype=torch.float64).pow(rank_PG).where(right_PG, 0.0)
    mean_P1 = reward_PG.sum(1, keepdim=True) / valid_PG.sum(1, keepdim=True).clamp(min=1)
    advantage_B = groups.rows((reward_PG - mean_P1).where(valid_PG, 0.0))
    mean_M = tree.below(advantage_B, feedback.valid_B)
    return tree.at_decisions(mean_M.nan_to_num(nan=0.0)).to(advantage_BT)


@STRATEGIES.register
def exits(*, num: int, then: str, before: str = "</think>", room: int = 256) -> Strategy:
    """Each row is cut at ``num`` random branch points; a text is appended and a further row continues.

    The text, such as the end of the thought, is forced and never trained. The branch points are before the first
    match of ``before``, and ``room`` or more decisions before the row's end, so that the text and its continuation are
    within the policy's limit too. Group_size rows and up to num more for each.

    Units: branch points; room in decisions. Raises: ConfigError for numbers without any exit, no text, or an invalid
        expression.
    Source: S-GRPO, arXiv:2505.07686: exits of one chain of thought, forced to answer.
    """
    require_text(then)
    places = before_text(pattern=before, room=room)
    return branching(places, factor=2, rounds=1, most=num, among=MANY, then=lambda position: then)


MANY = 2**31
"""More places than a row has."""
