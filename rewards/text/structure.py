"""Rewards for the form of a text: its tags, a custom pattern, the keys of its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import regex

from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import JSON_TYPES
from mmgrpo.types import Prompt, Sample, Score

from ..parsing.explanations import excerpt
from ..parsing.extraction import Extract, extract_answer, json_document, json_values, require_extract

PATTERN_LIMIT_S = 1.0


@final
class Format:
    """Reward: 1 if the text consists of the required tags in order, each once, or matches a pattern; else 0.

    ``tags`` (by default think and answer): ``<think>..</think>`` and then ``<answer>..</answer>``, with only whitespace
    around and between, non-empty content, and no further tags of these names. Set ``opened: true`` if the chat template
    already writes the first opening tag. ``pattern`` replaces the tags by a regular expression that must match the
    complete stripped text, with ``.`` matching line ends; it has one second per text and then fails (NaN). A list of
    names in ``column`` overrides the tags of a row.

    Range: 0 or 1.
    Source: the format reward of DeepSeek-R1 (arXiv:2501.12948, sec. 2.2.2); the rule that each tag occurs once is
    designed for mmgrpo.
    Traps: alone it is learned immediately and ignores the answer: use a weight of 0.1 to 0.2. Patterns with nested
    repeats such as ``(a+)+`` are exponential; the tags are checked in linear time. A text of more than ``max_chars``
    characters scores 0.
    """

    def __init__(
        self,
        tags: Sequence[str] = ("think", "answer"),
        pattern: str | None = None,
        opened: bool = False,
        max_chars: int = 200_000,
        column: str | None = None,
    ) -> None:
        if _tags(tags) is None:
            raise ConfigError(f"Format.tags must be different names such as [think, answer], got {tags!r}")
        self._tags = tuple(tags)
        self._pattern = None if pattern is None else compiled_pattern("Format.pattern", pattern)
        self._opened = opened
        self._max_chars = max_chars
        self.column = column

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if s.text is None else self._score(s.text, self._tags_of(s.prompt)) for s in samples]

    def _tags_of(self, prompt: Prompt) -> tuple[str, ...]:
        return _tags(prompt.columns.get(self.column)) or self._tags if self.column else self._tags

    def _score(self, text: str, tags: tuple[str, ...]) -> float | Score:
        if len(text) > self._max_chars:
            return Score(0.0, {"reason": f"{len(text)} characters, more than {self._max_chars}"})
        try:
            wrong = self._wrong(text, tags)
        except TimeoutError:
            return float("nan")
        return Score(float(wrong is None), {"reason": wrong or "well formed"})

    def _wrong(self, text: str, tags: tuple[str, ...]) -> str | None:
        """The first format error of a text; None if there is none."""
        if self._pattern is not None:
            matches = self._pattern.fullmatch(text.strip(), timeout=PATTERN_LIMIT_S) is not None
            return None if matches else "the pattern does not match"
        rest = f"<{tags[0]}>{text}".strip() if self._opened else text.strip()
        for mark in (mark for tag in tags for mark in (f"<{tag}>", f"</{tag}>")):
            if rest.count(mark) != 1:
                return f"{mark} occurs {rest.count(mark)} times, not once"
        for tag in tags:
            inner, closing, after = rest.removeprefix(f"<{tag}>").partition(f"</{tag}>")
            if not rest.startswith(f"<{tag}>") or not closing:
                return f"something else where <{tag}> should open"
            if not inner.strip():
                return f"nothing in <{tag}>"
            rest = after.lstrip()
        return f"text after </{tags[-1]}>" if rest else None


@final
class JsonSchema:
    """Reward: 1 if the answer is a JSON object with the required keys and types, else 0; or the fraction of correct
    keys.

    ``keys`` maps each key to its type: string, integer, number, boolean, array, object, null, any, alternatives as
    ``"string|null"``, with a final ``?`` if it is optional; a mapping instead of a type describes a nested object.
    ``partial: true`` gives the fraction of correct keys (including nested ones). ``strict: true`` allows no other keys.
    The answer must be only the object, optionally fenced as code; with ``anywhere: true`` the last object in the text
    is used.

    Example: ``{name: json_schema, keys: {color: string, count: integer}}``.
    Settings: ``extract`` as in ``exact_match``. No reference is needed.
    Range: 0 or 1; ``partial`` 0 to 1.
    Source: designed for mmgrpo.
    Traps: values are not checked: combine it with a reward that checks them. true is not an integer. Objects of more
    than 100,000 characters or nested deeper than 32 score 0; of repeated keys the last is used.
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
        self._extract: Extract = require_extract("JsonSchema.extract", extract)
        self._partial = partial
        self._strict = strict
        self._anywhere = anywhere

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.text is None else self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> Score:
        answer = extract_answer(text, self._extract) or ""
        objects = [value for value in json_values(answer) if isinstance(value, dict)] if self._anywhere else []
        parsed = objects[-1] if objects else json_document(answer)
        if not isinstance(parsed, dict):
            return Score(0.0, {"parsed": None, "reason": "no JSON object"})
        explanation: dict[str, Any] = {"parsed": excerpt(json.dumps(parsed, ensure_ascii=False))}
        extra = list(_extra(parsed, self._keys)) if self._strict else []
        if extra:
            return Score(0.0, explanation | {"reason": excerpt(f"not requested: {', '.join(extra)}")})
        right = list(_right(parsed, self._keys))
        explanation["parts"] = {key: float(fits) for key, fits in right}
        share = sum(fits for _, fits in right) / len(right)
        return Score(share if self._partial else float(share == 1), explanation)


def _tags(names: Any) -> tuple[str, ...] | None:
    """A list of distinct tag names; None for anything else."""
    tags = tuple(names) if isinstance(names, list | tuple) else ()
    is_valid = tags and len(set(tags)) == len(tags) and all(isinstance(tag, str) and tag.isidentifier() for tag in tags)
    return tags if is_valid else None


def compiled_pattern(where: str, pattern: str) -> Any:
    """A regular expression whose ``.`` matches line ends; ConfigError names the setting ``where``."""
    try:
        return regex.compile(pattern, regex.DOTALL)
    except regex.error as error:
        raise ConfigError(f"{where} is no regular expression: {error}; got {pattern!r:.80}") from error


def _check_keys(keys: Any, where: str) -> None:
    if not isinstance(keys, Mapping) or not keys:
        raise ConfigError(f"{where} must map keys to types, got {keys!r}")
    for key, kind in keys.items():
        if isinstance(kind, Mapping):
            _check_keys(kind, f"{where}.{key}")
        elif not isinstance(kind, str) or not all(name in {*JSON_TYPES, "any"} for name in kind.rstrip("?").split("|")):
            raise ConfigError(f"{where}.{key} must be one of {', '.join(JSON_TYPES)}, any, got {kind!r}")


def _right(parsed: Any, keys: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, bool]]:
    """For every key and nested key, by its path, whether it is present with its type."""
    for key, kind in keys.items():
        is_present = isinstance(parsed, dict) and key in parsed
        if isinstance(kind, Mapping):
            yield from _right(parsed[key] if is_present else None, kind, f"{path}{key}.")
        else:
            fits = _is_kind(parsed[key], kind) if is_present else kind.endswith("?") and isinstance(parsed, dict)
            yield f"{path}{key}", fits


def _is_kind(value: Any, kind: str) -> bool:
    names = kind.rstrip("?").split("|")
    if isinstance(value, bool):
        return "boolean" in names or "any" in names
    return "any" in names or any(isinstance(value, JSON_TYPES[name]) for name in names)


def _extra(parsed: dict[str, Any], keys: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """The paths of the keys that are not in the schema."""
    yield from (f"{path}{key}" for key in parsed if key not in keys)
    for key, kind in keys.items():
        if isinstance(kind, Mapping) and isinstance(parsed.get(key), dict):
            yield from _extra(parsed[key], kind, f"{path}{key}.")
