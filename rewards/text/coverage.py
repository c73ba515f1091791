"""Reward for covering the words of a reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import excerpt, rounded
from ..parsing.extraction import Extract, extract_answer, require_extract, words
from ..parsing.reference_values import find_reference_error, score_against_reference

# fmt: off
FUNCTION_WORDS = frozenset((
    "the", "and", "or", "but", "in", "on", "at", "to", "for", "of", "with", "by", "a", "an", "is", "are", "was", "were",
    "be", "been", "have", "has", "had", "do", "does", "did", "will", "would", "could", "should", "may", "might", "can",
    "this", "that", "these", "those",
))
# fmt: on


@final
class Coverage:
    """Reward: fraction of the words of the reference that the text contains, reduced for repetition.

    (share + bonus [if at least ``hits`` words match]) * repetition. Unique words are compared, without case,
    punctuation and function words. With ``repetition: true`` the factor is max(0, 1 - 3 max(0, f - 0.35)) * (1 - 0.05
    max(0, r - 3)), at least 0: f is the relative frequency of the most frequent word, r the longest run of one word;
    else it is 1.

    The reference, in ``column``, is a text, or a nested list of texts that are joined: entities and relations on a path
    of a knowledge graph, for example.

    Example: ``{name: coverage, column: path, extract: {tag: think}}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1 + ``bonus``.
    Source: Kansal and Jha 2026, arXiv:2601.15160, whose code (rl_training.py) uses 1.2 times this with a bonus of 0.25
    from two words on.
    Traps: only the presence of words is checked: a list of all words scores 1.
    """

    def __init__(
        self,
        column: str = "answer",
        bonus: float = 0.0,
        hits: int = 2,
        repetition: bool = False,
        extract: Extract = "none",
    ) -> None:
        if not bonus >= 0 or hits < 1:
            raise ConfigError(f"Coverage needs bonus >= 0 and hits >= 1, got {bonus} and {hits}")
        self.column = column
        self._bonus = bonus
        self._hits = hits
        self._repetition = repetition
        self._extract: Extract = require_extract("Coverage.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("coverage", samples, self.column, _reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _reference, "a text with words other than function words")

    def _score(self, text: str, reference: set[str]) -> Score:
        content = telling(extract_answer(text, self._extract) or "")
        covered = reference & set(content)
        share, factor = len(covered) / len(reference), not_repeated(content) if self._repetition else 1.0
        value = (share + self._bonus * (len(covered) >= self._hits)) * factor
        missing = excerpt(", ".join(sorted(reference - covered)))
        explained = {"reason": f"missing: {missing}"} if missing else {}
        parts = {"parts": rounded({"share": share, "repetition": factor})}
        return Score(value, explained | parts)


def telling(text: str) -> list[str]:
    """The words of a text without function words, in order."""
    return [word for word in words(text) if word not in FUNCTION_WORDS]


def not_repeated(content: Sequence[str]) -> float:
    """The repetition factor: 1 without frequent words, down to 0 for a single repeated word; see ``Coverage``."""
    if not content:
        return 1.0
    frequent = Counter(content).most_common(1)[0][1] / len(content)
    run = max(len(list(same)) for _, same in groupby(content))
    return max(0.0, 1 - 3 * max(0.0, frequent - 0.35)) * max(0.0, 1 - 0.05 * max(0, run - 3))


def _reference(value: Any) -> set[str] | None:
    return set(telling(str(value))) or None
