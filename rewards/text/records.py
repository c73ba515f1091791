"""Rewards for structured extraction into JSON: similarity to the reference record, field by field."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, final

from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import required
from mmgrpo.types import Sample, Score

from ..models.text_features import TextFeatures
from ..parsing.explanations import comparison, excerpt, rounded
from ..parsing.extraction import (
    Extract,
    extract_answer,
    finite,
    json_values,
    normalize_text,
    require_choice,
    require_extract,
    require_fraction,
)
from ..parsing.reference_values import find_reference_error, score_against_reference

Texts = Literal["edit", "meaning"]
Likeness = Callable[[str, str], float]

MAX_FIELDS = 300
MAX_LEAVES = 1_000


@final
class RecordSimilarity:
    """Reward: similarity of the JSON object in the answer to the reference, averaged over the keys of the reference.

    Numbers: 1 - |stated - reference| / |reference|, at least 0. ISO 8601 dates: 1 - distance in years. Other texts:
    ``texts: edit`` is 1 - edit distance / length of the longer one, ``meaning`` the cosine of the embeddings of
    ``model``, at least 0. Lists: items are paired one to one, most similar first, down to ``threshold``; the F1 2 P R /
    (P + R), where P is the summed similarity over the number of stated items and R over the number of reference items.
    Nested objects: the mean over the keys of both. Other values are equal or not, and null equals a missing value.

    The first object in the text is used. ``complete: true`` scores 0 if a key is missing. The reference, in ``column``,
    is an object or its JSON text.

    Example: ``{name: record_similarity, extract: tag}``.
    Settings: ``extract`` as in ``exact_match``; ``device`` of the encoder.
    Range: 0 to 1.
    Source: Extract-0, arXiv:2509.22906, src/training/reinforcement_learning.py, with ``texts: meaning``, the encoder
    sentence-transformers/all-MiniLM-L6-v2 and ``complete``. Deviations: dates in other formats are texts; the keys of
    the reference replace those of a schema.
    Traps: additional keys cost nothing. Two unrelated texts have a cosine well above 0. An answer of more than 300
    values scores 0.
    """

    def __init__(
        self,
        column: str = "answer",
        texts: Texts = "edit",
        model: str | None = None,
        threshold: float = 0.35,
        complete: bool = False,
        extract: Extract = "none",
        device: str | None = None,
    ) -> None:
        self._texts: Texts = require_choice("RecordSimilarity.texts", texts, Texts)
        if (model is not None) != (texts == "meaning"):
            raise ConfigError(
                f"RecordSimilarity.model is the encoder of texts: meaning, and has no use without; {model=}"
            )
        self.column = column
        self._encoder = None if model is None else TextFeatures(model=model, device=device)
        self._threshold = require_fraction("RecordSimilarity.threshold", threshold)
        self._complete = complete
        self._extract: Extract = require_extract("RecordSimilarity.extract", extract)
        self._edit = required("rapidfuzz.distance", "reward record_similarity").Levenshtein.normalized_similarity

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("record_similarity", samples, self.column, _record, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _record, "an object with keys, as JSON or as data")

    def _score(self, text: str, reference: Mapping[str, Any]) -> Score:
        stated = _record(extract_answer(text, self._extract) or "")
        explanation = comparison(
            None if stated is None else json.dumps(stated, ensure_ascii=False), json.dumps(reference)
        )
        missing = [key for key in reference if key not in (stated or {})]
        if stated is None or _size(stated) > MAX_FIELDS or (missing and self._complete):
            reason = "no object" if stated is None else f"missing: {missing[0]}" if missing else "too many values"
            return Score(0.0, explanation | {"reason": excerpt(reason)})
        compare = self._likeness([*_texts(stated), *_texts(reference)])
        parts = {key: similarity(stated.get(key), value, compare, self._threshold) for key, value in reference.items()}
        return Score(sum(parts.values()) / len(parts), explanation | {"parts": rounded(parts)})

    def _likeness(self, texts: Sequence[str]) -> Likeness:
        """The similarity function for pairs of these texts."""
        if self._encoder is None:
            return self._edit
        row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
        features_ND = self._encoder.features(list(row_of)) if row_of else None
        assert features_ND is not None or not row_of
        return lambda first, second: max(0.0, float(features_ND[row_of[first]] @ features_ND[row_of[second]]))  # type: ignore[index]


@final
class FieldMatch:
    """Reward: weighted precision and recall of the fields of the JSON object in the answer.

    balance * correct / stated + (1 - balance) * correct / reference. Fields are leaf values with their path of keys and
    list indices; a field is correct if it is equal in both, texts after normalization as in ``exact_match``. An answer
    without a field scores 0. The first object in the text is used; the reference, in ``column``, is an object or its
    JSON text.

    Example: ``{name: field_match, extract: tag}``.
    Settings: ``extract`` and ``ignore_case`` as in ``exact_match``.
    Range: 0 to 1.
    Source: Liu et al. 2025 (Efficient Medical VIE), arXiv:2506.13363, eq. 5. Deviation: list items are compared by
    position.
    Traps: with a balance of 1 a single correct field scores 1, with 0 wrong fields cost nothing. An answer of more than
    1,000 fields scores 0.
    """

    def __init__(
        self, column: str = "answer", balance: float = 0.5, extract: Extract = "none", ignore_case: bool = True
    ) -> None:
        self.column = column
        self._balance = require_fraction("FieldMatch.balance", balance)
        self._extract: Extract = require_extract("FieldMatch.extract", extract)
        self._ignore_case = ignore_case

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return score_against_reference("field_match", samples, self.column, _record, self._score)

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _record, "an object with keys, as JSON or as data")

    def _score(self, text: str, reference: Mapping[str, Any]) -> Score:
        answer = extract_answer(text, self._extract) or ""
        record = _record(answer)
        stated, expected = {} if record is None else dict(self._fields(record)), dict(self._fields(reference))
        explanation = comparison(excerpt(answer or None), json.dumps(reference, ensure_ascii=False))
        if not 0 < len(stated) <= MAX_LEAVES:
            return Score(0.0, explanation | {"reason": f"{len(stated)} fields" if stated else "no field"})
        right = sum(path in expected and expected[path] == value for path, value in stated.items())
        parts = {"precision": right / len(stated), "recall": right / len(expected)}
        value = self._balance * parts["precision"] + (1 - self._balance) * parts["recall"]
        return Score(value, explanation | {"parts": rounded(parts)})

    def _fields(self, value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
        """The path and the value of each field, as text that includes its type."""
        if isinstance(value, Mapping | list) and value:
            pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
            for key, inner in pairs:
                yield from self._fields(inner, (*path, str(key)))
        elif isinstance(value, str):
            yield path, f"text: {normalize_text(value, ignore_case=self._ignore_case)}"
        else:
            number = finite(value)
            yield path, json.dumps(value if number is None else number)


def similarity(stated: Any, reference: Any, compare: Likeness, threshold: float) -> float:
    """Similarity of two JSON values, 0 to 1; see ``RecordSimilarity``.

    Args:
        stated: of the answer.
        reference: of the reference.
        compare: similarity of two texts.
        threshold: minimum similarity of paired list items.

    Returns:
        The likeness.
    """
    if isinstance(stated, list) != isinstance(reference, list) and stated is not None and reference is not None:
        stated, reference = (value if isinstance(value, list) else [value] for value in (stated, reference))
    if isinstance(stated, list | dict) and isinstance(reference, list | dict) and not (stated and reference):
        return float(not stated and not reference)
    if isinstance(stated, list) and isinstance(reference, list):
        return _paired([[similarity(a, b, compare, threshold) for b in reference] for a in stated], threshold)
    if isinstance(stated, dict) and isinstance(reference, dict):
        keys = dict.fromkeys([*stated, *reference])
        return sum(similarity(stated.get(key), reference.get(key), compare, threshold) for key in keys) / len(keys)
    return _simple(stated, reference, compare)


def _simple(stated: Any, reference: Any, compare: Likeness) -> float:
    if isinstance(stated, str) and isinstance(reference, str):
        if not (stated and reference):
            return float(stated == reference)
        days = _days(stated), _days(reference)
        both = days[0] is not None and days[1] is not None
        return max(0.0, 1 - abs(days[0] - days[1]) / 365) if both else compare(stated, reference)  # type: ignore[operator]
    right, number = finite(reference), finite(stated)
    if number is None or right is None:
        return float(type(stated) is type(reference) and stated == reference)
    return float(number == 0) if right == 0 else max(0.0, 1 - abs(number - right) / abs(right))


def _paired(likeness: Sequence[Sequence[float]], threshold: float) -> float:
    """F1 of a greedy one-to-one matching of rows and columns, most similar first."""
    pairs = sorted(((s, i, j) for i, row in enumerate(likeness) for j, s in enumerate(row)), key=lambda p: -p[0])
    rows: set[int] = set()
    columns: set[int] = set()
    total = 0.0
    for value, i, j in pairs:
        if value >= threshold and i not in rows and j not in columns:
            rows.add(i)
            columns.add(j)
            total += value
    return 2 * total / (len(likeness) + len(likeness[0]))  # 2 P R / (P + R) of P = total / m and R = total / n


def _days(text: str) -> float | None:
    """A date in days; None if the text is not a date."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        return None
    return date.replace(tzinfo=None).timestamp() / 86400 if 1900 <= date.year <= 2200 else None


def _record(value: Any) -> dict[str, Any] | None:
    values = json_values(value) if isinstance(value, str) else [value]
    return next((dict(record) for record in values if isinstance(record, Mapping) and record), None)


def _values(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _values(inner)
    else:
        yield value


def _size(value: Any) -> int:
    return sum(1 for _ in _values(value))


def _texts(value: Any) -> list[str]:
    return [text for text in _values(value) if isinstance(text, str) and text]
