"""Parses option letters from model text."""

from __future__ import annotations

import re
import string

_AFTER_LETTER = re.compile(
    "and|appears|as|are|because|but|does|fits|has|in|is|looks|matches|must|or|seems|should|shows|since|was|would",
    re.IGNORECASE,
)
_WIDE = {  # letters and brackets in full width
    code: code - 0xFEE0 for code in (*range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B), 0xFF08, 0xFF09)
}
_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"  # not of Chinese and Japanese, where letters are standalone
_MARKS = "[\\s*_#>\"'`]{0,8}"
_ANSWER = r"(?:answer|option|choice)s?(?:[ \t]{1,4}(?:is|are))?"
_LABEL = (
    r"(?:[(\[](?P<bracketed>[{both}])[)\]][*_]{{0,2}}[.:]?"
    r"|(?P<bare>[{bare}])(?:[).:\uff1a\u3001]|[ \t][-\u2013\u2014]))"
)
_NEGATION = re.compile(
    r"(?:\bnot|n['\u2019]t|\bnor|\bneither|\brather than|\brule out)\s+(?:options?\s+)?[*(\[]{0,3}$", re.I
)


def standalone_letters(text: str, letters: str) -> list[str]:
    """The option letters in a text, in order; the rules are in ``MultipleChoice``."""
    text = text.translate(_WIDE)
    alone = text.strip(string.whitespace + string.punctuation)
    if len(alone) == 1 and alone.upper() in letters:
        return [alone.upper()]
    text = re.sub(rf"^\s*[*_]{{0,2}}[(\[]?([{letters}])[)\].:]{{0,2}}[*_]{{0,2}}\s*\n\s*(?=[^\n]+\s*$)", r"\1. ", text)
    return [letter for line in text.splitlines() for letter in _of_line(line, letters)]


def _of_line(line: str, letters: str) -> list[str]:
    """The letters of a line; of a labeled option such as "B. Vitamin C", the label and further labels in its text."""
    labeled = _labeled(line, letters)
    if labeled is None:
        return _bare(line, letters)
    start, letter, rest = labeled
    return [*_bare(line[:start], letters), letter, *_labels_within(rest, letters)]


def _labeled(line: str, letters: str) -> tuple[int, str, str] | None:
    """Position of a label at the start of a line or after "answer is", its letter, and the text of the option."""
    label = _LABEL.format(both=letters + letters.lower(), bare=letters)
    at_start = _LABEL.format(both=letters + letters.lower(), bare=letters + letters.lower())
    match = re.match(rf"(?P<before>{_MARKS}){at_start}(?P<after>[*_]{{0,2}}(?=\s))", line)
    match = match or re.search(rf"(?P<before>\b(?i:{_ANSWER})[\s:*_]{{1,6}}){label}(?P<after>[*_]{{0,2}}(?=\s))", line)
    if match is None:
        return None
    rest = line[match.end() :].strip()
    words = re.findall(rf"{_WORD}{{1,40}}", rest)
    is_text = bool(words) and not (len(words) == 1 and len(words[0]) == 1 and words[0].upper() in letters)
    if not is_text or words[0].lower() in ("and", "or"):
        return None
    return match.start(), (match["bracketed"] or match["bare"]).upper(), rest


def _labels_within(text: str, letters: str) -> list[str]:
    """Further option labels in the text of an option: in brackets, or before another text."""
    further = rf"[(\[]([{letters}{letters.lower()}])[)\]]|(?<!{_WORD})([{letters}])[.:)][*_]{{0,2}}(?=\s+\S)"
    again = rf"\b(?i:{_ANSWER})[\s:*_]{{1,6}}[(\[]?([{letters}])(?!{_WORD}|['\u2019-]\w)"
    return [
        (m[1] or m[2] or m[3]).upper() for m in re.finditer(rf"{further}|{again}", text) if not _is_negated(text, m)
    ]


def _bare(text: str, letters: str) -> list[str]:
    """The standalone letters in a text."""
    before, after = rf"(?<!{_WORD}|['\u2019])(?<!{_WORD}[-.])", rf"(?!{_WORD}|[+#]|['\u2019-]\w|\.\w\b)"
    last = rf"\b(?i:{_ANSWER})[\s:*_]{{1,6}}([{letters.lower()}])(?=[\s*_]{{0,4}}[.,;]?\s*$)"
    pattern = rf"{before}([{letters}]){after}|[(\[]([{letters.lower()}])[)\]]|{last}"
    matches = [m for m in re.finditer(pattern, text) if not _is_negated(text, m)]
    return [(m[1] or m[2] or m[3]).upper() for m in matches if not m[1] or not _is_word(text, m)]


def _is_negated(text: str, letter: re.Match[str]) -> bool:
    return _NEGATION.search(text[max(letter.start() - 40, 0) : letter.start()]) is not None


def _is_word(text: str, letter: re.Match[str]) -> bool:
    """Whether a capital A or I before a word is the article or the pronoun."""
    follower = re.match(r"[ \t]{1,8}((?![A-Z]\b)[^\W\d_]{1,20})", text[letter.end() : letter.end() + 30])
    if letter[0] not in "AI" or follower is None:
        return False
    if letter[0] == "I":
        return True
    before = text[max(letter.start() - 40, 0) : letter.start()].rstrip(" \t\"'*(")
    starts = not before or before[-1] in ".!?\n>"
    return starts and not _AFTER_LETTER.fullmatch(follower[1])
