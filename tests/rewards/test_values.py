"""Lists, grids and objects held against references."""

from __future__ import annotations

from typing import Any

import pytest
from mmgrpo.rewards.text.value_match import ValueMatch

from tests.rewards.written import score_of

ZEBRA = {"header": ["House", "Pet"], "rows": [["1", "cat"], ["2", "dog"]]}


@pytest.mark.parametrize(
    ("text", "answer", "settings", "expected"),
    [
        ("so [[1, 0], [0, 1]]", [[1, 0], [0, 1]], {}, 1),
        ("[[1.0, 0], [0, 1]]", "[[1, 0], [0, 1]]", {}, 1),
        ("[[1, 0], [0]]", [[1, 0], [0, 1]], {}, 0),
        ("[[1, 0], [0, 1], [0, 0]]", [[1, 0], [0, 1]], {}, 0),
        ("first [1, 2], then [2, 1]", [2, 1], {}, 1),
        ("<answer>['Owl', 'hawk ']</answer>", ["owl", "hawk"], {"extract": "tag", "ignore_case": True}, 1),
        ('{"header": [], "rows": [["1", "cat"], ["2", "cow"]]}', ZEBRA, {"score": "cells", "keys": ["rows"]}, 0.75),
        ('{"output": {"result": 42}}', {"output": {"result": 42}}, {"keys": ["output", "input"]}, 1),
        ('{"answer": true}', '{"output": {"answer": "true"}}', {"keys": ["output", "input"]}, 1),
        ('{"input": {"upper_limit": 2924}}', {"input": {"upper_limit": 2719}}, {"keys": ["output", "input"]}, 0),
        ("[1]", [True], {}, 0),
        ('["1"]', [1], {}, 0),
        ("[[]]", [[]], {}, 1),
        ("no list", [1], {}, 0),
        ("[1]", "no list", {}, None),
        ("[1]", 7, {}, None),
    ],
)
def test_values_by_their_contents(text: str, answer: Any, settings: dict[str, Any], expected: float | None) -> None:
    """Three of the four cells of two rows; the rest as in the authors' own examples."""
    assert score_of(ValueMatch(**settings), text, answer) == expected
