from __future__ import annotations

import numpy as np
import pytest
from mmgrpo.rewards.text.choices import MultipleChoice

from mmgrpo.errors import ConfigError
from tests.rewards.written import score_of, scores_of, wrote


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B. Vitamin C", "B"),
        ("A. Hepatitis B", "A"),
        ("C. Point D", "C"),
        ("(B) Line A", "B"),
        ("**B. Vitamin C**", "B"),
        ("**(B)** Line A", "B"),
        ("B: Group A has more", "B"),
        ("B) Plan A and plan D", "B"),
        ("B - Vitamin C", "B"),
        ("b) vitamin C", "B"),
        ("E: A polygenic risk score", "E"),
        ("The answer is B. Vitamin C", "B"),
        ("The correct option is (B) Line A.", "B"),
        ("Answer: B. Hepatitis A", "B"),
        ("**Answer:** B. Hepatitis A", "B"),
        ("The lines meet once.\n\nB. Vitamin C", "B"),
        ("The answer is not A. It is B", "B"),
        ("The answer is b.", "B"),
        ("option c", "C"),
        ("The answer is a dog.", None),
        ("B\nVitamin C", "B"),
        ("B.\nVitamin C", "B"),
        ("D. Both A and B", "D"),
        ("(D) Neither A nor B", "D"),
        ("Answer: C) 12 cm", "C"),
        ("\\boxed{\\textbf{(C)}\\ 12}", "C"),
        ("It isn't (A), so C", "C"),
        ("The answer is not B", None),
        ("A. red, B. blue", None),
        ("A. red\nB. blue", None),
        ("A. and B.", None),
        ("A. or C.", None),
        ("B. C", None),
        ("A. wrong, so (B)", None),
        ("The answer is B. No, the answer is C.", None),
        ("Neither A nor B", None),
        ("I cannot answer that.", None),
        ("None of the above", None),
        ("Vitamin C", "C"),  # a letter alone, if no option texts are there
    ],
)
def test_labels_of_option_texts(text: str, letter: str | None):
    scores = {option: score_of(MultipleChoice(), text, option) for option in "ABCDE"}
    assert scores == {option: float(option == letter) for option in "ABCDE"}


@pytest.mark.parametrize(
    "reference", ["B", "b", "(B)", "B.", "B. Vitamin C", "(B) Line A", "b) a cat", "**B**", "Answer: B. A dog"]
)
def test_references_with_their_text(reference: str):
    assert score_of(MultipleChoice(), "B", reference) == score_of(MultipleChoice(), "B. Vitamin C", reference) == 1
    assert score_of(MultipleChoice(), "C", reference) == 0


def test_references_of_several_letters_want_all_of_them():
    for reference in ("A, C", "(A) and (C)", "C; A", "A and C"):
        for answer, value in (
            ("A, C", 1),
            ("C and A", 1),
            ("AC", 1),
            ("(A)(C)", 1),
            ("A", 0),
            ("A, B, C", 0),
            ("B", 0),
        ):
            assert score_of(MultipleChoice(), answer, reference) == value, (reference, answer)
    assert score_of(MultipleChoice(), "A", "A or C") is None
    assert score_of(MultipleChoice(), "A", ["A", "C"]) is None


def test_option_texts_of_the_row():
    for options in (["a dog", "Vitamin C", "a cat"], {"A": "a dog", "B": "Vitamin C", "C": "a cat"},
                    ["A. a dog", "B. Vitamin C", "C. a cat"], np.array(["a dog", "Vitamin C", "a cat"])):  # fmt: skip
        rows = [wrote(text, "B", options=options) for text in ("vitamin c.", "A dog", "B", "C", "a dog or a cat")]
        assert scores_of(MultipleChoice(), rows) == [1, 0, 1, 0, 0]
        assert scores_of(MultipleChoice(), [wrote("B", "Vitamin C", options=options)]) == [1]
    assert scores_of(MultipleChoice(), [wrote("red", "A", options=["red", "red"])]) == [0]
    assert scores_of(MultipleChoice(options="choices"), [wrote("red", "A", choices=["red", "blue"])]) == [1]


def test_indices():
    assert (
        score_of(MultipleChoice(first_index=0), "B", 1)
        == score_of(MultipleChoice(first_index=1), "A", np.int64(1))
        == 1
    )
    assert score_of(MultipleChoice(first_index=0), "A", 1) == 0
    assert score_of(MultipleChoice(first_index=1), "A", 0) is None
    assert [score_of(MultipleChoice(), text, 3) for text in ("3", "(3)", "Option 3", "2", "3 or 4", "C")] == [
        1, 1, 1, 0, 0, None,
    ]  # fmt: skip
    with pytest.raises(ConfigError, match="first_index must be 0 or 1, got 2"):
        MultipleChoice(first_index=2)


def test_the_last_letter_where_several_may_be_stated():
    last = MultipleChoice(several="last")
    assert score_of(last, "A is too small, C too dark.\nB. Vitamin C", "B") == 1
    assert score_of(last, "A is too small, C too dark.\nB. Vitamin C", "C") == 0
