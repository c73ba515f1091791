"""Guide-GRPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rows import A_TWO
from tests.configs.method_steps import Step, assert_loss

# a hinted answer that is twice as likely without the hint: (-1.2 A + A) / 2, as far as 0.2 lets it
LOSS = (
    Step(reward=(0, 1), sources=(0, 2), log_ratio=[[0.0], [log(2)]], lengths=[1, 1]),
    -0.2 * A_TWO / 2,
)


def test_loss_of_the_method() -> None:
    assert_loss("guide-grpo", *LOSS)
