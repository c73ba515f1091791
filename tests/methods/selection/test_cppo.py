"""CPPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, assert_loss, config_of, taught

# the mean is over the first and one other: 1.499997 and -0.499999 at ratio 1
LOSS = (Step(reward=ONE_OF_FOUR, values={from_reference("k3"): [[0.5, 0.5]] * 4}), -0.499999 + 0.04 * 0.5)


def test_loss_of_the_method() -> None:
    assert_loss("cppo", *LOSS)


def test_the_filter_keeps_the_largest_half() -> None:
    advantages = taught(config_of("cppo"), Step(reward=ONE_OF_FOUR))
    assert advantages.mask_BT.any(1).tolist() == [True, True, False, False]
