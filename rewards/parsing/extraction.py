"""Extracts answers from model text, in linear time, with size limits, and without executing any of it.

Every function accepts any string, however long, nested or malformed, and returns None or an empty result instead of
raising.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import regex

from mmgrpo.errors import ConfigError

ExtractMode = Literal["none", "tag", "boxed", "line"]
Extract = ExtractMode | Mapping[str, str]

MAX_TEXT_CHARS = 100_000
"""Of longer answers only the end is parsed."""

MAX_ANSWER_CHARS = 10_000
"""Longer answers are not normalized, because Unicode normalization is quadratic in runs of combining marks."""

MAX_JSON_CHARS = 100_000
MAX_JSON_DEPTH = 32
MAX_NUMBER_CHARS = 300

_OPENING = {")": "(", "]": "[", "}": "{"}


def require_choice(where: str, value: str, allowed: Any) -> Any:
    """The value, if it is one of a Literal's values. Raises ConfigError otherwise, with the allowed values."""
    if value not in get_args(allowed):
        raise ConfigError(f"{where} must be one of {', '.join(get_args(allowed))}, got {value!r}")
    return value


def require_extract(where: str, extract: Extract) -> Extract:
    """The setting, if it is an ``ExtractMode`` or ``{tag: NAME}``. Raises ConfigError otherwise."""
    if not isinstance(extract, Mapping):
        return require_choice(where, extract, ExtractMode)
    name = extract.get("tag")
    if set(extract) != {"tag"} or not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][\w.-]*", name):
        raise ConfigError(f"{where} must be {{tag: NAME}} with the name of a tag, or a word, got {extract!r}")
    return dict(extract)


def require_fraction(where: str, value: float) -> float:
    """The value, if it is in [0, 1]. Raises ConfigError otherwise."""
    if not 0 <= value <= 1:
        raise ConfigError(f"{where} must be in [0, 1], got {value}")
    return value


def extract_answer(text: str, how: Extract) -> str | None:
    r"""Extract the answer of a text, stripped of whitespace; None if there is none.

    Thoughts, ``<think>..</think>`` or an unclosed ``<think>``, are removed first. ``none`` is the complete text,
    ``tag`` the content of the last ``<answer>..</answer>``, ``boxed`` the content of the last ``\boxed{..}`` (with
    balanced braces), ``line`` the last non-blank line. ``{tag: NAME}`` is the content of the last ``<NAME>..</NAME>``,
    also inside a thought, or the thought itself. Tags are case-sensitive. Of longer answers the last ``MAX_TEXT_CHARS``
    characters are returned.
    """
    named = isinstance(how, Mapping)
    text = text if named else without_thought(text)
    if named or how == "tag":
        answer = _last_tag(text, how["tag"] if named else "answer")
    elif how == "boxed":
        answer = _last_boxed(text)
    else:
        answer = text.strip() if how == "none" else text.strip().rpartition("\n")[2].strip() or None
    return None if answer is None else answer[-MAX_TEXT_CHARS:]


def without_thought(text: str) -> str:
    """The text after the last ``</think>`` and before an unclosed ``<think>``."""
    return text.rpartition("</think>")[2].partition("<think>")[0]


def normalize_text(text: str, *, ignore_case: bool = True) -> str | None:
    """NFKC, runs of whitespace as one space, stripped, case folded; None above ``MAX_ANSWER_CHARS`` characters.

    The Turkish capital I with a dot is folded to i without a further dot.
    """
    if len(text) > MAX_ANSWER_CHARS:
        return None
    plain = " ".join(unicodedata.normalize("NFKC", text).split())
    return plain.casefold().replace("i\u0307", "i") if ignore_case else plain


_WORD = regex.compile(r"[\p{L}\p{N}][\p{L}\p{N}\p{M}]*(?:'[\p{L}\p{N}][\p{L}\p{N}\p{M}]*)*")
_PICTOGRAPH = regex.compile(r"\p{Extended_Pictographic}|\p{Regional_Indicator}{2}")
_LABEL_WORD = regex.compile(
    rf"(?:(?<![\p{{L}}\p{{N}}\p{{M}}])-(?=\p{{N}}))?{_WORD.pattern}(?:[+#]++(?![\p{{L}}\p{{N}}]))?|{_PICTOGRAPH.pattern}"
)
_CHARACTER = regex.compile(r"[\p{L}\p{N}]\p{M}*")
_INVISIBLE = regex.compile(r"[\p{Cf}\p{Variation_Selector}\u0640\u20e3]")
_VARIANTS = str.maketrans({"\u2019": "'", "\u02bc": "'", "\u2212": "-"})


def words(text: str) -> list[str]:
    """The words of a text, normalized, without punctuation; underscores separate words. Empty if the text is too long.

    A word begins with a letter or a digit and keeps its combining marks: vowel signs of Hindi, Bengali, Thai, Tamil,
    points of Hebrew and Arabic. Invisible characters (joiners, soft hyphens, direction marks) and the Arabic tatweel
    are removed; typographic apostrophes become ASCII apostrophes.
    """
    return _WORD.findall(_visible(text))


def label_words(text: str) -> list[str]:
    """The words of a label, including signs that distinguish labels.

    As ``words``, but "-1" keeps its sign, and "C++", "C#" and "A+" the marks after their letters; emoji are words.
    """
    return _LABEL_WORD.findall(_visible(text))


def label_key(text: str) -> str:
    """The comparison key of a label: its ``label_words``, without emoji if there are other words."""
    tokens = label_words(text)
    return " ".join([word for word in tokens if not _PICTOGRAPH.match(word)] or tokens)


def characters(text: str) -> list[str]:
    """The letters and digits of a text, normalized, each with its combining marks. Empty if the text is too long."""
    return _CHARACTER.findall(_visible(text))


def _visible(text: str) -> str:
    return _INVISIBLE.sub("", normalize_text(text) or "").translate(_VARIANTS)


def json_values(text: str) -> list[Any]:
    """The outermost JSON arrays and objects in a text, in order; surrounding text is ignored.

    Python notation is used if it covers more of the text: single quotes, tuples, True, None, trailing commas. Values
    longer than ``MAX_JSON_CHARS`` or nested deeper than ``MAX_JSON_DEPTH`` are skipped, as are NaN and infinity. Of
    repeated keys the last is used.
    """
    as_json = [(len(span), value) for span in _spans(text, "[]{}", '"') for value in _loaded(span)]
    as_python = [(len(s), value) for s in _spans(text, "[](){}", "\"'") for value in _loaded(_as_json(s))]
    return [value for _, value in max(as_json, as_python, key=lambda read: sum(size for size, _ in read))]


def json_document(text: str) -> Any:
    """The JSON array or object that is the complete text, optionally fenced as code; None otherwise."""
    body = text.strip()
    if body.startswith("```") and body.endswith("```") and len(body) >= 6:
        body = body[3:-3].removeprefix("json").strip()
    spans = list(_spans(body, "[]{}", '"'))
    values = _loaded(spans[0]) if spans == [body] else []
    return values[0] if values else None


def finite(value: Any) -> float | None:
    """A number as a float; None for other types, bools, infinity and NaN."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _last_tag(text: str, name: str) -> str | None:
    opening, closing = f"<{name}>", f"</{name}>"
    start = text.rfind(opening, 0, max(text.rfind(closing), 0))
    return None if start < 0 else text[start + len(opening) :].partition(closing)[0].strip()


def _last_boxed(text: str) -> str | None:
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, start = 0, start + len("\\boxed")
    for mark in re.finditer(r"\\[\s\S]|[{}]", text[start:]):
        depth += {"{": 1, "}": -1}.get(mark[0], 0)
        if depth == 0 and mark[0] == "}":
            return text[start + 1 : start + mark.start()].strip()
    return None


@dataclass(slots=True)
class _Open:
    """An open bracket and the nesting depth of its content."""

    bracket: str
    start: int
    height: int = 1


def _spans(text: str, brackets: str, quotes: str) -> Iterator[str]:
    """The outermost balanced bracketed spans, in order; quotes are recognized only within brackets."""
    stack: list[_Open] = []
    spans: list[slice] = []
    quote, escaped = "", -1
    for mark in re.finditer("[" + re.escape(brackets + quotes) + r"\\]", text):
        char, at = mark[0], mark.start()
        if char == "\\":
            escaped = at + 1 if at != escaped else -1
        elif quote:
            quote = "" if char == quote and at != escaped else quote
        elif char in quotes:
            quote = char if stack else ""
        elif char not in _OPENING:
            stack.append(_Open(char, at))
        elif stack and stack[-1].bracket == _OPENING[char]:
            _close(stack, spans, at + 1)
        else:
            stack.clear()
    yield from (text[span] for span in spans)


def _close(stack: list[_Open], spans: list[slice], end: int) -> None:
    """Record the span of the innermost bracket and drop the spans inside it."""
    piece = stack.pop()
    while spans and spans[-1].start > piece.start:
        spans.pop()
    if stack:
        stack[-1].height = max(stack[-1].height, piece.height + 1)
    if piece.height <= MAX_JSON_DEPTH and end - piece.start <= MAX_JSON_CHARS:
        spans.append(slice(piece.start, end))


def _loaded(span: str) -> list[Any]:
    """The value of a span, in a list; an empty list if it is invalid."""
    try:
        return [json.loads(span, strict=False, parse_float=_float, parse_int=_int, parse_constant=_reject_constant)]
    except (ValueError, RecursionError):
        return []


def _float(digits: str) -> float:
    value = float(digits) if len(digits) <= MAX_NUMBER_CHARS else math.inf
    if not math.isfinite(value):
        raise ValueError("not finite")
    return value


def _int(digits: str) -> int:
    if len(digits) > MAX_NUMBER_CHARS:
        raise ValueError("too long")
    return int(digits)


def _reject_constant(constant: str) -> float:
    raise ValueError(constant)


_PYTHON = re.compile(
    r""""(?:[^"\\]|\\[\s\S])*+"|'(?:[^'\\]|\\[\s\S])*+'|[()]|,(?=\s*+[\])}])|\b(?:True|False|None)\b"""
)
_AS_JSON = {"(": "[", ")": "]", ",": "", "True": "true", "False": "false", "None": "null"}


def _as_json(span: str) -> str:
    """Convert a span in Python notation to JSON; other spans are unchanged and then invalid."""
    return _PYTHON.sub(lambda token: _AS_JSON.get(token[0]) or _quoted(token[0]), span)


def _quoted(token: str) -> str:
    if not token.startswith("'"):
        return "" if token == "," else token
    inner = re.sub(r'\\[\s\S]|"', lambda mark: {"\\'": "'", '"': '\\"'}.get(mark[0], mark[0]), token[1:-1])
    return f'"{inner}"'
