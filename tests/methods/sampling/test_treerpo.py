"""TreeRPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of

# branches of values 1 and 0.5: +-0.25 / 0.353553; in the second the leaves 1 and 0: +-0.5 / 0.707107
CREDIT = (
    Step(reward=(1, 1, 1, 0), states=((0, 1, 2), (0, 1, 3), (0, 4, 5), (0, 4, 6))),
    [[0.707107, 0.0, 0.0]] * 2 + [[-0.707107, 0.707107, 0.707107], [-0.707107, -0.707107, -0.707107]],
)


def test_advantages_of_the_method() -> None:
    assert_credit("treerpo", *CREDIT)


def test_each_decision_of_a_tree_trains_once() -> None:
    advantages = advantages_of(config_of("treerpo"), CREDIT[0])
    assert advantages.mask_BT.tolist() == [[True] * 3, [False, True, True], [True] * 3, [False, True, True]]
