"""Names and prose use the words of the field: no word of this project alone, no name twice."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.words import (
    PRODUCT,
    TESTS,
    names,
    names_of_tests,
    parts_of,
    phrase_places,
    phrase_places_of_configs,
    phrase_places_of_pages,
    prose_per_thousand,
    python_files,
    repeated_classes,
    repeated_files,
    uses,
)

LIMIT = 5
"""Uses of a word where it is the field's own."""

FOLDERS = [pytest.param(PRODUCT, id="product"), pytest.param(TESTS, id="tests")]

PARTICIPLES = "said told known found asked held drawn given kept judged taught shown seen heard learnt"
WORDS = (*PARTICIPLES.split(), "beside", "behind", "whole", "mine", "there", "own", "one")
"""Participles and adverbs that do not say what a thing is."""

NAMES = re.compile(
    r"held_?out|NotFoundError|get_origin|one_hot|leave_one_out|one_of|ONE_GPU|train_one|at_one|to_one|near_one|own_policy",
    re.I,
)
"""Names of the field, of Python and of libraries."""


ALLOWED = (
    "What was answered stands between the tags. It is to be judged",  # a question to a judge
    "policy.reading.estimate: whole",
    "whole: all tokens of the answer are masked",
    "whole: whether to include tensors",
)
"""Texts in which phrases may stay: names of settings, and the question of a judge."""


@pytest.mark.parametrize("folders", FOLDERS)
def test_identifiers_are_nouns_of_the_field(folders: tuple[str, ...]) -> None:
    counts = uses(folders)
    assert {word: counts[word] for word in WORDS if counts[word] > LIMIT} == {}


@pytest.mark.parametrize("folders", FOLDERS)
def test_parts_of_names_are_nouns_of_the_field(folders: tuple[str, ...]) -> None:
    """``given_of`` and ``kept_BT`` say no more than ``given`` and ``kept``."""
    counts: dict[str, Counter[str]] = {word: Counter() for word in WORDS}
    for path in python_files(folders):
        for name, number in names(path).items():
            for word in parts_of(name) & set(WORDS) if not NAMES.search(name) else ():
                counts[word][name] += number
    assert {word: dict(counts[word]) for word in counts if counts[word].total() > LIMIT} == {}


@pytest.mark.parametrize("folders", FOLDERS)
def test_files_are_named_by_nouns(folders: tuple[str, ...]) -> None:
    paths = [path for path in python_files(folders) if not NAMES.search(path.stem)]
    assert [str(path) for path in paths if parts_of(path.stem) & set(WORDS)] == []


def test_public_classes_have_different_names() -> None:
    assert repeated_classes() == {}


def test_few_file_names_are_repeated() -> None:
    assert len(repeated_files()) <= 20


def test_docstrings_comments_and_messages_are_in_plain_words() -> None:
    places = [place for places in phrase_places().values() for place in places]
    assert [place for place in places if not any(text in place for text in ALLOWED)] == []


def test_comments_and_metadata_of_configurations_are_in_plain_words() -> None:
    assert phrase_places_of_configs() == {}


def test_pages_are_in_plain_words() -> None:
    assert phrase_places_of_pages() == {}


def test_docstrings_comments_and_messages_name_their_subject() -> None:
    assert prose_per_thousand("what") <= 1


def test_names_of_tests_say_the_behavior() -> None:
    assert names_of_tests() == []
