"""LaSeR (last-token self-rewarding): numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import end_logprob
from tests.configs.method_steps import Step, assert_credit, assert_loss
from tests.configs.pins.rows import A_TWO_6, ONE_OF_TWO

SAID = end_logprob(151652)
# at the step 200: 0.1 (-14 + 23) = 0.9 and 0, of mean 0.45 and sample deviation 0.6363961: 0.7071068 and minus that
CREDIT = (
    Step(reward=ONE_OF_TWO, number=200, values={SAID: [[0.0, -14.0], [0.0, -23.0]]}),
    [[0.9 * A_TWO_6 + 0.0707107] * 2, [-0.9 * A_TWO_6 - 0.0707107] * 2],
)

# the right one says 0 and the wrong one -0.5, each alone of its kind: 0.1 ((0 - 1)^2 + (-0.5 - 0)^2) / 2
LOSS = (Step(reward=ONE_OF_TWO, values={SAID: [[0.0, -23.0], [0.0, -28.0]]}), 0.0625)


def test_advantages_of_the_method() -> None:
    assert_credit("laser", *CREDIT)


def test_loss_of_the_method() -> None:
    assert_loss("laser", *LOSS)
