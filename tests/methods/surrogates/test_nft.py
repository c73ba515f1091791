"""NFT (negative-aware fine-tuning): numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# p = 0.25, times 0.75: right -log 1.1, wrong -log(0.8 / 0.75), the sum over two decisions over 1000, four samples
LOSS = (
    Step(reward=ONE_OF_FOUR, log_ratio=((log(1.1),) * 2, *((log(0.8),) * 2,) * 3)),
    0.75 * 2 * (-log(1.1) - 3 * log(0.8 / 0.75)) / 4000,
)


def test_loss_of_the_method() -> None:
    assert_loss("nft", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("nft")
