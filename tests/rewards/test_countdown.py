"""Countdown: expressions of given numbers."""

from __future__ import annotations

import numpy as np
import pytest
from mmgrpo.rewards.text.countdown import Countdown

from mmgrpo.types import Prompt, Sample


def value(answer: str | None, **columns: object) -> float | None:
    prompt = Prompt("q", columns={"nums": [44, 19, 35], "target": 98, **columns})
    (score,) = Countdown(extract="line")([Sample(prompt, 0, 0, text=answer)])
    return None if score is None else float(score)


@pytest.mark.parametrize(
    "answer",
    ["44 + 19 + 35", "35+(44+19)", "(44 + 19) + 35 = 98", "[44 + 19] + 35", "44 \u2212 (-19) + 35"],
)
def test_expressions_of_the_target_are_right(answer: str) -> None:
    assert value(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    ["98", "44 + 19", "44 + 19 + 35 + 0", "44 + 44 + 10", "44 * 19 + 35", "44 + 19 + 35 = 97", "(44 + 19 + 35", ""],
)
def test_other_numbers_and_values_are_wrong(answer: str) -> None:
    assert value(answer) == 0.0


@pytest.mark.parametrize("answer", ["2**2", "4//2", "4/(2-2)", "__import__('os')", "(" * 150 + "2", "2\n*2", "0" * 250])
def test_hostile_answers_are_wrong(answer: str) -> None:
    prompt = Prompt("q", columns={"nums": [2, 2], "target": 4})
    assert [float(score or 0) for score in Countdown(extract="none")([Sample(prompt, 0, 0, text=answer)])] == [0.0]


def test_division_is_exact() -> None:
    """(1 / 3) * 6 * 7 = 14; with floats 1 / 3 * 6 * 7 is 14.0 only by luck."""
    assert value("1 / 3 * 6 * 7", nums=[1, 3, 6, 7], target=14) == 1.0
    assert value("6 \u00f7 3 \u00d7 7", nums=np.array([3, 6, 7]), target=np.int64(14)) == 1.0


def test_unreadable_references_are_not_scored() -> None:
    assert value(None) is None
    assert value("44", nums="44", target=44) is None
    assert value("44", nums=[44], target=None) is None
    assert value("44", nums=[44, float("nan")], target=44) is value("44", nums=[44], target=float("inf")) is None
    reward = Countdown()
    assert reward.reference_error([1.5, float("inf")]) == "it is neither an integer nor a list of integers"
    assert reward.needs_columns == ("nums", "target")
    assert reward.reference_error([1, 2]) is None
    assert reward.reference_error(7) is None
    assert (
        reward.reference_error([]) == reward.reference_error("7") == "it is neither an integer nor a list of integers"
    )
