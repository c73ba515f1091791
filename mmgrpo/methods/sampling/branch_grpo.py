"""BranchGRPO, arXiv:2509.06040.

Samples branch at fixed denoising steps, and nodes are compared at the same depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.estimators.tree_credit import forest_of, node_pairs
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.maths.trees import TREES
from mmgrpo.splits import Split

if TYPE_CHECKING:
    from torch import Tensor


@ESTIMATORS.register
@estimator()
def by_depth(feedback: Feedback, advantage_BT: Tensor, *, eps: float = 1e-8, least: float = 1e-6) -> Tensor:
    """A node against the others of its depth in the group.

    A = (V - mean) / (std + eps), V the mean reward of the samples below.
    Mean and sample std are over the group's nodes of that depth; 0 where std < least or the node is the only one.

    Units: any reward scale -> dimensionless; eps and least in the reward's units.
    Source: BranchGRPO, arXiv:2509.06040, and its code (``compute_hierarchical_advantages_by_depth``).
    """
    tree = forest_of(feedback)
    value_M = tree.below(feedback.reward_B, feedback.valid_B)
    group_M = node_pairs(tree.group_M, tree.depth_M)
    return tree.at_decisions(standardized_among(value_M, group_M, eps=eps, least=least)).to(advantage_BT)


@ESTIMATORS.register
@estimator()
def shared_once(feedback: Feedback, advantage_BT: Tensor) -> Tensor:
    """A decision that several samples took counts once: its A is shared among them.

    A_t <- A_t / n_t, n_t the samples that took the decision. It scales the advantage and does not replace it.

    Units: those of the advantage.   Source: BranchGRPO's code, which trains every edge of a tree once.
    """
    return advantage_BT / forest_of(feedback).sharing().clamp(min=1).to(advantage_BT)


@TREES.register("at")
def at_decisions(
    num_decisions: int, group_size: int, *, at: Sequence[int], factor: int = 2, spread: float = 1.0
) -> tuple[Split, ...]:
    """Every branch becomes ``factor`` at each of the decisions ``at``.

    Raises: ConfigError if they are not increasing decisions of the schedule, or factor^n is not the group's size.
    Source: BranchGRPO, arXiv:2509.06040, and its code's ``tree_split_points`` and ``tree_split_noise_scale``.
    """
    if rounds_of(group_size, factor) != len(at):
        raise ConfigError(
            f"a tree of {len(at)} splits into {factor} has {factor ** len(at)} leaves, rollout.group_size is "
            f"{group_size}: change one of them"
        )
    if list(at) != sorted(set(at)) or not 0 <= at[0] <= at[-1] < num_decisions:
        raise ConfigError(
            f"branches must split at increasing decisions of 0 to {num_decisions - 1}, the stochastic ones; got "
            f"{list(at)}"
        )
    return tuple(Split(decision=decision, factor=factor, spread=spread) for decision in at)


@TREES.register
def evenly(num_decisions: int, group_size: int, *, factor: int = 2, spread: float = 1.0) -> tuple[Split, ...]:
    """Every branch becomes ``factor`` at n decisions, floor(N / n) apart from 0 on; n = log_factor(G), N steps.

    Raises: ConfigError if the group's size is no power of the factor, or there are fewer steps than splits.
    Source: BranchGRPO's code, ``tree_split_rounds``.
    """
    rounds = rounds_of(group_size, factor)
    if rounds is None or rounds > num_decisions:
        raise ConfigError(
            f"a tree that parts into {factor} has {factor}, {factor**2}, {factor**3} .. leaves, at one decision each "
            f"of {num_decisions}; rollout.group_size is {group_size}"
        )
    interval = (num_decisions + 1) // rounds
    return at_decisions(
        num_decisions, group_size, at=[index * interval for index in range(rounds)], factor=factor, spread=spread
    )


def rounds_of(group_size: int, factor: int) -> int | None:
    """How often one branch has to part into ``factor`` to make a group; None: never.

    Raises: ConfigError if the factor is below 2.
    """
    if factor < 2:
        raise ConfigError(f"branches part into 2 at least, got factor {factor}")
    rounds, leaves = 0, 1
    while leaves < group_size:
        rounds, leaves = rounds + 1, leaves * factor
    return rounds if leaves == group_size else None
