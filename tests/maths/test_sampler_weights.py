"""Importance weights between trainer and engine: numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS
from mmgrpo.values import SAMPLER_LOGPROB
from tests.maths.feedback_rows import feedback_of

TRAINER = [[math.log(0.5), math.log(0.6), math.log(0.2)], [math.log(0.1), math.log(0.4), math.log(0.9)]]
ENGINE = [[math.log(0.25), math.log(0.1), math.log(0.4)], [math.log(0.1), math.log(0.5), math.log(0.9)]]
"""Ratios by hand: 2, 6 and 0.5 (of the row: 6); 1, 0.8 and, masked, 1 (of the row: 0.8)."""


def feedback() -> Feedback:
    return feedback_of(
        [1.0, 0.0],
        [0, 0],
        mask=[[1, 1, 1], [1, 1, 0]],
        old_logprob=TRAINER,
        values={SAMPLER_LOGPROB: torch.tensor(ENGINE)},
    )


def test_truncated_weight_multiplies_advantage() -> None:
    advantage_BT = torch.tensor([[1.0, 1.0, 1.0], [-2.0, -2.0, -2.0]])
    token_BT = ESTIMATORS["sampler_weight_truncated"](cap=3.0).assign(feedback(), advantage_BT)
    torch.testing.assert_close(token_BT, torch.tensor([[2.0, 3.0, 0.5], [-2.0, -1.6, -2.0]]))
    row_BT = ESTIMATORS["sampler_weight_truncated"](cap=10.0, level="sequence").assign(feedback(), advantage_BT)
    torch.testing.assert_close(row_BT, torch.tensor([[6.0, 6.0, 6.0], [-1.6, -1.6, -1.6]]))


def test_decisions_outside_bounds_are_masked() -> None:
    nothing_BT = torch.zeros(2, 3)
    keep_BT = FILTERS["sampler_weight_within"](low=0.6, high=5.0).keep(feedback(), nothing_BT)
    assert keep_BT.tolist() == [[True, False, False], [True, True, False]]
    keep_BT = FILTERS["sampler_weight_within"](high=5.0, level="sequence").keep(feedback(), nothing_BT)
    assert keep_BT.tolist() == [[False, False, False], [True, True, False]]


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (ESTIMATORS["sampler_weight_truncated"], {"cap": 0.5}),
        (ESTIMATORS["sampler_weight_truncated"], {"level": "word"}),
        (FILTERS["sampler_weight_within"], {"low": 1.5}),
        (FILTERS["sampler_weight_within"], {"high": 0.9}),
    ],
)
def test_bounds_without_effect_raise_errors(make: object, numbers: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"cap|level|low"):
        make(**numbers)  # pyrefly: ignore[not-callable]
