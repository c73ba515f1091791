"""E-GRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit


def test_wrong_answers_earn_by_their_matches() -> None:
    """Right, and three wrong ones that match a half, a quarter and none: 1, 0.3, 0.15 and 0.

    The mean is 0.3625, the deviation 0.442295.
    """
    rows = Step(reward=(1.0, 0.0, 0.0, 0.0), named_rewards={"entities": (0.25, 0.5, 0.25, float("nan"))})
    credit = [1.441342, -0.141308, -0.480447, -0.819587]
    assert_credit("e-grpo", rows, [[value] * 2 for value in credit])


def test_groups_without_a_right_answer_train() -> None:
    """0.3 and 0.15: the deviation is 0.106066."""
    rows = Step(reward=(0.0, 0.0), named_rewards={"entities": (1.0, 0.5)})
    assert_credit("e-grpo", rows, [[0.075 / 0.106067] * 2, [-0.075 / 0.106067] * 2])


def test_group_without_a_match_has_no_advantage() -> None:
    assert_credit("e-grpo", Step(reward=(0.0, 0.0), named_rewards={"entities": (0.0, 0.0)}), [[0.0, 0.0], [0.0, 0.0]])
