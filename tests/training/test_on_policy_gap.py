"""The on-policy gap: measured on decisions of the current weights alone, and absent without any."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.maths.objectives import Diagnostics
from mmgrpo.training.gradients import Gradient, _gap, largest_gap
from tests.maths.decision_rows import decisions_at

NOW_BT = torch.tensor([[-1.0, -2.0], [-3.0, -4.0]])
OLD_BT = torch.tensor([[-1.0, -2.5], [-3.0, math.nan]])


@pytest.mark.parametrize(
    ("unchanged", "expected"),
    [
        (None, math.inf),  # what is not a number is never small
        ([[True, True], [True, False]], 0.5),
        ([[True, False], [True, False]], 0.0),
        ([[False, False], [False, False]], None),
    ],
)
def test_the_gap_is_that_of_decisions_of_the_current_weights(
    unchanged: list[list[bool]] | None, expected: float | None
) -> None:
    unchanged_BT = None if unchanged is None else torch.tensor(unchanged)
    assert _gap(decisions_at(NOW_BT, old_logprob_BT=OLD_BT, unchanged_BT=unchanged_BT)) == expected


def test_gradients_without_a_gap_leave_that_of_others() -> None:
    without, small = (Gradient(Diagnostics(), gap, 1) for gap in (None, 0.25))
    assert without.merge(small).max_gap == small.merge(without).max_gap == 0.25
    assert without.merge(without).max_gap is None
    assert largest_gap() is None
    assert largest_gap(None, 0.0, 0.5) == 0.5
