"""RAFT: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss

# of four decisions the right one at -1: its log-probability, and 0.001 * 0.5
LOSS = (
    Step(reward=ONE_OF_FOUR, lengths=[1] * 4, values={from_reference("k3"): [[0.5]] * 4}),
    0.25 + 5e-4,
)


def test_loss_of_the_method() -> None:
    assert_loss("raft", *LOSS)
