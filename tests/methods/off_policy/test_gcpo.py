"""GCPO: numbers worked out by hand."""

from __future__ import annotations

from math import exp

from tests.configs.method_rounds import assert_answers_replace_failures
from tests.configs.method_steps import Step, assert_loss

SOURCES = (0, 0, 2)
# A = -1 / 3, -1 / 3, 2 / 3 over 0.5774503; ratios of samples e^0.001, 1 and e^0.0015, held at 1.0004
LOSS = (
    Step(reward=(0, 0, 1), log_ratio=((0.001, 0.001), (0.0, 0.0), (0.002, 0.001)), sources=SOURCES),
    ((exp(0.001) + 1) / 3 - 1.0004 * 2 / 3) / 0.5774503 / 3,
)


def test_loss_of_the_method() -> None:
    assert_loss("gcpo", *LOSS)


def test_answer_replaces_a_failure() -> None:
    assert_answers_replace_failures("gcpo", ["solution"])
