"""Reads the letters of options out of model text."""

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
_WORD = r"[^\W\u3040-\u30ff\u3400-\u9fff]"  # not of Chinese and Japanese, where a letter stands alone


def standalone_letters(text: str, letters: str) -> list[str]:
    """The option letters that a text states, in order; see ``MultipleChoice`` for what counts."""
    text = text.translate(_WIDE)
    alone = text.strip(string.whitespace + string.punctuation)
    if len(alone) == 1 and alone.upper() in letters:
        return [alone.upper()]
    before, after = rf"(?<!{_WORD}|['\u2019])(?<!{_WORD}[-.])", rf"(?!{_WORD}|[+#]|['\u2019-]\w|\.\w\b)"
    pattern = rf"{before}([{letters}]){after}|[(\[]([{letters.lower()}])[)\]]"
    return [(m[1] or m[2]).upper() for m in re.finditer(pattern, text) if m[2] or not _is_word(text, m)]


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
