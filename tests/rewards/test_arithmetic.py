from __future__ import annotations

import pytest
from mmgrpo.examples.arithmetic import careless_sums, held_out_sums, sums, without_carry

from mmgrpo.errors import DataError
from mmgrpo.types import Prompt


def terms(prompt: Prompt) -> tuple[int, int]:
    first, second = prompt.text.removesuffix("=").split("+")
    return int(first), int(second)


def test_every_answer_is_the_sum_of_two_two_digit_numbers() -> None:
    for prompt in (*sums(), *held_out_sums()):
        a, b = terms(prompt)
        assert 10 <= min(a, b) <= max(a, b) <= 99
        assert prompt.columns["answer"] == str(a + b)


def test_no_evaluation_sum_is_trained_on() -> None:
    training, unseen = ({terms(prompt) for prompt in prompts} for prompts in (sums(), held_out_sums()))
    assert len(training) == 6480  # 80 % of 90 * 90
    assert len(unseen) == 500
    assert not training & unseen


def test_the_split_never_changes() -> None:
    assert [prompt.text for prompt in sums()[:2]] == ["25+60=", "31+51="]
    assert [prompt.text for prompt in held_out_sums()[:2]] == ["70+32=", "66+64="]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [(34, 58, 82), (34, 55, 89), (99, 99, 188), (95, 14, 109), (10, 10, 20), (55, 45, 90)],
)
def test_forgetting_the_carry(a: int, b: int, expected: int) -> None:
    assert without_carry(a, b) == expected


def test_careless_examples_omit_the_carry_and_are_otherwise_right() -> None:
    examples = careless_sums(0.7)
    wrong = [example for example in examples if example.text != example.prompt.columns["answer"]]
    # 45 of the 100 pairs of units carry: 0.7 * 0.45 = 0.315 of the results are wrong
    assert len(wrong) / len(examples) == pytest.approx(0.315, abs=0.015)
    for example in wrong:
        a, b = terms(example.prompt)
        assert a % 10 + b % 10 >= 10
        assert int(example.text or "") == a + b - 10


def test_all_or_none_may_be_careless() -> None:
    assert all(example.text == example.prompt.columns["answer"] for example in careless_sums(0))
    assert all(example.text == str(without_carry(*terms(example.prompt))) for example in careless_sums(1))


def test_a_share_outside_its_range_raises() -> None:
    with pytest.raises(DataError, match=r"must be in \[0, 1\]"):
        careless_sums(1.1)
