"""Rewards for the form of a text: its tags, a pattern of one's own, the keys of its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import regex

from mmgrpo.errors import ConfigError
from mmgrpo.rewards.parsing import Extract, extracted, json_document, json_values, one_of
from mmgrpo.types import Sample

PATTERN_LIMIT_S = 1.0

_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


@final
class Format:
    """Reward: 1 if the text consists of the wanted tags in their order, each once, or matches a pattern; else 0.

    ``tags`` (by default think and answer): ``<think>..</think>`` and then ``<answer>..</answer>``, with only white
    space around and between, something in each, and no further tag of these names anywhere. ``opened: true`` where the
    chat template has already written the first opening tag. ``pattern`` in their place is a regular expression that
    must match the whole text, stripped, with ``.`` matching line ends; it has one second a text, and then fails on it
    (NaN).

    Range: 0 or 1.
    Source: the format reward of DeepSeek-R1 (arXiv:2501.12948, sec. 2.2.2); that each tag stands once is our own.
    Traps: alone it is learnt at once and says nothing of answers: weight 0.1 to 0.2. Patterns with nested repeats such
    as ``(a+)+`` are exponential; the tags are read in linear time. A text of more than ``max_chars`` characters scores
    0.
    """

    def __init__(
        self,
        tags: Sequence[str] = ("think", "answer"),
        pattern: str | None = None,
        opened: bool = False,
        max_chars: int = 200_000,
    ) -> None:
        if (
            isinstance(tags, str)
            or not tags
            or len(set(tags)) != len(tags)
            or not all(tag.isidentifier() for tag in tags)
        ):
            raise ConfigError(f"Format.tags must be different names such as [think, answer], got {tags!r}")
        self._tags = tuple(tags)
        self._pattern = None if pattern is None else _compiled(pattern)
        self._opened = opened
        self._max_chars = max_chars

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [None if sample.text is None else self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> float:
        if len(text) > self._max_chars:
            return 0.0
        if self._pattern is None:
            return float(self._tagged(f"<{self._tags[0]}>{text}" if self._opened else text))
        try:
            return float(self._pattern.fullmatch(text.strip(), timeout=PATTERN_LIMIT_S) is not None)
        except TimeoutError:
            return float("nan")

    def _tagged(self, text: str) -> bool:
        rest = text.strip()
        if any(rest.count(f"<{tag}>") != 1 or rest.count(f"</{tag}>") != 1 for tag in self._tags):
            return False
        for tag in self._tags:
            inner, closing, after = rest.removeprefix(f"<{tag}>").partition(f"</{tag}>")
            if not rest.startswith(f"<{tag}>") or not closing or not inner.strip():
                return False
            rest = after.lstrip()
        return not rest


@final
class JsonSchema:
    """Reward: 1 if the answer is a JSON object with the wanted keys and types, else 0; or the share that is right.

    ``keys`` names each key and its type: string, integer, number, boolean, array, object, null, any, several as
    ``"string|null"``, with ``?`` at the end if it may be missing; a mapping in place of a type is an object of its own
    keys. ``partial: true`` gives the share of the keys (inner ones as well) that are right. ``strict: true`` refuses
    keys that are not named. The answer must be the object and nothing else, fenced as code or not; with ``anywhere:
    true`` it is the last one in the text.

    Example: ``{name: json_schema, keys: {colour: string, count: integer}}``.
    Settings: ``extract`` as in ``exact_match``. No reference is needed.
    Range: 0 or 1; ``partial`` 0 to 1.
    Source: the project's own.
    Traps: it says nothing of the values: use it beside a reward that does. true is no integer. Objects of more than
    100,000 characters or nested deeper than 32 score 0; of repeated keys the last counts.
    """

    def __init__(
        self,
        keys: Mapping[str, Any],
        extract: Extract = "none",
        partial: bool = False,
        strict: bool = False,
        anywhere: bool = False,
    ) -> None:
        _check_keys(keys, "JsonSchema.keys")
        self._keys = keys
        self._extract: Extract = one_of("JsonSchema.extract", extract, Extract)
        self._partial = partial
        self._strict = strict
        self._anywhere = anywhere

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return [None if sample.text is None else self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> float:
        answer = extracted(text, self._extract) or ""
        objects = [value for value in json_values(answer) if isinstance(value, dict)] if self._anywhere else []
        found = objects[-1] if objects else json_document(answer)
        if not isinstance(found, dict) or (self._strict and _extra(found, self._keys)):
            return 0.0
        right = _right(found, self._keys)
        return sum(right) / len(right) if self._partial else float(all(right))


def _compiled(pattern: str) -> Any:
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ConfigError(f"Format.pattern is no regular expression: {error}; got {pattern!r:.80}") from error


def _check_keys(keys: Any, where: str) -> None:
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigError(f"{where} must map keys to types, got {keys!r}")
    for key, kind in keys.items():
        if isinstance(kind, Mapping):
            _check_keys(kind, f"{where}.{key}")
        elif not isinstance(kind, str) or not all(name in {*_TYPES, "any"} for name in kind.rstrip("?").split("|")):
            raise ConfigError(f"{where}.{key} must be one of {', '.join(_TYPES)}, any, got {kind!r}")


def _right(found: Any, keys: Mapping[str, Any]) -> list[bool]:
    """For every key and inner key, whether it is there with its type."""
    right: list[bool] = []
    for key, kind in keys.items():
        there = isinstance(found, dict) and key in found
        if isinstance(kind, Mapping):
            right += _right(found[key] if there else None, kind)
        else:
            right.append(_is_kind(found[key], kind) if there else kind.endswith("?") and isinstance(found, dict))
    return right


def _is_kind(value: Any, kind: str) -> bool:
    names = kind.rstrip("?").split("|")
    if isinstance(value, bool):
        return "boolean" in names or "any" in names
    return "any" in names or any(isinstance(value, _TYPES[name]) for name in names)


def _extra(found: dict[str, Any], keys: Mapping[str, Any]) -> bool:
    inner = ((found[key], kind) for key, kind in keys.items() if isinstance(kind, Mapping) and key in found)
    return not found.keys() <= keys.keys() or any(isinstance(v, dict) and _extra(v, kind) for v, kind in inner)
