"""Tree credit: estimators over the forest of states.

In each, a decision takes the value of the node that it led to. They replace the advantage unless they state otherwise;
rewards are not scaled. Where rows continue others, the forest is the sampled one; otherwise rows share a node as long
as they share their states.

Axes: B samples, T decisions, M nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.forest import Forest, forest, sampled_states
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    NodeValue = Callable[[Forest, Tensor, Tensor], Tensor]


def node_value(mean_of: str) -> NodeValue:
    """Values of the nodes of a forest. Raises ConfigError unless it is the mean of ``leaves`` or ``children``."""
    means = {"leaves": Forest.below, "children": Forest.expected}
    if mean_of not in means:
        raise ConfigError(f"the value of a node is the mean of its leaves or its children, not of {mean_of!r}")
    return means[mean_of]


@ESTIMATORS.register
@estimator(check=node_value)
def temporal_difference(feedback: Feedback, advantage_BT: Tensor, *, mean_of: str = "leaves") -> Tensor:
    """The change by a decision of the mean reward of the leaves below, or of the ``children``, as in ``siblings``.

    A = V(node it led to) - V(node it was taken in). Along a sample they sum to r - V(prompt).

    Units: those of the reward.
    Raises: ConfigError unless mean_of is ``leaves`` or ``children``.
    Source: VinePPO, arXiv:2410.01679; SPO's segment advantage, arXiv:2505.23564, where only the segments' first
        states branch: its code (AIFrameResearch/SPO) takes the mean of the children.
    """
    tree = forest_of(feedback)
    value_M = node_value(mean_of)(tree, feedback.reward_B, feedback.valid_B)
    change_M = value_M - value_M[tree.parent_M]
    return tree.at_decisions(change_M.nan_to_num(nan=0.0)).to(advantage_BT)


@ESTIMATORS.register
@estimator()
def along_segments(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """Decisions between two branch points take the advantage of the first of them.

    A_t <- A_s, s the last decision at or before t at which other rows branched, or the sample's first.

    Units: those of the advantage.
    Source: SPO, arXiv:2505.23564, where the tokens of a segment share an advantage; TreeRPO, arXiv:2506.05183, its
        steps.
    """
    tree = forest_of(feedback)
    column_BT = torch.arange(tree.mask_BT.shape[1]).expand_as(tree.mask_BT)
    begins_BT = tree.mask_BT & tree.parts()[tree.to_BT] if len(tree.depth_M) else tree.mask_BT
    first_BT = column_BT.where(begins_BT, 0).cummax(1).values if column_BT.shape[1] else column_BT
    return advantage_BT.gather(1, first_BT).where(tree.mask_BT, 0.0)


def _check_prune_depths(depths: Sequence[int]) -> None:
    if not depths or min(depths) < 1:
        raise ConfigError(f"depths are those of nodes that decisions lead to, from 1 on; got {list(depths)}")


@ESTIMATORS.register
@estimator(check=_check_prune_depths)
def prune_depths(feedback: Feedback, advantage_BT: Tensor, *, depths: Sequence[int]) -> Tensor:
    """Decisions that lead to nodes of these depths earn nothing, and take no forward in the update.

    A_t <- 0 where the depth of the node is among ``depths``; 1 is that of the nodes that first decisions lead to.

    Units: those of the advantage.
    Raises: ConfigError for a depth below 1.
    Source: BranchGRPO's code, ``depth_pruning``. Deviation: its means leave out pruned decisions, here they count as
        zeros.
    """
    tree = forest_of(feedback)
    pruned_BT = torch.isin(tree.at_decisions(tree.depth_M), torch.tensor(depths))
    return advantage_BT.where(~pruned_BT, 0.0)


def _check_prune_width(share: float) -> None:
    if not 0 < share <= 1:
        raise ConfigError(f"prune_width keeps a share above 0 and at most 1, got {share}")


@ESTIMATORS.register
@estimator(check=_check_prune_width)
def prune_width(feedback: Feedback, advantage_BT: Tensor, *, share: float = 0.5) -> Tensor:
    """Below the last split of a sample, only the best and the worst samples of its group keep their advantage.

    A_t <- 0 there except for the k // 2 best and k - k // 2 worst rewards, k = max(2, floor(share n)), n those of a
    group.

    A decision is below the last split if only this sample has its state. The update does not compute pruned decisions.

    Units: those of the advantage.
    Raises: ConfigError for a share that is not within 0 to 1.
    Source: BranchGRPO's code, ``width_pruning_mode`` 2. Deviations: within a group instead of a process's trees; its
        means leave out pruned decisions, here they count as zeros.
    """
    tree, groups = forest_of(feedback), feedback.groups
    valid_PG = groups.valid(feedback.valid_B)
    reward_PG = groups.matrix(feedback.reward_B).where(valid_PG, -torch.inf)
    rank_PG = reward_PG.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    num_P1 = valid_PG.sum(1, keepdim=True)
    num_selected_P1 = (share * num_P1).long().clamp(min=2)
    best_P1 = num_selected_P1 // 2
    extreme_PG = (rank_PG < best_P1) | (rank_PG >= num_P1 - (num_selected_P1 - best_P1))
    left_K = tree.from_BT[tree.mask_BT]
    leaving_M = torch.zeros_like(tree.depth_M).index_add(0, left_K, torch.ones_like(left_K))
    alone_BT = torch.zeros_like(tree.mask_BT)
    alone_BT[tree.mask_BT] = leaving_M[left_K] == 1
    return advantage_BT.where(~alone_BT | groups.rows(extreme_PG)[:, None], 0.0)


def forest_of(feedback: Feedback) -> Forest:
    """The sampled forest if rows continue others, else the one of their states."""
    sampled_by_BT = feedback.sampled_by_BT
    states_BT = feedback.state_BT if sampled_by_BT is None else sampled_states(sampled_by_BT)
    return forest(states_BT, feedback.mask_BT, feedback.group_B)


def node_pairs(first_M: Tensor, second_M: Tensor) -> Tensor:
    """A number for each pair of numbers."""
    return first_M.unique(return_inverse=True)[1] * (int(second_M.max()) + 1 if len(second_M) else 1) + second_M
