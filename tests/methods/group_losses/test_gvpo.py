"""GVPO: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss

# d - mean d = 0.4, -0.3, 0, -0.1; r - mean r = 0.75, -0.25: (0.71^2 + 0.22^2 + 0.25^2 + 0.24^2) / 6
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.1121)


def test_loss_of_the_method() -> None:
    assert_loss("gvpo", *LOSS)
