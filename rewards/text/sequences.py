"""Reward for ordering tasks: clips of a video, steps of a proof, moves through a maze."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, takewhile
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, characters, extract_answer, require_choice, require_extract, words
from ..parsing.reference_values import find_reference_error, score_against_reference, shortest_notation

Items = Literal["words", "characters"]
Mode = Literal["exact", "prefix", "positions", "displacement"]


@final
class Ordering:
    """Reward: agreement of the order of items in the answer with the reference.

    With n items, ``displacement`` is 1 - sum |position in the answer - position in the reference| / floor(n^2 / 2), the
    maximum displacement of n items; the answer must contain each item exactly once, or it scores 0. ``positions`` is
    the fraction of positions, of the longer sequence, with the correct item; ``prefix`` the fraction of the reference
    before the first wrong item; ``exact`` is 1 if both are equal, else 0.
    ``items: words`` are separated by anything but letters and digits (``3, 1, 2`` or ``<|up|><|left|>``),
    ``characters`` are adjacent (``312``). With ``per_item`` the maximum score is that much per item; with ``turns`` it
    is multiplied by the number of runs of equal items in the reference.

    The reference, in ``column``, is a text of the same form or a list of items, without repeated items for
    ``displacement``.

    Example: ``{name: ordering, items: characters, extract: tag}``.
    Settings: ``extract`` as in ``exact_match``.
    Range: 0 to 1, or to ``per_item`` times the length of the reference, and times its runs.
    Source: displacement: VideoSSR's jigsaw of clips, arXiv:2511.06281; prefix and turns: Ariadne's mazes,
    arXiv:2511.00710. Deviation: a single item is either at its position or not.
    Traps: with ``displacement`` a reversed order scores 0 and a random order about 1/3.
    """

    def __init__(
        self,
        column: str = "answer",
        items: Items = "words",
        mode: Mode = "displacement",
        per_item: float | None = None,
        turns: bool = False,
        extract: Extract = "none",
    ) -> None:
        if per_item is not None and not per_item > 0:
            raise ConfigError(f"Ordering.per_item must be positive, got {per_item}")
        self.column = column
        self._items: Items = require_choice("Ordering.items", items, Items)
        self._mode: Mode = require_choice("Ordering.mode", mode, Mode)
        self._per_item = per_item
        self._turns = turns
        self._extract: Extract = require_extract("Ordering.extract", extract)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("ordering", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(
            value, self._reference, "a list or a text of items, for mode displacement different ones"
        )

    def _reference(self, value: Any) -> list[str] | None:
        parts = (
            [shortest_notation(item) for item in value]
            if isinstance(value, list | tuple)
            else [shortest_notation(value)]
        )
        items = [item for part in parts for item in self._read(part)]
        repeated = len(set(items)) < len(items) and self._mode == "displacement"
        return items if items and not repeated else None

    def _score(self, text: str, reference: list[str]) -> Score:
        answer = extract_answer(text, self._extract) or ""
        stated = self._read(answer)
        share = _MODES[self._mode](stated, reference)
        explanation = comparison(" ".join(stated) or None, " ".join(reference))
        most = 1.0 if self._per_item is None else self._per_item * len(reference)
        return Score(share * most * (sum(1 for _ in groupby(reference)) if self._turns else 1), explanation)

    def _read(self, text: str) -> list[str]:
        return words(text) if self._items == "words" else characters(text)


def displacement(stated: Sequence[str], reference: Sequence[str]) -> float:
    """1 - summed displacement of the items / maximum displacement; 0 unless both have the same items.

    Args:
        stated: the items in the order of the answer.
        reference: the same in the right order, none twice.

    Returns:
        0 to 1.
    """
    if sorted(stated) != sorted(reference):
        return 0.0
    position = {item: index for index, item in enumerate(stated)}
    most = len(reference) ** 2 // 2
    return 1 - sum(abs(position[item] - index) for index, item in enumerate(reference)) / most if most else 1.0


def positions(stated: Sequence[str], reference: Sequence[str]) -> float:
    """Fraction of positions of the longer sequence with the same item in both, 0 to 1."""
    return sum(first == second for first, second in zip(stated, reference, strict=False)) / max(
        len(stated), len(reference)
    )


def prefix(stated: Sequence[str], reference: Sequence[str]) -> float:
    """Fraction of the reference that is a common prefix, 0 to 1."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(stated, reference, strict=False))) / len(
        reference
    )


def exact(stated: Sequence[str], reference: Sequence[str]) -> float:
    """1 if both are the same, else 0."""
    return float(list(stated) == list(reference))


_MODES = {"exact": exact, "prefix": prefix, "positions": positions, "displacement": displacement}
