"""DAPO (direct advantage policy optimization): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import VALUE
from tests.configs.method_steps import Step, assert_loss

# better by 0.1 + 0.4 and -0.1 - 0.4 than expected, log-ratios 0.4 and 0: ((0.4 - 0.5)^2 + (0 + 0.5)^2) / 2 over two
LOSS = (
    Step(
        reward=(1.0, 0.0),
        groups=(0, 1),
        log_ratio=((0.3, 0.1), (0.0, 0.0)),
        values={VALUE: [[0.5, 0.6], [0.5, 0.4]]},
    ),
    0.065,
)


def test_loss_of_the_method() -> None:
    assert_loss("direct-advantage-policy-optimization", *LOSS)
