"""Choice by position."""

from __future__ import annotations

import pytest

from mmgrpo.report.choosing import evenly, in_turn


@pytest.mark.parametrize(
    ("most", "chosen"),
    [(9, "abcdefgh"), (8, "abcdefgh"), (3, "aeh"), (2, "ah")],  # 7 k / 2 = 0, 3.5, 7; 3.5 rounds to the even 4
)
def test_evenly(most: int, chosen: str) -> None:
    assert evenly("abcdefgh", most) == list(chosen)


@pytest.mark.parametrize(
    ("most", "chosen"),
    [
        (99, ["a1", "b1", "c1", "a2", "c2", "a3"]),
        (5, ["a1", "b1", "c1", "a2", "c2"]),
        (4, ["a1", "b1", "c1", "a2"]),
        (3, ["a1", "b1", "c1"]),
        (2, ["a1", "c1"]),
    ],
)
def test_in_turn(most: int, chosen: list[str]) -> None:
    assert in_turn([["a1", "a2", "a3"], ["b1"], ["c1", "c2"]], most) == chosen


def test_nothing_to_choose_from() -> None:
    assert in_turn([], 5) == []
