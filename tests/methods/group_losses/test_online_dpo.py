"""Online DPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import Value
from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss

REFERENCE_LOGPROB = Value("logprob", "reference")
# the best has 0.5, the first of the worst -0.2: log(1 + e^-0.07)
LOSS = (
    Step(reward=ONE_OF_FOUR, log_ratio=SCORED, values={REFERENCE_LOGPROB: [[-1.0, -1.0]] * 4}),
    0.658760,
)


def test_loss_of_the_method() -> None:
    assert_loss("online-dpo", *LOSS)
