"""Names are those of the field: no word of this project alone, no name twice."""

from __future__ import annotations

from tests.words import repeated_classes, repeated_files, uses

LIMIT = 5
"""Uses of a word where it is the field's own."""

WORDS = ("said", "told", "known", "found", "asked", "beside", "behind", "held", "drawn", "whole", "mine", "there")


def test_identifiers_are_nouns_of_the_field() -> None:
    counts = uses()
    assert {word: counts[word] for word in WORDS if counts[word] > LIMIT} == {}


def test_public_classes_have_different_names() -> None:
    assert repeated_classes() == {}


def test_few_file_names_are_repeated() -> None:
    assert len(repeated_files()) <= 20
