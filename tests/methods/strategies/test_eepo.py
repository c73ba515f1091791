"""EEPO (exploration-enhanced policy optimization): numbers worked out by hand."""

from __future__ import annotations

from tests.configs.method_rounds import ExpectedRounds, assert_rounds, strategy_of

# one half of each group, then the other
ROUNDS = ExpectedRounds(
    rewards=([1, 0], [0, 1]),
    requests=([(0, 1, 1, None), (1, 1, 1, None)],),
    trained=([1, 1], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("eepo", ROUNDS)


def test_the_second_half_waits_for_the_first() -> None:
    assert strategy_of("eepo").looks_back
