"""The usefulness of a feature of some texts of a group, by hand."""

from __future__ import annotations

import math

import pytest
from mmgrpo.rewards.groups.usefulness import WhereUseful

from mmgrpo.errors import ConfigError
from tests.rewards.grouped import column_score, members


@pytest.mark.parametrize(
    ("scores", "margin", "expected"),
    [
        ((1, 0, 0, 0), 0.0, (1, 1, 0, 0)),  # 1/2 with, 0 without
        ((0, 0, 1, 0), 0.0, (-1, -1, 0, 0)),  # 0 with, 1/2 without
        ((1, 0, 1, 0), 0.0, (0, 0, 0, 0)),
        ((1, 0, 0, 0), 0.5, (0, 0, 0, 0)),  # no more than the margin
        ((1, None, 0, 0), 0.5, (1, None, 0, 0)),  # 1 with, 0 without
        ((math.nan, 0, 1, 0), 0.0, (math.nan, -1, 0, 0)),
    ],
)
def test_the_sign_of_the_gain_by_hand(scores: tuple[float, ...], margin: float, expected: tuple[float, ...]):
    samples = members("x <aux> y", "<aux>", "x", "y", scores=scores)
    assert WhereUseful(column_score, ["<aux>"], margin=margin)(samples) == pytest.approx(expected, nan_ok=True)


@pytest.mark.parametrize("texts", [("<aux>", "<aux>"), ("x", "y")])
def test_without_a_comparison_samples_score_zero(texts: tuple[str, str]):
    assert WhereUseful(column_score, ["<aux>"])(members(*texts, scores=(1, 0))) == [0, 0]


def test_invalid_settings_raise_with_a_fix():
    with pytest.raises(ConfigError, match=r"WhereUseful\.marks must be a list"):
        WhereUseful(column_score, "<aux>")
    with pytest.raises(ConfigError, match=r"WhereUseful\.margin must be at least 0"):
        WhereUseful(column_score, ["<aux>"], margin=-1.0)
