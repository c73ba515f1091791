"""Reward for structured answers: lists, grids and objects compared by value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, final

from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison
from ..parsing.extraction import Extract, extract_answer, finite, json_values, require_choice, require_extract
from ..parsing.reference_values import find_reference_error, score_against_reference

Part = Literal["all", "cells"]


@final
class ValueMatch:
    """Reward: 1 if the list or object in the answer equals the reference, else 0; or the fraction of equal cells.

    The last JSON array or object of the answer is used, also in Python notation. Numbers are compared by value, texts
    after stripping whitespace, and ``"true"`` equals true. For objects ``keys`` selects the item to compare, the first
    that exists; without a match the complete object is compared. With ``score: cells`` the score is the fraction of
    leaf values of the reference that are equal at the same path of the answer. The reference, in ``column``, is a list,
    an object or either as text.

    Settings: ``extract`` as in ``exact_match``; ``ignore_case`` of texts.
    Range: 0 to 1.
    Source: the verifiers of Guru (arXiv:2506.14965) and its code, for ARC grids, zebra puzzles and Code I/O.
    Traps: with ``cells`` a constant grid of the most common value scores well; an answer of another shape still matches
    cells at equal paths.
    """

    deterministic = True

    def __init__(
        self,
        column: str = "answer",
        extract: Extract = "none",
        score: Part = "all",
        keys: Sequence[str] = (),
        ignore_case: bool = False,
    ) -> None:
        self.column = column
        self._extract: Extract = require_extract("ValueMatch.extract", extract)
        self._part: Part = require_choice("ValueMatch.score", score, Part)
        self._keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self._ignore_case = ignore_case

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("value_match", samples, self.column, self._reference, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, self._reference, "a list or an object with cells, as JSON or as data")

    def _reference(self, value: Any) -> dict[tuple[Any, ...], Any] | None:
        values = json_values(value) if isinstance(value, str) else [value]
        return self._cells(values[-1]) or None if values and isinstance(values[-1], list | Mapping) else None

    def _score(self, text: str, expected: dict[tuple[Any, ...], Any]) -> Score:
        values = json_values(extract_answer(text, self._extract) or "")
        stated = self._cells(values[-1]) if values else {}
        equal = sum(path in stated and stated[path] == cell for path, cell in expected.items())
        value = equal / len(expected) if self._part == "cells" else float(stated == expected)
        parsed = json.dumps(values[-1], ensure_ascii=False) if values else None
        return Score(value, comparison(parsed, f"{len(expected)} cells", f"{equal} of {len(expected)} cells are right"))

    def _cells(self, value: Any) -> dict[tuple[Any, ...], Any]:
        if isinstance(value, Mapping):
            value = next((value[key] for key in self._keys if key in value), value)
        return dict(_leaves(value, (), self._ignore_case))


def _leaves(value: Any, path: tuple[Any, ...], ignore_case: bool) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Every leaf value by its path; an empty list or object is a leaf."""
    items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    inner = list(items)
    for key, item in inner:
        yield from _leaves(item, (*path, key), ignore_case)
    if not inner:
        yield path, _plain(value, ignore_case)


def _plain(value: Any, ignore_case: bool) -> Any:
    """A leaf value normalized for comparison, with its type: 1 is not true, and "1" is not a number."""
    if isinstance(value, str):
        text = value.strip()
        truth = {"true": True, "false": False}.get(text.lower())
        return ("truth", truth) if truth is not None else ("text", text.casefold() if ignore_case else text)
    if isinstance(value, bool):
        return "truth", value
    number = finite(value)
    return (type(value).__name__,) if number is None else ("number", number)
