"""Choice by position, and by movement."""

from __future__ import annotations

import pytest

from mmgrpo.report.sample_selection import evenly, in_turn, moved_most


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


def test_no_candidates_give_no_choice() -> None:
    assert in_turn([], 5) == []


@pytest.mark.parametrize(
    ("most", "chosen"),
    [
        (2, ["a3", "c1"]),
        (4, ["a3", "a1", "c1", "b2"]),  # of equal rises the kinds take turns: a1 and b1 before a2
        (5, ["a3", "a1", "b1", "c1", "b2"]),
        (9, ["a3", "a1", "b1", "a2", "c1", "b2"]),
    ],
)
def test_largest_changes_are_chosen(most: int, chosen: list[str]) -> None:
    movement = {"a1": 0.5, "a2": 0.5, "a3": 0.9, "b1": 0.5, "b2": -0.1, "c1": -1.0, "c2": 0.0}
    assert moved_most(movement, lambda name: name[0], most) == chosen
