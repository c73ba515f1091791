"""R1-Router: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, assert_credit


def test_turns_are_compared_with_those_of_their_number() -> None:
    """Of both turns the rewards are 1, 0 and 0.5 in some order: mean 0.5, deviation 0.5. The samples earn 0."""
    rows = Step(reward=(0.0, 0.0, 0.0), turns=((1.0, 0.0), (0.0, 0.5), (0.5, 1.0)), keys=[[]] * 3)
    assert_credit("r1-router", rows, [[0.999998, -0.999998], [-0.999998, 0.0], [0.0, 0.999998]])


def test_reward_of_a_turn_is_not_passed_back() -> None:
    """The last turns have the same reward, the first ones 1 and 0: deviation 0.707107."""
    rows = Step(reward=(0.0, 0.0), turns=((1.0, 1.0), (0.0, 1.0)), keys=[[]] * 2)
    assert_credit("r1-router", rows, [[0.707106, 0.0], [-0.707106, 0.0]])
