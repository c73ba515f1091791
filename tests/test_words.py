"""Names and prose use the words of the field: no word of this project alone, no name twice."""

from __future__ import annotations

from tests.words import names_of_tests, phrase_places, prose_per_thousand, repeated_classes, repeated_files, uses

LIMIT = 5
"""Uses of a word where it is the field's own."""

WORDS = ("said", "told", "known", "found", "asked", "beside", "behind", "held", "drawn", "whole", "mine", "there")


ALLOWED = (
    "What was answered stands between the tags. It is to be judged",  # a question to a judge
    "policy.reading.estimate: whole",
    "whole: all tokens of the answer are masked",
    "whole: whether to include tensors",
    "Colour.colour must be",
)
"""Texts in which phrases may stay: names of settings, and the question of a judge."""


def test_identifiers_are_nouns_of_the_field() -> None:
    counts = uses()
    assert {word: counts[word] for word in WORDS if counts[word] > LIMIT} == {}


def test_public_classes_have_different_names() -> None:
    assert repeated_classes() == {}


def test_few_file_names_are_repeated() -> None:
    assert len(repeated_files()) <= 20


def test_docstrings_comments_and_messages_are_in_plain_words() -> None:
    places = [place for places in phrase_places().values() for place in places]
    assert [place for place in places if not any(text in place for text in ALLOWED)] == []


def test_docstrings_comments_and_messages_name_their_subject() -> None:
    assert prose_per_thousand("what") <= 1


def test_names_of_tests_say_the_behavior() -> None:
    assert names_of_tests() == []
