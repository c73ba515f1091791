"""AMPO: numbers worked out by hand."""

from __future__ import annotations

from math import log

from tests.configs.method_rounds import assert_answers_replace_failures
from tests.configs.method_steps import Step, assert_loss

# A = -1 / 2 twice, 1 / 2 twice; a ratio of 12 counts as 10; answers of p = 0.9 and 0.4 count 0.9 / 1 and 0.4 / 0.5
LOSS = (
    Step(
        reward=(0, 0, 1, 1),
        old_logprob=((-1.0,), (-1.0,), (log(0.9),), (log(0.4),)),
        log_ratio=((log(12.0),), (0.0,), (0.0,), (0.0,)),
        entropy=((0.3,),) * 4,
        sources=(0, 0, 2, 2),
    ),
    ((10 + 1 - 0.9 - 0.8) / 2 - 0.001 * 1.2) / (4 * 8192),
)


def test_loss_of_the_method() -> None:
    assert_loss("ampo", *LOSS)


def test_answers_replace_failures() -> None:
    assert_answers_replace_failures("ampo", ["teacher_1", "teacher_2"])
