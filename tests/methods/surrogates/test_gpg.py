"""GPG: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# mean of -A logprob, A = 0.75, -0.25: (0.75 - 0.5 - 0.75 - 1) / 4
LOSS = (Step(reward=ONE_OF_FOUR, old_logprob=((-1.0,), (-2.0,), (-3.0,), (-4.0,))), -0.375)


def test_loss_of_the_method() -> None:
    assert_loss("gpg", *LOSS)
