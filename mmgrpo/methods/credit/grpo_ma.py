"""GRPO-MA, arXiv:2509.24494.

Several answers are sampled from each thought, and the nodes of the tree are compared with the group's others of the
same level.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.tree_credit import forest_of, node_pairs
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.maths.strategies import STRATEGIES, Strategy
from mmgrpo.maths.strategies.branch_points import at_text
from mmgrpo.maths.strategies.branching import branching
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def by_level(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-8) -> Tensor:
    """A branch node against the group's other ones with as many branch points above them, in any row.

    A = (V - mean) / (std + eps), V the mean reward of the samples below; 0 where nothing branches, or alone. With
    ``along_segments`` it is that of all decisions up to the next branch point: thoughts against thoughts, and the
    answers after them against all answers.

    Units: any reward scale -> dimensionless; eps in the reward's units.
    Source: GRPO-MA, arXiv:2509.24494: thoughts by the mean reward of their answers, answers among all of a prompt.
    """
    tree = forest_of(feedback)
    value_M = tree.below(feedback.reward_B, feedback.valid_B).where(tree.parts(), torch.nan)
    group_M = node_pairs(tree.group_M, tree.levels())
    return tree.at_decisions(standardized_among(value_M, group_M, eps=eps)).to(advantage_BT)


@STRATEGIES.register
def branch_at_text(*, pattern: str, num: int = 1, factor: int = 2, levels: int = 1) -> Strategy:
    """Trees of rows that branch into ``factor`` after the first ``num`` matches of a regular expression, such as
    ``</think>``.

    In each of ``levels`` rounds, after the next ones; group_size roots and up to
    group_size (1 + num (factor - 1))^levels leaves.

    Units: matches.   Raises: ConfigError for numbers without any branch, or an invalid expression.
    Source: several answers after one thought: GRPO-MA, arXiv:2509.24494.
    """
    return branching(at_text(pattern=pattern), factor=factor, rounds=levels, most=num)
