"""Trees: where branches part, the leaves that remain, and their credit after pruning."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.methods.sampling.branch_grpo import at_decisions, evenly
from mmgrpo.splits import Branching, Split
from tests.maths.feedback_rows import feedback_of


def test_branches_part_at_the_decisions_that_are_named() -> None:
    # BranchGRPO's run: 20 steps, of which 19 are sampled, 16 leaves
    tree = at_decisions(19, 16, at=[0, 3, 6, 9], spread=4.0)
    assert tree == tuple(Split(decision=d, factor=2, spread=4.0) for d in (0, 3, 6, 9))


def test_splits_are_even_from_the_first_decision_on() -> None:
    # 4 splits of 20 steps: 20 // 4 = 5 apart; 2 into 3 of 8 steps: 8 // 2 = 4 apart
    assert [split.decision for split in evenly(19, 16)] == [0, 5, 10, 15]
    assert evenly(7, 9, factor=3) == (Split(decision=0, factor=3), Split(decision=4, factor=3))


def test_a_branch_is_as_wide_as_its_leaves() -> None:
    branching = Branching.of((Split(decision=1, factor=2), Split(decision=3, factor=3)))
    # 6 leaves until decision 1 is taken, 3 of each branch until decision 3 is
    assert [branching.width(t) for t in range(-1, 5)] == [6, 6, 3, 3, 1, 1]
    assert [branching.first(leaf, 2) for leaf in range(6)] == [0, 0, 0, 3, 3, 3]
    assert [branching.next(t) for t in (-1, 1, 3)] == [1, 3, None]


@pytest.mark.parametrize(
    ("size", "numbers", "message"),
    [
        (8, {"at": [0, 3]}, "2 splits into 2 has 4 leaves, rollout.group_size is 8"),
        (4, {"at": [3, 0]}, r"increasing decisions of 0 to 8, the stochastic ones; got \[3, 0\]"),
        (4, {"at": [0, 9]}, r"got \[0, 9\]"),
        (4, {"at": [0, 1], "factor": 1}, "got factor 1"),
    ],
)
def test_trees_of_another_size_than_the_group_raise(size: int, numbers: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        at_decisions(9, size, **numbers)


def test_a_group_that_is_no_power_has_no_even_tree() -> None:
    with pytest.raises(ConfigError, match=r"has 2, 4, 8 \.\. leaves, at one decision each of 9; .* is 6"):
        evenly(9, 6)


# Decision 0 parts {0, 1} from {2, 3}, decision 1 each of these; decision 2 is every leaf's own.
STATES = [[0, 1, 2], [0, 1, 5], [0, 7, 8], [0, 7, 11]]


def pruned(name: str, **numbers: object) -> list[list[float]]:
    feedback = feedback_of([0.0, 3.0, 1.0, 2.0], [0] * 4, states=STATES)
    return ESTIMATORS[name](**numbers).assign(feedback, torch.full((4, 3), 5.0)).tolist()


def test_pruned_depths_have_zero_advantage() -> None:
    # depth 2 is that of the nodes that decision 1 leads to
    assert pruned("prune_depths", depths=[2]) == [[5.0, 0.0, 5.0]] * 4
    assert pruned("prune_depths", depths=[1, 3]) == [[0.0, 5.0, 0.0]] * 4
    with pytest.raises(ConfigError, match="from 1 on"):
        ESTIMATORS["prune_depths"](depths=[0])


def test_the_best_and_the_worst_are_left_below_the_last_split() -> None:
    # half of 4 is 2: the best, row 1, and the worst, row 0; the decisions that lead to a split's branches stay
    assert pruned("prune_width", share=0.5) == [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0], [5.0, 5.0, 0.0], [5.0, 5.0, 0.0]]
    # of 3, one of the best and two of the worst
    assert pruned("prune_width", share=0.75)[2:] == [[5.0, 5.0, 5.0], [5.0, 5.0, 0.0]]
    assert pruned("prune_width", share=1.0) == [[5.0] * 3] * 4


def test_rows_without_a_kept_decision_are_no_error() -> None:
    feedback = feedback_of([0.0, 3.0], [0, 0], mask=[[0, 0, 0]] * 2)
    advantage_BT = torch.full((2, 3), 5.0)
    for name, numbers in (("prune_width", {}), ("prune_depths", {"depths": [2]}), ("along_segments", {})):
        assert ESTIMATORS[name](**numbers).assign(feedback, advantage_BT).shape == (2, 3)


def test_an_even_tree_may_part_at_every_decision() -> None:
    assert [split.decision for split in evenly(3, 8)] == [0, 1, 2]
    assert [split.decision for split in evenly(4, 8)] == [0, 1, 2]  # floor(5 / 3) apart
