"""Hand-written pairs of references and answers for every reward of text answers that reads their form.

``answers.jsonl`` has one pair per line: ``form``, ``reference`` (the value of a row), ``answer`` (a completion),
``verdict`` (true, false, or null if the reward cannot read the reference), the ``rewards`` that it applies to
and, where graders disagree or a pair has a trap, the ``reason``. A mathematician wrote the verdicts; they are never
adjusted to the score of a reward.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.rewards.text.answers import Classification, ExactMatch, YesNo
from mmgrpo.rewards.text.choices import MultipleChoice
from mmgrpo.rewards.text.mathematics import MathVerify
from mmgrpo.rewards.text.number_lists import NumberList
from mmgrpo.rewards.text.quantities import CountMatch, MeanRelativeAccuracy, Number
from mmgrpo.rewards.text.value_match import ValueMatch

from mmgrpo.reward import Reward
from tests.rewards.written import scores_of, wrote

ROWS: list[dict[str, Any]] = [
    json.loads(line) for line in Path(__file__).with_name("answers.jsonl").read_text(encoding="utf-8").splitlines()
]

REWARDS: dict[str, Callable[[], Reward]] = {
    "math_verify": lambda: MathVerify(column="answer", time_limit_s=30),
    "math_verify plain": lambda: MathVerify(column="answer", plain=True, time_limit_s=30),
    "number": lambda: Number(extract="boxed"),
    "count": lambda: CountMatch(extract="boxed"),
    "mean_relative_accuracy": lambda: MeanRelativeAccuracy(extract="boxed"),
    "exact_match": lambda: ExactMatch(extract="boxed"),
    "classification": lambda: Classification(extract="boxed"),
    "yes_no": lambda: YesNo(extract="boxed"),
    "multiple_choice": lambda: MultipleChoice(extract="boxed"),
    "number_list": lambda: NumberList(extract="boxed"),
    "value_match": lambda: ValueMatch(extract="boxed"),
}


def misread(name: str, *, every: int = 1) -> list[str]:
    """The rows whose score is not their verdict, of those that a reward applies to or every few of them."""
    if name.startswith("math_verify"):
        pytest.importorskip("math_verify")
    rows = [row for row in ROWS if name in row["rewards"]][::every]
    scores = scores_of(REWARDS[name](), [wrote(row["answer"], row["reference"]) for row in rows])
    return [
        f"{row['form']}: {row['reference']!r}, {row['answer']!r}: {score}, not {row['verdict']}"
        for row, score in zip(rows, scores, strict=True)
        if (None if score is None else score == 1) != row["verdict"]
    ]


@pytest.mark.parametrize("name", REWARDS)
def test_scores_are_the_verdicts_of_the_corpus(name: str) -> None:
    assert misread(name, every=7 if name == "math_verify" else 1) == []


@pytest.mark.nightly
def test_scores_of_math_verify_match_the_labels_of_the_corpus() -> None:
    assert misread("math_verify") == []


def test_the_corpus_has_enough_of_each_kind() -> None:
    verdicts = Counter(row["verdict"] for row in ROWS)
    assert len(ROWS) >= 300
    assert verdicts[False] >= len(ROWS) / 3
    assert verdicts[None] >= 5
    assert len({row["form"] for row in ROWS}) >= 25
    assert all(row["rewards"] and set(row["rewards"]) <= REWARDS.keys() for row in ROWS)
    assert {name for row in ROWS for name in row["rewards"]} == REWARDS.keys()
    keys = [(str(row["reference"]), row["answer"], name) for row in ROWS for name in row["rewards"]]
    assert len(keys) == len(set(keys))
