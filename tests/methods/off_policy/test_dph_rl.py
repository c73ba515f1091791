"""DPH-RL (forward KL): numbers worked out by hand."""

from __future__ import annotations

from math import log

import pytest

from tests.configs.method_rows import A_TWO_6, ONE_OF_TWO, UP
from tests.configs.method_steps import Step, assert_loss, config_of

LOSS = (Step(reward=ONE_OF_TWO, log_ratio=((UP,), (log(4.0),))), A_TWO_6 * (3 - 1.28) / 2)


def test_loss_of_the_method() -> None:
    assert_loss("dph-rl", *LOSS)


def test_stored_samples_count_by_their_share() -> None:
    """256 stored rows at 0.01, with 128 prompts of 16 samples: 0.01 * 256 / 2048 of the mean over those."""
    config = config_of("dph-rl")
    (stored,) = config.objective.auxiliary
    assert stored.weight == pytest.approx(0.00125)
    assert stored.batch_size == 256 // 2
