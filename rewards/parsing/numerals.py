"""Parses numbers in digits and English words, and clock times; linear in the length of the text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator

MAX_DIGITS = 100
"""Longer runs of digits are ignored."""

# fmt: off
_SMALL = {
    "zero": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9,
    "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19, "twenty": 20, "thirty": 30, "forty": 40, "fifty": 50,
    "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90,
}
# fmt: on
_SCALES = {"hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9}
_WORDS = {**_SMALL, **_SCALES}
_DETERMINERS = frozenset(("no", "any", "some", "every", "each", "the", "this", "that", "which", "another"))
_MINUS = frozenset(("minus", "negative"))

_PART = r"(?:,|[\u00a0\u2009\u202f'\u2019]|\{,\}|\\,|,?\\!)"  # between thousands; no plain space
_DECIMAL = rf"(?:\d{{1,3}}(?:{_PART}\d{{3}}){{1,6}}(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_MINUSES = "-\u2212\u2013\uff0d"
_SIGN = rf"(?<![\w)\].])[{_MINUSES}+]"
_TENS = rf"\s?(?:[x\u00d7*]|\\times|\\cdot)\s?10(?:\^|\*\*)\{{?(?P<tens>[{_MINUSES}+]?\d{{1,3}})(?!\d)\}}?"
_VULGAR = r"[\u00bc-\u00be\u2150-\u215e]"
_TOKEN = re.compile(
    rf"(?<!\w)(?<!\d[./])(?P<sign>{_SIGN})?(?:(?P<number>{_DECIMAL})(?P<power>[eE][-+]?\d++)?(?:{_TENS})?"
    rf"(?P<vulgar>{_VULGAR})?(?:/(?P<below>\d++(?:\.\d++)?+)(?![/\d]))?(?P<ordinal>(?:st|nd|rd|th)\b)?"
    rf"|(?P<alone>{_VULGAR}))|(?P<word>[^\W\d_]++)",
    re.IGNORECASE,
)
_CLOCK = re.compile(
    r"(?<![\d:.])(?:(?P<hours>\d{1,3}):)?(?P<minutes>\d{1,3}):(?P<seconds>\d{2}(?:\.\d{1,6})?)(?![\d:])"
)


def numbers(text: str, *, spoken: bool = True) -> list[float]:
    """The numbers in a text, in order.

    Digits of any script with a sign, thousands separators (``1,234``, ``1'234``, narrow and non-breaking spaces,
    LaTeX's ``1{,}234`` and ``1\\,234``), decimals, an exponent (``1e3``, ``1.2 x 10^3``) or as a fraction (``3/4``, or
    one character after the digits), units after them ignored (``5cm``, ``$5``, ``50%`` is 50); English cardinals if
    ``spoken`` ("minus two hundred and five", "3 million"). Not numbers: ordinals, digits inside a word (``x2``), a
    fraction over zero, "one" after a determiner ("no one"). Infinite and over-long numbers are omitted. "1,234" is
    1234; "1 234" and LaTeX fractions are two numbers; a decimal comma separates two numbers.
    """
    return list(_stated(text, spoken))


def stated_numbers(text: str, *, spoken: bool = True) -> list[float]:
    """As ``numbers``, but LaTeX fractions and mixed numbers are parsed, and numbers within a larger term are ignored.

    ``\\frac{3}{4}`` and ``\\frac34`` are 0.75, ``7\\frac{3}{4}`` is 7.75. Numbers with a root, \\pi, a power, a
    subscript, a variable or ``i`` (``\\sqrt{18}``, ``5\\pi``, ``10^3``, ``2x``) are ignored, as are numbers added to or
    multiplied with such a term.
    """
    return numbers(_without_terms(text), spoken=spoken)


def has_terms(text: str) -> bool:
    """Whether a text has terms that are not plain numbers; see ``stated_numbers``."""
    return _TERM in _without_terms(text)


_TERM = "\ue000"
_NUM = r"\d{1,30}(?:[.,]\d{1,30}){0,6}"
_ARGUMENT = r"\s?(?:\{([^{}]{0,40})\}|(\d))"
_FRACTION = re.compile(rf"(?:(?<![\d.])(\d{{1,15}})\s?)?\\[dtc]?frac(?:{_ARGUMENT}{_ARGUMENT})?")
_UNIT_POWER = re.compile(r"(?<=[A-Za-z}])\s?\^\s?\{?-?\d\}?(?![\d}])|(?<=[A-Za-z])[\u00b2\u00b3]")
_PARTS = re.compile(
    r"(?:\\sqrt|\u221a)(?:\[[^\[\]]{0,9}\])?\s?(?:\{(?:[^{}]|\{[^{}]{0,40}\}){0,80}\}|\(?\d{1,15}\)?)?"
    r"|\\(?:pi|theta|alpha|beta|infty|sin|cos|tan|ln|log|binom|sum|int)(?![A-Za-z])|\u03c0|\u221e"
    rf"|(?<!times)(?<!times )(?<!cdot)(?<!cdot )(?<![x*\u00d7])(?<![x*\u00d7] )(?<![\d.,]){_NUM}"
    rf"\s?\^(?!\s?\{{?\s?\\circ)\s?(?:\{{[^{{}}]{{0,40}}\}}|-?\d{{1,9}}|[A-Za-z])"
    rf"|(?<![\d.,\w]){_NUM}\s?_\s?(?:\{{[^{{}}]{{0,20}}\}}|\d{{1,2}})"
    rf"|(?<![\d.,\w]){_NUM}(?:[ijnyz](?![A-Za-z])|x(?=\s?(?:[-+*/^=)}}]|$)))|(?<![A-Za-z\\{{])[a-z]\s?[-+*/]\s?(?=\d)"
)
_JOINED = re.compile(rf"[\d.+*/(){{}} \t-]{{0,60}}{_TERM}(?:\s?[-+*/(){{}}{_TERM}]\s?[\d.]{{0,20}}){{0,20}}")


def _without_terms(text: str) -> str:
    plain = _UNIT_POWER.sub("", _FRACTION.sub(_plain_fraction, text))
    return _JOINED.sub(f" {_TERM} ", _PARTS.sub(_TERM, plain))


def _plain_fraction(match: re.Match[str]) -> str:
    above, below = ((match[at] or match[at + 1] or "").strip() for at in (2, 4))
    if not above.lstrip("-").isdecimal() or not below.isdecimal() or int(below) == 0:
        return _TERM
    integer = int(match[1] or 0)
    sign = "-" if above.startswith("-") else ""
    return f"{sign}{integer * int(below) + int(above.lstrip('-'))}/{int(below)}"


def seconds(text: str) -> list[float]:
    """The times in a text, in seconds: clock times (``m:ss``, ``h:mm:ss``) if there are any, else its numbers."""
    clock = [3600 * int(m["hours"] or 0) + 60 * int(m["minutes"]) + float(m["seconds"]) for m in _CLOCK.finditer(text)]
    return clock or numbers(text)


def _stated(text: str, spoken: bool) -> Iterator[float]:
    """Yield digits immediately; collect words until they cannot be continued."""
    run: list[str | float] = []
    before, end = "", 0
    for token in _TOKEN.finditer(text):
        word = (token["word"] or "").lower()
        near = token.start() == end or text[end : token.start()].strip(" \t\n-") == ""
        if not near or not _continues(run, word):
            yield from _values(run, before)
            before = before if run == [] else ""
            run = []
        if token["number"] is not None or token["alone"] is not None:
            value = _digits(token)
            run = [] if value is None else [value]
        elif spoken and (word in _SMALL or word in _SCALES or (word == "and" and run)):
            run.append(word)
        elif not run:
            before = word if word else before
        end = token.end()
    yield from _values(run, before)


def _continues(run: list[str | float], word: str) -> bool:
    if not run:
        return True
    if isinstance(run[0], float) and len(run) == 1:
        return word in _SCALES
    return word in _SMALL or word in _SCALES or (word == "and" and run[-1] in _SCALES)


def _digits(token: re.Match[str]) -> float | None:
    if token["ordinal"] is not None or len(token[0]) > MAX_DIGITS:
        return None
    tens = int((token["power"] or "e0")[1:]) + int(re.sub(f"[{_MINUSES}]", "-", token["tens"] or "0"))
    value = float(re.sub(r"[^\d.]", "", token["number"] or "0") + f"e{tens}")
    value += unicodedata.numeric(token["vulgar"] or token["alone"] or "0")
    below = 1.0 if token["below"] is None else float(token["below"])
    if below == 0 or not math.isfinite(value):
        return None
    return (-value if token["sign"] and token["sign"] in _MINUSES else value) / below


def _values(run: list[str | float], before: str) -> Iterator[float]:
    """The numbers of adjacent words: "twenty one" is one number, "two three" are two."""
    if run == ["one"] and before in _DETERMINERS:
        return
    values = list(_composed(run))
    if values and before in _MINUS:
        values[0] = -values[0]
    yield from values


def _composed(run: Iterable[str | float]) -> Iterator[float]:
    total, part, last = 0.0, None, math.inf  # part: value below the next thousand; last: bound of the next word
    for word in run:
        if word == "and":
            continue
        value = float(_WORDS[word]) if isinstance(word, str) else word
        if word == "hundred" and (part is None or part < 20):
            part, last = 100 * (1 if part is None else part), 100.0
        elif word in _SCALES and word != "hundred" and (part is not None or total == 0):
            total, part, last = total + value * (1 if part is None else part), None, value
        elif part is None and value < last:
            part, last = value, _max_addition(value)
        elif part is not None and value < last and value > 0:
            part, last = part + value, _max_addition(value)
        else:
            yield total + (part or 0)
            total, part, last = 0.0, value, _max_addition(value)
    if part is not None or total:
        yield total + (part or 0)


def _max_addition(value: float) -> float:
    """Bound of the next addend: units after tens, nothing after units."""
    return 10.0 if value >= 20 and value % 10 == 0 and value < 100 else 0.0
