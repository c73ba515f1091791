"""DARS-Breadth: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.methods.strategies.dars import further_members
from tests.configs.method_rounds import ExpectedRounds, assert_rounds

# none of 2 counts as half a right one, u = 1/4, S = 0.375: ceil((2 * 0.75 * 1 - 2 * 0.375) / 0.375) = 2
ROUNDS = ExpectedRounds(
    rewards=([0, 0, 1, 0], [0, 1]),
    requests=([(0, 2, 2, None)],),
    trained=([1, 1, 1, 1], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("dars", ROUNDS)


def test_further_members_are_those_of_the_schedules() -> None:
    """DARS's schedule_ET and schedule_HW of groups of 8 at a quarter: 3 and 8; of none right, 0.5 / 8: as of 1/16."""
    assert further_members(0.25, 8, 32) == 3  # S = 0.375, (4 - 3) / 0.375
    assert further_members(0.25, 8, 64, hardness=True) == 8  # (2 * 0.75 * 4 - 3) / 0.375
    assert further_members(0.0, 8, 32) == 24  # S = 0.1171875: 26.1, at most 24
    assert further_members(0.0, 8, 64, hardness=True) == 56  # (7.5 - 0.9375) / 0.1171875 = 56
    assert further_members(0.25, 8, 32, standardized=True) == 2  # S = 0.8660254, (8 - 6.928203) / 0.8660254 = 1.24
    assert further_members(0.5, 8, 32) == 0
