"""ProRL: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rounds import assert_refilled
from tests.configs.method_rows import A_TWO, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss, config_of

LOSS = (
    Step(reward=ONE_OF_TWO, log_ratio=((UP,), (0.0,)), values={from_reference("k3"): ((0.5,), (0.5,))}),
    A_TWO * (1 - 1.4) / 2 + 0.00005,
)


def test_loss_of_the_method() -> None:
    assert_loss("prorl", *LOSS)


def test_groups_of_equal_rewards_are_replaced() -> None:
    assert_refilled("prorl")


def test_the_reference_is_reset() -> None:
    reference = config_of("prorl").update.reference
    assert reference is not None
    assert (reference.reset_every, reference.reset_optimizer) == (250, True)
