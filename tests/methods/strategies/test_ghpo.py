"""GHPO: numbers worked out by hand."""

from __future__ import annotations

from mmgrpo.data.history import History
from tests.configs.method_rounds import ExpectedRounds, assert_rounds, template_text

# the first prompt fails, is sampled with a quarter of its solution, and solved with half of it
ROUNDS = ExpectedRounds(
    rewards=([0, 0, 1, 0], [0, 0], [1, 0]),
    requests=([(0, 2, 2, "quarter")], [(0, 4, 2, "half")]),
    trained=([0, 0, 1, 1], [0, 0], [1, 1]),
)


def test_rounds_of_the_method() -> None:
    assert_rounds("ghpo", ROUNDS)


def test_prompt_has_a_part_of_the_solution() -> None:
    assert template_text("ghpo", "quarter", History()).endswith("ab")
    assert template_text("ghpo", "three_quarters", History()).endswith("abcdef")
