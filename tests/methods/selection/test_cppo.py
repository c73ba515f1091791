"""CPPO: numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.selection.cppo import largest_advantages
from mmgrpo.values import from_reference
from tests.configs.method_rows import ONE_OF_FOUR
from tests.configs.method_steps import Step, advantages_of, assert_loss, config_of
from tests.maths.feedback_rows import feedback_of

# the mean is over the first and one other: 1.499997 and -0.499999 at ratio 1
LOSS = (Step(reward=ONE_OF_FOUR, values={from_reference("k3"): [[0.5, 0.5]] * 4}), -0.499999 + 0.04 * 0.5)


def test_loss_of_the_method() -> None:
    assert_loss("cppo", *LOSS)


def test_the_filter_keeps_the_largest_half() -> None:
    advantages = advantages_of(config_of("cppo"), Step(reward=ONE_OF_FOUR))
    assert advantages.mask_BT.any(1).tolist() == [True, True, False, False]


def test_rates_are_from_zero_to_below_one() -> None:
    feedback = feedback_of([1.0, 0.0], [0, 0])
    assert largest_advantages(rate=0.0).keep(feedback, torch.ones(2, 3)).tolist() == [True, True]
    for rate in (-0.1, 1.0):
        with pytest.raises(ConfigError, match="from 0 to below 1"):
            largest_advantages(rate=rate)
