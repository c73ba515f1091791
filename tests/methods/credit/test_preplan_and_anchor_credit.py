"""Preplan-and-Anchor credit: numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mmgrpo.errors import ConfigError
from mmgrpo.methods.credit.preplan_and_anchor_credit import anchors
from mmgrpo.values import attention_distance, attention_influence
from tests.configs.method_rows import A_TWO, ONE_OF_TWO
from tests.configs.method_steps import Step, assert_credit
from tests.maths.feedback_rows import feedback_of

# looked at 5, 1, 1, 6 and 0, so that the first and the fourth are anchors, at least the 0.6 quantile of 2.6; the
# fourth looks no further back than the median of 3, and of the changes 5, 7, 1 before it the second's is at least
# the median of 2: the fourth gives half of its 0.5 to it
CREDIT = (
    Step(
        reward=ONE_OF_TWO,
        lengths=(5, 5),
        values={
            attention_distance(10): [[4.0, 9.0, 2.0, 1.0, 3.0]] * 2,
            attention_influence(10, 50): [[5.0, 1.0, 1.0, 6.0, 0.0]] * 2,
        },
    ),
    [[1.5 * A_TWO, 1.25 * A_TWO, A_TWO, 1.25 * A_TWO, A_TWO], [-A_TWO] * 5],
)


def test_advantages_of_the_method() -> None:
    assert_credit("preplan-and-anchor-credit", *CREDIT)


def test_a_decision_at_the_quantile_is_an_anchor_in_float32_too() -> None:
    """The 0.6 quantile of six is the fourth of them, 0.6 * 5 = 3 up to rounding."""
    influence_BT = torch.tensor([[0.1, 0.3, 0.7, 0.9, 1000.0, 1001.0]])
    for dtype in (torch.float32, torch.float64):
        values = {
            attention_distance(10): torch.arange(6, 0, -1)[None].to(dtype),
            attention_influence(10, 50): influence_BT.to(dtype),
        }
        feedback = feedback_of([1.0], [0], old_logprob=[[0.0] * 6], values=values)
        advantage_BT = anchors(back=0.0).assign(feedback, torch.ones(1, 6, dtype=dtype))
        assert advantage_BT.tolist() == [[1.0, 1.0, 1.0, 1.5, 1.5, 1.5]]


@pytest.mark.parametrize("numbers", [{"share": 0.0}, {"share": 1.0}, {"reach": 0}])
def test_shares_and_reaches_without_anchors_raise(numbers: dict[str, Any]) -> None:
    anchors(share=0.5, reach=1)
    with pytest.raises(ConfigError, match="a share between 0 and 1 and a reach of 1 or more"):
        anchors(**numbers)
