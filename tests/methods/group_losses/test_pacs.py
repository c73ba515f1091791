"""PACS: numbers worked out by hand."""

from __future__ import annotations

from math import log

import pytest

from mmgrpo.methods.group_losses.pacs import pacs
from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss
from tests.maths.decision_rows import group_at

# psi 0.533333, -0.4, 0, -0.133333, losses 0.461617, 0.513015, 0.693147, 0.628702 at weights 2 and 2 / 3
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), (2 * 0.461617 + (0.513015 + 0.693147 + 0.628702) / 1.5) / 4)


def test_loss_of_the_method() -> None:
    assert_loss("pacs", *LOSS)


def test_a_group_of_one_label_is_not_balanced() -> None:
    for rewards in ([0.0, 0.0], [1.0, 1.0]):
        assert float(pacs(balanced=True).loss(group_at(rewards)).value) == pytest.approx(log(2))
    # the one right member weighs 3 / 2, each wrong one 3 / 4: the mean is log 2 again
    assert float(pacs(balanced=True).loss(group_at([1.0, 0.0, 0.0])).value) == pytest.approx(log(2))
