"""Words of scripts that write vowels as combining marks, in every reward that compares words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmgrpo import build_rewards
from mmgrpo.config import RewardConfig
from mmgrpo.rewards.groups.diversity import ngrams
from mmgrpo.rewards.parsing.extraction import characters, words
from tests.rewards.written import score_of

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
        ("don't, you\u2019d", ["don't", "you\u2019d"]),
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
