"""DNO (direct Nash optimization): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss

# sums 0.5 of the best, -0.2 of the first of the worst: log(1 + e^-0.07)
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.658760)


def test_loss_of_the_method() -> None:
    assert_loss("dno", *LOSS)
