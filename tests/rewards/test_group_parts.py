from __future__ import annotations

import math

import pytest

from mmgrpo.errors import ConfigError
from mmgrpo.rewards.groups.parts import OnPart
from mmgrpo.types import Scope
from tests.rewards.grouped import column_score, members

TEXT = "seen <think> so </think> <answer> 7"


@pytest.mark.parametrize(
    ("start", "end", "text", "part"),
    [
        ("<think>", None, TEXT, "<think> so </think> <answer> 7"),
        (None, "<think>", TEXT, "seen "),
        ("<think>", "<answer>", TEXT, "<think> so </think> "),
        ("<think>", "<answer>", "so <answer> 7", "so "),  # without the mark from the beginning on
        ("<answer>", "</answer>", TEXT, "<answer> 7"),  # without the mark to the end
        (None, "seen", TEXT, ""),
    ],
)
def test_a_reward_is_laid_on_its_part(start: str | None, end: str | None, text: str, part: str):
    (score,) = OnPart(column_score, start, end)(members(text, scores=[0.5]))
    assert float(score) == 0.5  # type: ignore[arg-type]
    begin = text.index(part)
    expected = [Scope(begin, begin + len(part), 0.5)] if part else []
    assert list(score.scopes) == expected  # type: ignore[union-attr]


def test_what_is_not_judged_has_no_part():
    found = OnPart(column_score, end="x")(members("a", None, "b", scores=[None, 1.0, math.nan]))
    assert found[:2] == [None, None]
    assert math.isnan(float(found[2]))  # type: ignore[arg-type]


def test_a_part_has_a_mark():
    with pytest.raises(ConfigError, match="needs start, end or both"):
        OnPart(column_score)
