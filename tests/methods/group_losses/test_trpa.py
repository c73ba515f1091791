"""TRPA (trust region preference approximation): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import Value
from tests.configs.method_steps import Step, assert_loss

REFERENCE_LOGPROB = Value("logprob", "reference")
# scores against the reference 0.4, 0.1, 0, -0.2 of levels 1, 0, 0, -1: the first over each at 0.25 (s - s'), the
# others over the last at 0.1: log(1 + e^-x), x = 0.075, 0.1, 0.15, 0.03, 0.02, that is 0.656350, 0.644397,
# 0.620957, 0.678260, 0.683197 over 5; the policy that sampled is 0.1 away in the first row, a quarter of the
# decisions: 0.001 (e^-0.1 - 1 + 0.1) / 4
LOSS = (
    Step(
        reward=(1.0, 0.0, 0.0, -1.0),
        lengths=[1] * 4,
        old_logprob=((-1.1,), (-1.0,), (-1.0,), (-1.0,)),
        log_ratio=((0.1,), (0.0,), (0.0,), (0.0,)),
        values={REFERENCE_LOGPROB: [[-1.4], [-1.1], [-1.0], [-0.8]]},
    ),
    3.283161 / 5 + 0.001 * 0.0048374 / 4,
)


def test_loss_of_the_method() -> None:
    assert_loss("trpa", *LOSS)
