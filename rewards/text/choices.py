"""Reward for multiple-choice answers."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, finite, label_key, require_choice, require_extract, words
from ..parsing.letters import standalone_letters
from ..parsing.numerals import numbers
from ..parsing.reference_values import find_reference_error, read_references, shortest_notation
from ..parsing.scalars import plain_value

Several = Literal["wrong", "last"]


@final
class MultipleChoice:
    """Reward: 1 if the answer states the letter of the reference and no other, else 0.

    A letter counts if it is separate: ``B``, ``(B)``, ``B.``, ``**B**``, ``Answer: B``, also among Chinese or
    Japanese characters and in full width; in lower case only if it is all there is, in brackets, the label of a line
    (``b) a dog``), or last after "answer is". Where a line begins with a label and a text (``B. Vitamin C``,
    ``(B) Line A``), or has them after "answer is", the label counts and letters of the text do not, except for further
    labels in it. ``A`` at the start of a sentence before a word is the article, ``I`` before a word the pronoun,
    ``B-52``, ``C++`` and ``D'accord`` are words; "not B" states no letter. Two different letters are wrong, also where
    the second one explains the first; with ``several: last`` the last one counts, for texts that reason before they
    answer and have no tags.

    Where a row has the texts of its options, a list or an object of letters and texts in the column ``options``, an
    answer that is the text of one option states its letter, and so does such a reference.

    Settings: ``letters`` are the options there are; ``extract`` as in ``exact_match``; ``first_index`` (0 or 1) is the
    index of option A in a column of indices. The reference, in ``column``, is one of the letters, bare or as ``(B)`` or
    ``B. a dog``, an option's text, several letters ("A, C": all of them must be stated, in any order), or a number.
    Range: 0 or 1.
    Source: the project's own rules for the letter; the task as in MMMU (Yue et al. 2023, arXiv:2311.16502).
    Traps: without ``options`` an answer by its text ("a dog") is wrong. A number without ``first_index`` is the number
    of an option: an answer that states it is right, another number wrong, and a letter is not scored (None), for the
    column may be an index. A list of letters and "A or C" are not scored.
    """

    def __init__(
        self,
        column: str = "answer",
        extract: Extract = "none",
        letters: str = "ABCDEFGH",
        several: Several = "wrong",
        options: str = "options",
        first_index: int | None = None,
    ) -> None:
        if not letters or not set(letters) <= set(string.ascii_uppercase):
            raise ConfigError(f"MultipleChoice.letters must be capital letters such as ABCD, got {letters!r}")
        if first_index not in (None, 0, 1):
            raise ConfigError(f"MultipleChoice.first_index must be 0 or 1, got {first_index!r}")
        self.column = column
        self._extract: Extract = require_extract("MultipleChoice.extract", extract)
        self._letters = letters
        self._several: Several = require_choice("MultipleChoice.several", several, Several)
        self._options = options
        self._first_index = first_index

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        choices = [option_letters(s.prompt.columns.get(self._options), self._letters) for s in samples]
        values = read_references("multiple_choice", samples, self.column, self._value)
        return [
            None if value is None else self._score(sample.text or "", value, choice)
            for sample, value, choice in zip(samples, values, choices, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._value, "a text, or the integer of an option")

    def _value(self, value: Any) -> str | int | None:
        """A text, or the index of an option; None otherwise."""
        number = finite(value)
        if number is not None:
            return int(number) if number == int(number) and number >= 0 else None
        return value if isinstance(value, str) and value.strip() else None

    def _score(self, text: str, value: str | int, choice: Mapping[str, str]) -> Score | None:
        answer = extract_answer(text, self._extract) or ""
        reference = self._reference(value, choice)
        if isinstance(reference, int):
            return self._numbered(answer, reference)
        if reference is None:
            return None
        stated = self._stated(answer, choice, len(reference) > 1)
        right = "".join(sorted(reference))
        if len(reference) > 1:
            return Score(float(set(stated) == reference), comparison(", ".join(sorted(set(stated))) or None, right))
        if self._several == "wrong" and len(set(stated)) > 1:
            return Score(0.0, comparison(", ".join(sorted(set(stated))), right, "several letters"))
        return Score(float(stated[-1:] == [right]), comparison(stated[-1] if stated else None, right))

    def _reference(self, value: str | int, choice: Mapping[str, str]) -> set[str] | int | None:
        """The letters of the reference, or the index of its option; None if it has neither."""
        if isinstance(value, int) and self._first_index is None:
            return value
        if isinstance(value, int):
            at = value - self._first_index if self._first_index is not None else -1
            return {self._letters[at]} if 0 <= at < len(self._letters) else None
        if letter := choice.get(_plain_words(value)):
            return {letter}
        if value.strip().isdecimal() and self._first_index is None:
            return int(value)
        stated = set(standalone_letters(value, self._letters))
        listed = len(stated) > 1 and not set(words(value)) - {*self._letters.lower(), "and"}
        return stated if len(stated) == 1 or listed else None

    def _stated(self, answer: str, choice: Mapping[str, str], several: bool) -> list[str]:
        """The letters that an answer states, as letters or by the text of an option."""
        if letter := choice.get(_plain_words(answer)):
            return [letter]
        joined = answer.strip(string.whitespace + string.punctuation)
        if several and set(joined) <= set(self._letters) and len(set(joined)) == len(joined):
            return list(joined)
        return standalone_letters(answer, self._letters)

    def _numbered(self, answer: str, reference: int) -> Score | None:
        stated = {int(number) for number in numbers(answer, spoken=False) if number == int(number)}
        if not stated and standalone_letters(answer, self._letters):
            return None
        return Score(float(stated == {reference}), comparison(", ".join(map(str, sorted(stated))) or None, reference))


def option_letters(value: Any, letters: str) -> dict[str, str]:
    """Map the normalized text of each option to its letter; texts shared by two options are omitted.

    Args:
        value: a list of texts, or a mapping from letters to texts; other values have no options.
        letters: the option letters, in order.

    Returns:
        Letters by text.
    """
    items = plain_value(value)
    if isinstance(items, Mapping):
        pairs = [(str(key).strip().upper(), text) for key, text in items.items()]
    else:
        pairs = list(zip(letters, items, strict=False)) if isinstance(items, list) else []
    named = [
        (letter, _plain_words(_unlabeled(shortest_notation(text), letter)))
        for letter, text in pairs
        if letter in letters
    ]
    counts = Counter(text for _, text in named)
    return {text: letter for letter, text in named if text and counts[text] == 1}


def _unlabeled(text: str, letter: str) -> str:
    """An option's text without its label: "a dog" of "(B) a dog"."""
    return re.sub(rf"^\s*(?:\({letter}\)|{letter}[.):])\s+", "", text)


def _plain_words(text: str) -> str:
    return label_key(text)
