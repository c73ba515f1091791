r"""Extracts the stated answer of a solution: in boxes, after "answer is", or at the end.

The complete statement is returned, never a part of it: "The answer is $2$ or $3$" gives ``$2$ or $3$``.
"""

from __future__ import annotations

import re

from .extraction import extract_answer
from .latex import closing_brace
from .units import unit_of

MAX_ANCHORS = 20
"""Maximum number of occurrences of "answer" that are considered, from the end, each with this many characters after
it:
"""

MAX_WINDOW = 4_000

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_JOINED = re.compile(r"\b(?:and|or)\b|[,;]")
_NEAR, _FAR = 10, 70  # characters between boxes of one answer, without and with a comma, "and" or "or"
_DOLLARS = r"(?<!\\)\$\$(?:[^$]|\\\$)+?(?<!\\)\$\$|(?<!\\)\$(?:[^$\n]|\\\$)+?(?<!\\)\$"
_MATH = (
    rf"(?:{_DOLLARS}|\\\[[\s\S]{{1,4000}}?\\\]|\\\([^\n]{{1,4000}}?\\\)|-?\\[dt]?frac\{{-?[\d.,]+\}}\{{-?[\d.,]+\}})"
)
_AFTER = r"(?:\s*(?:\\?%|percent|degrees?|\\text\{[^{}]*\}))?"
_LIST = re.compile(rf"{_MATH}{_AFTER}(?:\s*(?:,|,?\s*and|,?\s*or)\s*{_MATH}{_AFTER}){{0,11}}")
_ANCHOR = re.compile(r"\banswer\b", re.IGNORECASE)
_HASHES = re.compile(r"####\s*([^\n]+)")
_SENTENCE = re.compile(r"[^\n]{0,400}")
_STATED = re.compile(
    r"^(?:\s*(?:is|are|was|equals|to|be|should|must|would|the|question|this|problem|of|your|my|final)\b|[\s:=*]){1,12}",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\\(?:text|mathrm|mbox)\{[^{}\n]{0,60}\}|\\[A-Za-z]+|\\[{}%$,;! ]|\d+(?:[.,]\d+)*|[-+*/^=<>()\[\]{}_!|%:$,]"
    r"|[A-Za-z]+|[^\s]"
)
_FUNCTION = re.compile(r"sqrt|sin|cos|tan|log|ln|pi|inf|infinity|exp", re.IGNORECASE)
_SCALES = ("hundred", "thousand", "million", "billion", "dozen", "percent")
_OPERATORS = ("or", "and", "times", "over", "plus", "minus", "divided", "multiplied", "squared", "cubed", "to")


def stated_answer(text: str, *, plain: bool) -> str | None:
    r"""The answer that a text states; None if there is none.

    Args:
        text: a solution.
        plain: also read answers that are not in LaTeX.

    Returns:
        The content of the last ``\boxed{..}``, joined by commas with adjacent boxes; else the LaTeX within 50
        characters after the last "answer", or in ``<answer>..</answer>``; with ``plain`` else the following plain text,
        or the last expression.
    """
    boxed = boxes(text)
    if boxed is not None:
        return boxed
    if re.search(r"\\(?:boxed|fbox)\s*\{", text):
        return None
    tagged = extract_answer(text, "tag")
    text = text if tagged is None else tagged
    hashes = _HASHES.findall(text)
    if hashes and plain:
        return hashes[-1].strip()
    anchored = _anchored(text) or (tagged if tagged and _LIST.search(tagged) else None)
    if anchored is not None or not plain:
        return anchored
    return _after_anchor(text) or _last_math(text) or (tagged or None)


def boxes(text: str) -> str | None:
    """The contents of the last box and of adjacent boxes before it, joined by commas; None without a closed box."""
    contents: list[str] = []
    later_start: int | None = None
    for match in reversed(list(_BOX.finditer(text))):
        at = match.end()
        if at >= len(text) or text[at] != "{":
            content, end = (text[at : at + 1], at) if text[at : at + 1].isalnum() else ("", -1)
        else:
            end = closing_brace(text, at)
            content = text[at + 1 : end].strip()
        if end < 0:
            break
        if later_start is not None:
            between = text[end + 1 : later_start]
            if end >= later_start or not (len(between) < _NEAR or (len(between) < _FAR and _JOINED.search(between))):
                if end < later_start:
                    break
                contents[-1:] = [content]
                later_start = match.start()
                continue
        if not contents or contents[-1] != content:
            contents.append(content)
        later_start = match.start()
    return ",".join(reversed(contents)) or None


def _anchored(text: str) -> str | None:
    """The LaTeX within 50 characters after the last "answer" that is followed by LaTeX, with adjacent tokens."""
    for anchor in list(_ANCHOR.finditer(text))[: -MAX_ANCHORS - 1 : -1]:
        window = text[anchor.end() : anchor.end() + MAX_WINDOW]
        match = _LIST.search(window)
        if match is None or match.start() > 50 or "\n\n" in window[: match.start()]:
            continue
        return match[0] if re.search(r"[\w}]$", window[: match.start()]) is None else window[: match.end()]
    return None


def _after_anchor(text: str) -> str | None:
    """The text after the last "answer is" or "answer:": words that form the complete sentence, or an expression."""
    for anchor in list(_ANCHOR.finditer(text))[: -MAX_ANCHORS - 1 : -1]:
        rest = _SENTENCE.match(text, anchor.end())
        stated = _STATED.sub("", rest[0]) if rest else ""
        words = re.match(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,5}(?=[*_\"]{0,2}(?:[.!?]|$))", stated)
        answer = words[0] if words else _leading_math(stated)
        if answer:
            return answer
    return None


def _leading_math(text: str) -> str | None:
    """The leading expression of a text with the noun after it, if followed by prose or nothing."""
    run = _runs(text)
    return run[0][1] if run and run[0][0] <= 40 else None


def _last_math(text: str) -> str | None:
    """The last expression of a text with a digit or a command."""
    for line in reversed(text.splitlines()):
        runs = _runs(line)
        if runs:
            return runs[-1][1]
    return None


def _runs(line: str) -> list[tuple[int, str]]:
    """The expressions in a line with their positions; they are separated by words other than operators."""
    runs: list[tuple[int, str]] = []
    start = end = -1
    for token in _TOKEN.finditer(line):
        if _continues(token, line, start, end):
            start = token.start() if start < 0 else start
            end = token.end()
        elif start >= 0:
            runs.append((start, line[start : _unit_end(line, end)]))
            start = -1
    if start >= 0:
        runs.append((start, line[start:end]))
    cleaned = [(at, _trimmed(run)) for at, run in runs]
    return [(at, run) for at, run in cleaned if re.search(r"\d|\\[A-Za-z]|\u03c0|\u221e", run)]


_UNIT = re.compile(
    r"\s?(?:(?:square|sq|cubic|cu)\.? )?([A-Za-z]{1,20})(?:\^\{?\d\}?)?"
    r"(?:(?:/| per )[A-Za-z]{1,20}(?:\^\{?\d\}?)?)?(?![\w{])"
)


def _unit_end(line: str, end: int) -> int:
    """The end of an expression including a following unit of measurement."""
    match = _UNIT.match(line, end)
    if match is None or match[1].lower() in ("in", "a", "v", "n", "j", "w", "k") or not unit_of(match[0]).measures:
        return end
    return match.end()


def _continues(token: re.Match[str], line: str, start: int, end: int) -> bool:
    """Whether a token continues an expression; ``start`` and ``end`` are the bounds of the current expression, or
    -1.
    """
    word = token[0]
    if word in ("!", ",", ":"):
        is_glued = start >= 0 and token.start() == end
        return is_glued and (word != ":" or line[token.end() : token.end() + 1].isdigit())
    if word == ";" or not (word.isalpha() and word.isascii()):
        return word != ";"
    if start >= 0 and word.lower() in (*_OPERATORS, *_SCALES):
        return True
    return (len(word) == 1 and word not in ("a", "I", "A")) or _is_function(word, line, token.end())


def _is_function(word: str, line: str, end: int) -> bool:
    return _FUNCTION.fullmatch(word) is not None and (line[end : end + 1] != "" or word.lower() == "pi")


def _trimmed(run: str) -> str:
    """Remove word operators and punctuation at the ends, and unmatched brackets."""
    run = re.sub(rf"(?:\s*\b(?:{'|'.join(_OPERATORS)}))+$", "", run).rstrip()
    is_factorial = re.search(r"[\d)n]!$", run) is not None
    run = run.strip(" ,;:=*" if is_factorial else " ,;:!=*\u201d")
    opened, closed = (sum(map(run.count, marks)) for marks in ("([", ")]"))
    if opened < closed and run.endswith((")", "]")):
        return run[:-1].strip()
    return run[1:].strip() if opened > closed and run.startswith(("(", "[")) else run
