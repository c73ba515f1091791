"""Words of scripts that write vowels as combining marks, in every reward that compares words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mmgrpo.rewards.groups.diversity import ngrams
from mmgrpo.rewards.parsing.extraction import characters, words

from mmgrpo import Prompt, Sample, build_rewards
from mmgrpo.config import RewardConfig
from mmgrpo.errors import ConfigError
from tests.rewards.written import score_of, scores_of

DAY, GIFT = "\u0926\u093f\u0928", "\u0926\u093e\u0928"  # Hindi: two words with other vowel signs

PAIRS = {
    "Hindi": (DAY, GIFT),
    "Bengali": ("\u09a6\u09bf\u09a8", "\u09a6\u09be\u09a8"),
    "Thai": ("\u0e01\u0e34\u0e19", "\u0e01\u0e31\u0e19"),
    "Tamil": ("\u0b95\u0bbe\u0bb2\u0bcd", "\u0b95\u0bbf\u0bb2\u0bcd"),
    "Hebrew": ("\u05e1\u05b5\u05e4\u05b6\u05e8", "\u05e1\u05b8\u05e4\u05b7\u05e8"),
    "Arabic": ("\u0643\u064f\u062a\u0650\u0628", "\u0643\u064e\u062a\u064e\u0628"),
}


def reward(name: str, **settings: Any) -> Any:
    return build_rewards([RewardConfig.model_validate({"name": name, **settings})])[0].function


@pytest.mark.parametrize("pair", PAIRS.values(), ids=PAIRS)
def test_words_keep_their_vowel_signs(pair: tuple[str, str]) -> None:
    right, wrong = pair
    assert len(words(right)) == len(words(wrong)) == 1
    assert words(right) != words(wrong)
    assert characters(right) != characters(wrong)
    assert ngrams(right, 1) != ngrams(wrong, 1)
    assert score_of(reward("classification"), right, right) == 1.0
    assert score_of(reward("classification"), wrong, right) == 0.0
    assert score_of(reward("label_set", labels=[right, wrong]), wrong, [right]) == 0.0
    assert score_of(reward("caption_score", metric="rouge_l"), wrong, right) == 0.0
    assert score_of(reward("ordering", mode="exact"), wrong, [right]) == 0.0


def test_labels_of_boxes_keep_their_vowel_signs() -> None:
    boxes = [{"bbox_2d": [0, 0, 9, 9], "label": DAY}]
    detection = reward("detection", coordinates={"frame": "original"})
    assert score_of(detection, json.dumps([{"bbox_2d": [0, 0, 9, 9], "label": GIFT}]), boxes) == 0.0
    assert score_of(detection, json.dumps([{"bbox_2d": [0, 0, 9, 9], "label": DAY}]), boxes) == 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't, you\u2019d", ["don't", "you'd"]),
        ("snake_case and-dash 3.5", ["snake", "case", "and", "dash", "3", "5"]),
        ("\u0645\u06cc\u200c\u0631\u0648\u0645", ["\u0645\u06cc\u0631\u0648\u0645"]),  # Persian, a joiner inside
        ("co\u00adoperate", ["cooperate"]),
        ("e\u0301te\u0301", ["\u00e9t\u00e9"]),
        ("\u0301 alone", ["alone"]),
        ("", []),
    ],
)
def test_words_by_hand(text: str, expected: list[str]) -> None:
    assert words(text) == expected


def test_characters_have_their_marks() -> None:
    assert characters(f"{DAY}, a1") == ["\u0926\u093f", "\u0928", "a", "1"]


@pytest.mark.parametrize(
    ("label", "other"),
    [("C++", "C#"), ("C", "C++"), ("A+", "A"), ("-1", "1"), ("\U0001f44d", "\U0001f44e"), ("0", "-0")],
)
def test_signs_distinguish_labels(label: str, other: str) -> None:
    for settings in ({}, {"labels": [label, other]}):
        judge = reward("classification", **settings)
        assert [score_of(judge, label, label), score_of(judge, other, label)] == [1.0, 0.0]
        assert [score_of(judge, other, other), score_of(judge, label, other)] == [1.0, 0.0]
    labels = reward("label_set", labels=[label, other])
    assert [score_of(labels, label, [label]), score_of(labels, other, [label])] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("answer", "label"),
    [
        ("don\u2019t know", "don't know"),
        ("istanbul", "\u0130stanbul"),
        ("STRASSE", "Stra\u00dfe"),
        ("\u0645\u0640\u0631\u062d\u0628\u0627", "\u0645\u0631\u062d\u0628\u0627"),
        ("1\ufe0f\u20e3", "1"),
        ("\u22121", "-1"),
        ("a cat \U0001f431", "cat"),
        ("\U0001f44d\U0001f3fd", "\U0001f44d"),
        ("C#.", "C#"),
        ("e\u2011mail", "e-mail"),
    ],
)
def test_forms_of_one_label_are_equal(answer: str, label: str) -> None:
    assert score_of(reward("classification"), answer, label) == 1.0
    assert score_of(reward("classification", labels=[label, "other"]), f"It is {answer}", label) == 1.0


def test_labels_that_differ_only_in_punctuation_raise() -> None:
    for name in ("classification", "label_set"):
        with pytest.raises(ConfigError, match=r"'A' and 'A\*' are equal or empty without punctuation"):
            reward(name, labels=["A", "A*"])
        assert reward(name, labels=["polar bear", "polar_bear", "Polar Bear", 7]) is not None


def test_an_option_of_another_sign_is_not_the_answer() -> None:
    prompt = Prompt("x", columns={"answer": "A", "options": ["-1", "2", "3"]})
    samples = [Sample(prompt, 0, 0, text="-1"), Sample(prompt, 0, 1, text="1")]
    assert scores_of(reward("multiple_choice"), samples) == [1.0, 0.0]
