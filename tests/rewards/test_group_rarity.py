from __future__ import annotations

import math

import pytest
from mmgrpo.rewards.groups.rarity import Rarity, UniqueFormulas, formulas

from mmgrpo.errors import ConfigError
from tests.rewards.grouped import column_score, members


def test_rare_forms_by_hand():
    samples = members("<A> x", " <A> y", "<B> z", "z", None, "<A>", scores=[1, 0.5, 1, -1, 1, None])
    # of the four that are scored two begin with <A>: 4 / 2 - 1; one with <B>, one with none: 4 - 1
    assert Rarity(column_score, ["<A>", "<B>"])(samples) == [1, 0.5, 3, -3, None, None]


def test_one_form_scores_zero():
    samples = members("<A> x", "<A> y", scores=[1, 0.5])
    assert Rarity(column_score, ["<A>"])(samples) == [0, 0]
    assert Rarity(column_score, ["<B>"])(samples) == [0, 0]


def test_the_longest_mark_is_the_form():
    samples = members("<A>", "<A>b", "<A>b", scores=[1, 1, 1])
    assert Rarity(column_score, ["<A>", "<A>b"])(samples) == [2, 0.5, 0.5]


def test_failures_stay_failures():
    result = Rarity(column_score, ["<A>"])(members("<A>", "<A>", "x", scores=[math.nan, 1, 1]))
    assert result == pytest.approx([math.nan, 1, 1], nan_ok=True)


@pytest.mark.parametrize("marks", ["<A>", [], ["<A>", ""]])
def test_marks_are_a_list_of_texts(marks: object):
    with pytest.raises(ConfigError, match=r"Rarity\.marks must be a list"):
        Rarity(column_score, marks)  # type: ignore[arg-type]


def test_unique_formulas_by_hand():
    # of $a$ and $b$ only the second is the first member's alone; x is in two texts, twice in one; one has none
    texts = ["$a$ so $b$", r"\(a\) or \[x\]", "$x$ $x$", "none", None, "$z$"]
    samples = members(*texts, scores=[1, 2, 1, 1, 1, None])
    assert UniqueFormulas(column_score)(samples) == [0.5, 0, 0, 0, None, None]
    samples = members("$a$ $b$ $c$", "$x$", scores=[1, -1])
    assert UniqueFormulas(column_score, most=0.42)(samples) == [0.42, -0.42]
    assert UniqueFormulas(column_score, characters=5)(samples) == [1, -1]


def test_formulas_as_the_code_of_diver_finds_them():
    # what extract_formulas of diversity_metric.py gives for this text
    text = r"Let $x = 1$, \[y\] and \(z\); again $x = 1$, open $w"
    assert formulas(text) == {"x = 1", "y", "z"}
