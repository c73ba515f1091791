"""Reference values as numpy, torch, pandas, pyarrow and decimal hold them."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.rewards.parsing.reference_values import accepted_texts
from mmgrpo.rewards.parsing.scalars import plain_value
from mmgrpo.rewards.text.answers import Classification, ExactMatch, YesNo
from mmgrpo.rewards.text.choices import MultipleChoice
from mmgrpo.rewards.text.number_lists import NumberList
from mmgrpo.rewards.text.quantities import CountMatch, Number
from mmgrpo.rewards.text.sequences import Ordering
from mmgrpo.rewards.text.value_match import ValueMatch

from tests.rewards.written import score_of


@pytest.mark.parametrize(
    "seven",
    [7, 7.0, np.int64(7), np.float64(7), np.float32(7), np.array(7), np.array(7.0), np.uint8(7), torch.tensor(7),
     torch.tensor(7.0, dtype=torch.bfloat16), Decimal("7"), Decimal("7.0"), Fraction(14, 2), "7", np.str_("7")],
    ids=repr,
)  # fmt: skip
def test_seven_is_seven_however_the_row_stores_it(seven: Any) -> None:
    for reward in (
        ExactMatch(),
        Number(),
        Classification(),
        CountMatch(),
        NumberList(mode="contains"),
        MultipleChoice(),
    ):
        assert (score_of(reward, "7", seven), score_of(reward, "8", seven)) == (1, 0), reward


def test_plain_values() -> None:
    assert plain_value(np.float32(0.1)) == plain_value(torch.tensor(0.1)) == 0.1
    assert plain_value(torch.tensor([[1, 2], [3, 4]])) == [[1, 2], [3, 4]]
    assert plain_value([np.str_("a"), np.bool_(True), {"k": np.array([1.5])}]) == ["a", True, {"k": [1.5]}]
    assert plain_value(Decimal("0.25")) == plain_value(Fraction(1, 4)) == 0.25
    assert plain_value(float("nan")) is plain_value(np.float64("nan")) is plain_value(Decimal("nan")) is None
    assert type(plain_value(np.bool_(False))) is bool
    assert plain_value(marker := object()) is marker


def test_pandas_and_arrow_values() -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    assert plain_value(pandas.NA) is plain_value(pandas.NaT) is None
    assert plain_value(pandas.Series([1, 2])) == plain_value(arrow.array([1, 2]).to_pandas()) == [1, 2]
    assert plain_value(arrow.scalar(3)) == 3


def test_lists_of_labels() -> None:
    cat = [np.str_("cat"), np.str_("kitten")]
    assert score_of(ExactMatch(), "kitten", cat) == score_of(Classification(), "a cat", np.array(cat)) == 1
    assert score_of(NumberList(), "3, 4", torch.tensor([3.0, 4.0])) == 1
    assert score_of(Ordering(), "3 1 2", np.array([3.0, 1.0, 2.0])) == 1
    assert score_of(ValueMatch(), "[[1, 2]]", np.array([[1, 2]])) == 1
    assert score_of(YesNo(), "yes", np.bool_(True)) == score_of(YesNo(), "no", torch.tensor(False)) == 1


def test_a_missing_value_is_no_reference() -> None:
    for missing in (float("nan"), np.float32("nan"), None):
        assert score_of(ExactMatch(), "nan", missing) is score_of(Classification(), "nan", missing) is None


def test_notations_of_floats() -> None:
    assert accepted_texts(7.0) == ["7.0", "7"]
    assert accepted_texts(1e-05) == ["1e-05", "0.00001"]
    assert accepted_texts(0.5) == ["0.5"]
    assert accepted_texts([7, True, "x"]) == ["7", "True", "x"]
    assert score_of(ExactMatch(), "7.0", 7) == 0  # nothing is equal by value
