"""Code out of model text."""

from __future__ import annotations

import re
from typing import Literal

from .extraction import extract_answer

ExtractCode = Literal["fenced", "tag", "none"]

_FENCE = re.compile(r"^[ \t]*```[^\n`]*\n(.*?)^[ \t]*```", re.DOTALL | re.MULTILINE)


def code_in(text: str, how: ExtractCode) -> str | None:
    """The code of an answer; None where there is none.

    ``fenced`` is the last block between lines of three backticks, ``tag`` what ``<answer>..</answer>`` holds, without
    such lines around it, ``none`` the whole text. A thought holds none of it.
    """
    answer = extract_answer(text, "tag" if how == "tag" else "none")
    if answer is None or how == "none":
        return answer
    blocks = _FENCE.findall(answer)
    return blocks[-1] if blocks else answer if how == "tag" else None
