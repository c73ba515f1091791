"""Extraction of code from model text."""

from __future__ import annotations

import re
from typing import Literal

from .extraction import extract_answer

ExtractCode = Literal["fenced", "tag", "none"]

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def extract_code(text: str, how: ExtractCode) -> str | None:
    """Extract the code of an answer; None if there is none.

    ``fenced`` is the last block between lines of three backticks, ``tag`` the content of ``<answer>..</answer>``
    without such lines around it, ``none`` the complete text. Thoughts are excluded.
    """
    answer = extract_answer(text, "tag" if how == "tag" else "none")
    if answer is None or how == "none":
        return answer
    blocks = _FENCE.findall(answer)
    return blocks[-1] if blocks else answer if how == "tag" else None
