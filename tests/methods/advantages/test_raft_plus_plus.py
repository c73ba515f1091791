"""RAFT++: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss

# the ratio of the right one is held at 1.2, the wrong one is nothing
LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((UP,), (UP,)), values={from_reference("k3"): [[0.5]] * 2}),
    -0.6 + 5e-4,
)


def test_loss_of_the_method() -> None:
    assert_loss("raft-plus-plus", *LOSS)
