"""A reward for the sources that an answer cites."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, require_choice, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference

Measure = Literal["jaccard", "cover"]


@final
class Citations:
    """Reward: agreement of the sources that an answer cites with those of the reference.

    A citation is the text between ``opening`` and ``closing``, such as ``[[Oslo_3]]``, after Unicode NFC; repeated ones
    count once. ``measure: jaccard`` is their number in common over their number in all, 0 for an empty reference;
    ``cover`` is 1 if all sources of the reference are cited, 0.5 if at least half of them (rounded up), else 0. The
    reference, in ``column``, is a list of names, possibly empty.

    Example: ``{name: citations, column: evidence, extract: tag}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1.
    Source: the evidence reward and the validity weight of Veri-R1 (arXiv:2510.01932), whose code is claim_reward.py.
    Traps: ``cover`` is 1 for an answer that cites everything: use ``jaccard`` too.
    """

    def __init__(
        self,
        column: str = "answer",
        measure: Measure = "jaccard",
        extract: Extract = "none",
        opening: str = "[[",
        closing: str = "]]",
    ) -> None:
        if not opening or not closing:
            raise ConfigError(f"Citations needs texts in opening and closing, got {opening!r} and {closing!r}")
        self.column = column
        self._measure: Measure = require_choice("Citations.measure", measure, Measure)
        self._extract: Extract = require_extract("Citations.extract", extract)
        self._pattern = re.compile(
            rf"{re.escape(opening)}((?:(?!{re.escape(opening)}).)*?){re.escape(closing)}", re.DOTALL
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("citations", samples, self.column, _names, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is not a valid reference; None if it is valid."""
        return find_reference_error(value, _names, "a list of names, possibly empty")

    def _score(self, text: str, reference: frozenset[str]) -> Score:
        answer = extract_answer(text, self._extract) or ""
        cited = frozenset(map(_normalized, self._pattern.findall(answer))) - {""}
        value = _jaccard(cited, reference) if self._measure == "jaccard" else _cover(cited, reference)
        return Score(value, comparison(", ".join(sorted(cited)), sorted(reference)))


def _jaccard(cited: frozenset[str], reference: frozenset[str]) -> float:
    return len(cited & reference) / len(cited | reference) if reference else 0.0


def _cover(cited: frozenset[str], reference: frozenset[str]) -> float:
    if reference <= cited:
        return 1.0
    return 0.5 if 2 * len(cited & reference) >= len(reference) else 0.0


def _names(value: Any) -> frozenset[str] | None:
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) for name in value):
        return None
    return frozenset(map(_normalized, value))


def _normalized(name: str) -> str:
    return unicodedata.normalize("NFC", name.strip())
