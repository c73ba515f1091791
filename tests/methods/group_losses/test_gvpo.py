"""GVPO: numbers worked out by hand."""

from __future__ import annotations

import pytest

from mmgrpo.methods.group_losses.gvpo import gvpo
from tests.configs.method_rows import ONE_OF_FOUR, SCORED
from tests.configs.method_steps import Step, assert_loss
from tests.maths.decision_rows import group_at

# d - mean d = 0.4, -0.3, 0, -0.1; r - mean r = 0.75, -0.25: (0.71^2 + 0.22^2 + 0.25^2 + 0.24^2) / 6
LOSS = (Step(reward=ONE_OF_FOUR, log_ratio=SCORED), 0.1121)


def test_loss_of_the_method() -> None:
    assert_loss("gvpo", *LOSS)


def test_the_error_is_over_twice_the_other_members() -> None:
    """Rewards 2/3, -1/3 and -1/3 around their mean: (4 + 1 + 1) / 9 over 2 (3 - 1)."""
    assert float(gvpo().loss(group_at([1.0, 0.0, 0.0])).value) == pytest.approx(1 / 6)
