"""Tree-GRPO: numbers of the authors' code, and requests worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import torch

from mmgrpo.maths.strategies import Branch, Setting
from mmgrpo.maths.strategies.branch_points import Row
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, assert_credit
from tests.maths.round_rows import round_of

# two trees: rows 0, 2 and 3 of the first, 1, 4 and 5 of the second; of rewards 1, 0, 0, 1, 1, 0 the advantages of the
# group are +-0.912869, and those of the trees 0.577349 and -1.154699 (mean 2 / 3), or 1.154699 and -0.577349 (1 / 3)
GROUP, HIGH, LOW = 0.912869, 1.154699, 0.577349


def test_advantages_are_sums_of_those_of_the_group_and_of_the_tree() -> None:
    sampled_by = [[0] * 3, [1] * 3, [0, 2, 2], [0, 0, 3], [1, 4, 4], [1, 4, 5]]
    rows = Step(reward=(1, 0, 0, 1, 1, 0), sampled_by=sampled_by)
    credit = [GROUP + LOW, -GROUP - LOW, -GROUP - HIGH, GROUP + LOW, GROUP + HIGH, -GROUP - LOW]
    assert_credit("tree-grpo", rows, [[value] * 3 for value in credit])


def test_advantages_without_branches_are_those_of_the_group() -> None:
    rows = Step(reward=(1, 0, 0, 1, 1, 0))
    assert_credit("tree-grpo", rows, [[value * GROUP] * 2 for value in (1, -1, -1, 1, 1, -1)])


def test_each_tree_grows_from_random_turns() -> None:
    """Of two trees the first has turns at 4 and 9; the second has one turn and does not grow."""
    strategy, setting = strategy_of("tree-grpo"), Setting(step=0, num_prompts=1, group_size=2)
    first = replace(round_of(strategy.ask((), setting), [1, 0]), places_B=[(4, 9), ()])
    requests = strategy.ask([first], setting)
    assert [(request.prompt, request.members) for request in requests] == [(0, (2,)), (0, (3,))]
    assert {request.continues for request in requests} <= {Branch(0, 4), Branch(0, 9)}
    others = {
        branch
        for seed in range(20)
        for branch in (request.continues for request in strategy.ask([first], replace(setting, seed=seed)))
    }
    assert others == {Branch(0, 4), Branch(0, 9)}
    assert strategy.ask([first, round_of(requests, [1, 1])], setting) == ()


def test_turns_of_the_policy_after_the_first_are_branch_points() -> None:
    places = strategy_of("tree-grpo").places
    assert places is not None
    assert places(Row(num_decisions=12, turns=((0, 3), (5, 8), (9, 12)))) == [5, 9]
    assert places(Row(num_decisions=12, begins=5, turns=((0, 3), (5, 8), (9, 12)))) == [9]
    assert places(Row(num_decisions=3, turns=((0, 3),), value_T=torch.zeros(3))) == []
