"""SIREN (selective entropy regularisation): numbers worked out by hand."""

from __future__ import annotations

from math import log

import pytest
import torch

from mmgrpo.methods.surrogates.siren import anchored_entropy
from mmgrpo.values import nucleus_entropy
from tests.configs.method_rows import ONE_OF_TWO
from tests.configs.method_steps import Step, assert_loss
from tests.maths.decision_rows import decisions_at

# A = 0.5, -0.5, the first ratio of 1.5 held at 1.2: (-0.6 - 0.5 + 0.5 + 0.5) / (2 * 3072); there is no anchor yet
LOSS = (
    Step(
        reward=ONE_OF_TWO,
        log_ratio=((log(1.5), 0.0), (0.0, 0.0)),
        values={nucleus_entropy(0.8): [[0.1, 2.0]] * 2},
    ),
    -0.1 / 6144,
)


def test_loss_of_the_method() -> None:
    assert_loss("siren", *LOSS)


def test_the_entropy_of_a_group_is_that_of_its_rows_with_decisions() -> None:
    """Above the 0.8 quantile of 0.1 and 2.0, 1.62, is 2.0: (2 - 1.5)^2; the second row is masked."""
    decisions = decisions_at(
        torch.zeros(2, 2),
        mask_BT=torch.tensor([[True, True], [False, False]]),
        group_BT=torch.zeros(2, 2, dtype=torch.long),
        values={nucleus_entropy(0.8): torch.tensor([[0.1, 2.0], [5.0, 5.0]])},
    )
    assert float(anchored_entropy(anchor=1.5).loss(decisions).value) == pytest.approx(0.25)
    assert float(anchored_entropy(anchor=0.0).loss(decisions).value) == 0.0
