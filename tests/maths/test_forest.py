"""The forest of states and credit over it: values by hand, path sums, row order, masked columns."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.advantages import group_advantage
from mmgrpo.maths.estimators.tree_credit import along_segments, temporal_difference
from mmgrpo.maths.filters import each_decision_once
from mmgrpo.maths.forest import forest, sampled_states
from mmgrpo.maths.group_stats import standardized_among
from mmgrpo.methods.sampling.branch_grpo import by_depth, shared_once
from mmgrpo.methods.sampling.s_grpo_early_reinforcement import trunk_and_exits
from mmgrpo.methods.sampling.treerpo import siblings
from tests.maths.feedback_rows import feedback_of

ROOT_HALF = 2**-0.5
# a binary tree of depth 2: root 0, nodes 1 and 2, four leaves; V = 0.25 | 0.5, 0 | 1, 0, 0, 0
STATES = [[0, 1], [0, 1], [0, 2], [0, 2]]
REWARDS = [1.0, 0.0, 0.0, 0.0]


def test_nodes_of_a_tree():
    tree = forest(torch.tensor(STATES), torch.ones(4, 2, dtype=torch.bool), torch.zeros(4, dtype=torch.long))
    assert tree.depth_M.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert tree.parent_M.tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert tree.to_BT.tolist() == [[1, 3], [1, 4], [2, 5], [2, 6]]
    value_M = tree.below(torch.tensor(REWARDS, dtype=torch.float64), torch.ones(4, dtype=torch.bool))
    assert value_M.tolist() == [0.25, 0.5, 0.0, 1.0, 0.0, 0.0, 0.0]
    assert tree.sharing().tolist() == [[2, 1], [2, 1], [2, 1], [2, 1]]


def test_depths_are_standardized_separately():
    # depth 1: 0.5, 0 -> +-0.707107; depth 2: (1 - 0.25) / 0.5 = 1.5, -0.5 x 3 (BranchGRPO)
    result_BT = by_depth().assign(feedback_of(REWARDS, [0] * 4, states=STATES), torch.zeros(4, 2))
    expected = [[ROOT_HALF, 1.5], [ROOT_HALF, -0.5], [-ROOT_HALF, -0.5], [-ROOT_HALF, -0.5]]
    torch.testing.assert_close(result_BT, torch.tensor(expected))


def test_siblings_are_compared_with_each_other():
    # below node 1: 1, 0 -> +-0.707107; below node 2 all equal; TreeRPO's 1, 0.5 -> +-0.707107 too
    result_BT = siblings().assign(feedback_of(REWARDS, [0] * 4, states=STATES), torch.zeros(4, 2))
    expected = [[ROOT_HALF, ROOT_HALF], [ROOT_HALF, -ROOT_HALF], [-ROOT_HALF, 0.0], [-ROOT_HALF, 0.0]]
    torch.testing.assert_close(result_BT, torch.tensor(expected))


def test_differences_sum_to_leaf_minus_root():
    result_BT = temporal_difference().assign(feedback_of(REWARDS, [0] * 4, states=STATES), torch.zeros(4, 2))
    torch.testing.assert_close(result_BT, torch.tensor([[0.25, 0.5], [0.25, -0.5], [-0.25, 0.0], [-0.25, 0.0]]))
    torch.testing.assert_close(result_BT.sum(1), torch.tensor(REWARDS) - 0.25)


def test_groups_without_branches_are_chains_from_the_prompt():
    # own noise each: the first decision takes r - mean, the rest nothing; by depth it is the group's advantage
    states, rewards = torch.arange(12).reshape(4, 3).tolist(), [3.0, 1.0, 0.5, 0.0]
    feedback = feedback_of(rewards, [0, 0, 1, 1], states=states)
    result_BT = temporal_difference().assign(feedback, torch.zeros(4, 3))
    torch.testing.assert_close(result_BT[:, 0], torch.tensor([1.0, -1.0, 0.25, -0.25]))
    assert not result_BT[:, 1:].any()
    deep_BT = by_depth().assign(feedback, torch.zeros(4, 3))
    expected_PG = group_advantage(torch.tensor(rewards).reshape(2, 2), eps=1e-8)
    torch.testing.assert_close(deep_BT, expected_PG.reshape(4, 1).expand(4, 3))


def test_members_without_a_reward_are_in_no_value():
    feedback = feedback_of([1.0, math.nan, 0.0, 0.0], [0] * 4, states=STATES, valid=[True, False, True, True])
    # V: root 1/3, nodes 1 and 0
    result_BT = temporal_difference().assign(feedback, torch.zeros(4, 2))
    torch.testing.assert_close(result_BT, torch.tensor([[2 / 3, 0.0], [2 / 3, 0.0], [-1 / 3, 0.0], [-1 / 3, 0.0]]))
    assert siblings().assign(feedback, torch.zeros(4, 2))[:2, 1].tolist() == [0.0, 0.0]


def test_earlier_right_exits_are_better():
    # the first sample leaves the trunk at once, the others after a decision; the last two are right:
    # r' = 0, 1, 1/2, mean 1/2, A = -1/2, 1/2, 0; what the last two share takes their mean, 1/4
    states = [[0, 3, 9], [0, 1, 4], [0, 1, 2]]
    mask = [[1, 1, 0], [1, 1, 1], [1, 1, 1]]
    feedback = feedback_of([0.0, 1.0, 1.0], [0] * 3, states=states, mask=mask)
    result_BT = trunk_and_exits().assign(feedback, torch.zeros(3, 3))
    torch.testing.assert_close(result_BT, torch.tensor([[-0.5, -0.5, 0.0], [0.25, 0.5, 0.5], [0.25, 0.0, 0.0]]))


def test_the_mean_on_the_trunk_leaves_the_sum_over_the_samples():
    # all right: r' = 1, 1/2, 1/4 by how long they stay; A sums to 0 at every depth that all pass
    states = [[0, 1, 2], [0, 1, 3], [0, 4, 5]]
    result_BT = trunk_and_exits().assign(feedback_of([1.0, 1.0, 1.0], [0] * 3, states=states), torch.zeros(3, 3))
    # row 2 leaves first: 1; rows 0 and 1 tie and go by member: 1/2, 1/4; mean 7/12
    a, b, c = 0.5 - 7 / 12, 0.25 - 7 / 12, 1 - 7 / 12
    half = (a + b) / 2
    torch.testing.assert_close(result_BT, torch.tensor([[half, a, a], [half, b, b], [c, c, c]]))
    torch.testing.assert_close(result_BT.sum(0), torch.zeros(3), atol=1e-6, rtol=0)


# row 1 took over two decisions of row 0, row 2 nothing: a branch of two leaves and one of one leaf
RAGGED = [[0, 0, 0, 0], [0, 0, 1, 1], [2, 2, 2, 2]]


def test_a_branch_may_weigh_as_one_however_many_leaves_it_has():
    feedback = feedback_of([1.0, 0.0, 0.0], [0] * 3, sampled_by=RAGGED)
    # V of the branches 1/2 and 0; of the prompt 1/3 over the leaves and 1/4 over the branches
    for mean_of, root in (("leaves", 1 / 3), ("children", 1 / 4)):
        advantage_BT = temporal_difference(mean_of=mean_of).assign(feedback, torch.zeros(3, 4))
        upper, lower = [0.5 - root, 0.0], [0.0 - root, 0.0, 0.0, 0.0]
        torch.testing.assert_close(advantage_BT, torch.tensor([[*upper, 0.5, 0], [*upper, -0.5, 0], lower]))
        upper, lower = [0.5 - root] * 2, [-root] * 4
        result_BT = along_segments().assign(feedback, advantage_BT)
        torch.testing.assert_close(result_BT, torch.tensor([[*upper, 0.5, 0.5], [*upper, -0.5, -0.5], lower]))
    with pytest.raises(ConfigError, match="leaves or its children, not of 'rows'"):
        siblings(mean_of="rows")


def test_segments_of_one_parent_are_compared():
    # two branches of two leaves, 1, 1 and 1, 0: values 1 and 0.5, so +-0.707107, along all of the branch
    sampled_by = [[0, 0, 0], [0, 0, 1], [2, 2, 2], [2, 2, 3]]
    feedback = feedback_of([1.0, 1.0, 1.0, 0.0], [0] * 4, sampled_by=sampled_by)
    advantage_BT = siblings(mean_of="children").assign(feedback, torch.zeros(4, 3))
    result_BT = along_segments().assign(feedback, advantage_BT)
    upper, lower = [ROOT_HALF] * 2, [-ROOT_HALF] * 2
    torch.testing.assert_close(
        result_BT, torch.tensor([[*upper, 0], [*upper, 0], [*lower, ROOT_HALF], [*lower, -ROOT_HALF]])
    )


def test_separately_sampled_equal_decisions_are_separate_nodes():
    # the same states for both rows, as of equal tokens: read from states, they never part; sampled, at the prompt
    states, rewards = [[0, 1], [0, 1]], [1.0, 0.0]
    result = feedback_of(rewards, [0, 0], states=states)
    other = feedback_of(rewards, [0, 0], states=states, sampled_by=[[0, 0], [1, 1]])
    result_BT, sampled_BT = (temporal_difference().assign(feedback, torch.zeros(2, 2)) for feedback in (result, other))
    assert result_BT.tolist() == [[0.0, 0.5], [0.0, -0.5]]
    assert sampled_BT.tolist() == [[0.5, 0.0], [-0.5, 0.0]]
    assert sampled_states(torch.tensor([[0, 0], [0, 1]])).tolist() == [[0, 1], [2, 1]]


def test_each_decision_trains_once():
    keep_BT = each_decision_once().keep(feedback_of([1.0, 0.0, 0.0], [0] * 3, sampled_by=RAGGED), torch.ones(3, 4))
    assert keep_BT.tolist() == [[True] * 4, [False, False, True, True], [True] * 4]
    chains = feedback_of(REWARDS, [0] * 4, states=torch.arange(8).reshape(4, 2).tolist(), mask=[[1, 0]] * 4)
    assert each_decision_once().keep(chains, torch.ones(4, 2)).equal(chains.mask_BT)


def test_without_branches_a_segment_is_the_complete_sample():
    chains = feedback_of([3.0, 1.0], [0, 0], states=torch.arange(6).reshape(2, 3).tolist())
    advantage_BT = temporal_difference(mean_of="children").assign(chains, torch.zeros(2, 3))
    assert along_segments().assign(chains, advantage_BT).tolist() == [[1.0] * 3, [-1.0] * 3]


def test_a_shared_decision_counts_once():
    feedback = feedback_of(REWARDS, [0] * 4, states=STATES)
    result_BT = shared_once().assign(feedback, torch.full((4, 2), 3.0))
    assert result_BT.tolist() == [[1.5, 3.0]] * 4
    chains = feedback_of(REWARDS, [0] * 4, states=torch.arange(8).reshape(4, 2).tolist())
    advantage_BT = torch.randn(4, 2)
    assert torch.equal(shared_once().assign(chains, advantage_BT), advantage_BT)


def test_equal_values_give_exact_zeros():
    value_M = torch.tensor([0.1, 0.1, 0.1, 5.0, math.nan, 2.0], dtype=torch.float64)
    assert standardized_among(value_M, torch.tensor([0, 0, 0, 1, 2, 2]), eps=0.0).tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("estimator", "order"),
    [
        (by_depth(), [3, 5, 0, 2, 4, 1]),
        (siblings(), [3, 5, 0, 2, 4, 1]),
        (temporal_difference(), [3, 5, 0, 2, 4, 1]),
        (shared_once(), [3, 5, 0, 2, 4, 1]),
        (trunk_and_exits(), [4, 0, 1, 5, 2, 3]),  # members that tie go by their order
    ],
)
def test_row_order_and_empty_columns_do_not_change_values(estimator, order):
    states = [*STATES, [5, 6], [5, 7]]
    rewards, groups = [1.0, 0.0, 0.5, 0.25, 1.0, 0.0], [0, 0, 0, 0, 1, 1]

    def result(order: list[int], padded: bool) -> torch.Tensor:
        states_of = [[99, a, 98, b, 97] if padded else [a, b] for a, b in (states[row] for row in order)]
        mask = [[0, 1, 0, 1, 0] if padded else [1, 1]] * 6
        feedback = feedback_of(
            [rewards[row] for row in order], [groups[row] for row in order], states=states_of, mask=mask
        )
        result_BT = estimator.assign(feedback, torch.ones(feedback.mask_BT.shape))
        return result_BT[:, [1, 3]] if padded else result_BT

    torch.testing.assert_close(result(order, True), result(list(range(6)), True)[order])
    torch.testing.assert_close(result(list(range(6)), True), result(list(range(6)), False))


def test_no_kept_decision_is_no_forest():
    feedback = feedback_of([1.0, 0.0], [0, 0], mask=[[0, 0], [0, 0]])
    assert not by_depth().assign(feedback, torch.zeros(2, 2)).any()
    assert not temporal_difference().assign(feedback, torch.zeros(2, 2)).any()
