"""TreeRPO, arXiv:2506.05183.

A node is compared with the other nodes that were reached from the same state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.tree_credit import forest_of, node_value
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator(check=node_value)
def siblings(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-8, mean_of: str = "leaves") -> Tensor:
    """A node against the other nodes reached from the same state.

    A = (V - mean) / (std + eps), V the mean reward of the leaves below, or of the node's ``children``, with the means
    of theirs as values. Mean and sample std are over the children of the node's parent; 0 for an only child.

    Units: any reward scale -> dimensionless; eps in the reward's units.
    Raises: ConfigError unless mean_of is ``leaves`` or ``children``.
    Source: TreeRPO, arXiv:2506.05183: groups of one parent, values of children. Its normalization, which is reported to
        differ from GRPO's, is not published in the paper or in code; this is GRPO's.
    """
    tree = forest_of(feedback)
    value_M = node_value(mean_of)(tree, feedback.reward_B, feedback.valid_B)
    group_M = tree.parent_M.where(tree.depth_M > 0, len(tree.parent_M) + torch.arange(len(tree.parent_M)))
    return tree.at_decisions(standardized_among(value_M, group_M, eps=eps)).to(advantage_BT)
