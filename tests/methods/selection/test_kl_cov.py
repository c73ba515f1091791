"""KL-Cov: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# the first row's c is the highest: its |0.1| joins -1.499997 e^0.1, over four rows
LOSS = (
    Step(
        reward=ONE_OF_FOUR,
        old_logprob=((-1, -1), (-3, -3), (-1, -1), (-3, -3)),
        log_ratio=((0.1, 0.1), (0, 0), (0, 0), (0, 0)),
    ),
    (-1.499997 * 1.1051709 + 3 * 0.499999 + 0.1) / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("kl-cov", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("kl-cov")
