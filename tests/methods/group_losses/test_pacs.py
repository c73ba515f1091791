"""PACS: numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss

# psi 0.533333, -0.4, 0, -0.133333, losses 0.461617, 0.513015, 0.693147, 0.628702 at weights 2 and 2 / 3
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), (2 * 0.461617 + (0.513015 + 0.693147 + 0.628702) / 1.5) / 4)


def test_loss_of_the_method() -> None:
    assert_loss("pacs", *LOSS)
