"""AnytimeReasoner (BRPO): numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.maths.strategies.branch_points import Row
from mmgrpo.methods.credit.anytimereasoner import budget_advantages, over_budgets
from tests.configs.method_steps import config_of
from tests.maths.feedback_rows import feedback_of
from tests.maths.round_rows import round_of


def test_advantages_over_the_budgets() -> None:
    """The numbers of AnytimeReasoner's compute_cot_advantage, worked out by hand: q = (0, 1) and (1, 1), p = 1/2 each.

    The first: R = 1/2 against 3/4; then R = 1/2 less (0 + 1/2) / 2. The second: 1 - 3/4; 1/2 - (1/2 + 1/2) / 2.
    """
    peers = [(0.0, 1.0), (1.0, 1.0)]
    assert [budget_advantages(scores, peers, (0.5, 0.5)) for scores in peers] == [[-0.25, 0.25], [0.25, 0.0]]
    # rows 1 and 4 leave after a decision, row 2 continues where the first thought ended, after three
    sampled_by = [[0] * 5, [0, 1, 1, 1, 1], [0, 0, 0, 2, 2], [3] * 5, [3, 4, 4, 4, 4]]
    feedback = feedback_of([1.0, 0.0, 1.0, 1.0, 1.0], [0] * 5, sampled_by=sampled_by)
    result_BT = over_budgets(at=[1]).assign(feedback, torch.zeros(5, 5))
    expected = [[-0.25, 0.25, 0.25, 0.0, 0.0], [0.0] * 5, [0.0] * 5, [0.25, 0.0, 0.0, 0.0, 0.0], [0.0] * 5]
    torch.testing.assert_close(result_BT, torch.tensor(expected))
    # of two answers at one budget, 1 and 0, each is half a reward from the mean
    feedback = feedback_of([1.0, 1.0, 0.0], [0] * 3, sampled_by=[[0] * 3, [0, 1, 1], [0, 2, 2]])
    result_BT = over_budgets(at=[1]).assign(feedback, torch.zeros(3, 3))
    # q = (1/2, 1), alone in its group: R - R = 0; then 1/2 - (1/2 1/2 + 1/2) / 2 = 1/8
    expected = [[0.0, 0.125, 0.125], [0.5] * 3, [-0.5] * 3]  # what a row took over trains elsewhere
    torch.testing.assert_close(result_BT, torch.tensor(expected))
    (shipped,) = config_of("anytimereasoner").advantage.estimators
    assert shipped.settings == {"at": config_of("anytimereasoner").rollout.strategy.settings["at"]}


def test_thoughts_are_cut_at_the_budgets_and_answered_at_their_end() -> None:
    strategy = Algorithm.of(config_of("anytimereasoner")).strategy
    assert strategy.places is not None
    ends_T = [*range(1, 5001), 5008, 5009, *range(5010, 5400)]
    row = Row(num_decisions=len(ends_T), text="a" * 5000 + "</think>" + "b" * 391, ends_T=ends_T)
    places = strategy.places(row)
    assert places == [2000, 4000, 5001]
    setting = Setting(step=0, num_prompts=1, group_size=1)
    first = replace(round_of(strategy.ask((), setting), [1]), places_B=[places])
    requests = strategy.ask([first], setting)
    branches = [(request.continues, len(request.members)) for request in requests if request.continues]
    assert [(num, branch.after, bool(branch.then)) for branch, num in branches] == [
        (4, 2000, True), (4, 4000, True), (4, 5001, False),
    ]  # fmt: skip


def test_earlier_budgets_count_by_powers_of_two() -> None:
    """Scores 0, 1, 1 at equal weights, alone. s = 2: R = 1/3, V1 = (0 + 2 * 1) / 3 / 3 = 2/9, V2 = 1/3: 1/3 - 7/27."""
    advantages = budget_advantages([0, 1, 1], [[0, 1, 1]], [1 / 3] * 3)
    assert advantages == pytest.approx([0.0, 2 / 9, 2 / 27])


@pytest.mark.parametrize("at", [[], [0, 5], [5, 5], [5, 3]])
def test_budgets_that_do_not_increase_from_one_on_raise(at: list[int]) -> None:
    over_budgets(at=[1, 5])
    with pytest.raises(ConfigError, match="increasing numbers of decisions, from 1 on"):
        over_budgets(at=at)


@pytest.mark.parametrize("weights", [[1.0], [0.0, 0.0], [2.0, -1.0]])
def test_budgets_need_a_weight_each(weights: list[float]) -> None:
    over_budgets(at=[1], weights=[0.0, 0.5])
    with pytest.raises(ConfigError, match="a weight for each of 2 budgets"):
        over_budgets(at=[1], weights=weights)
