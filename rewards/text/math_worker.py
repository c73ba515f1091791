"""Worker process that compares mathematical answers, so that it can be killed; reads and writes JSON lines.

Started by ``mmgrpo.rewards.text.mathematics`` as a module that imports sympy and not torch. It reads ``{"gold":
[texts], "answer", "plain", "limit_s"}`` and writes the result of ``compare``, or ``{"late": true}``.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from types import FrameType
from typing import Any

from ..parsing.solutions import boxes, stated_answer
from .math_equal import same
from .math_types import MathValue
from .math_values import values_of

MEMORY_BYTES = 4 << 30


class Late(BaseException):
    """The time limit is exceeded; a BaseException, so that ``except Exception`` does not catch it."""


def main() -> None:
    """Process lines until the input ends."""
    _limit_memory()
    logging.disable(logging.CRITICAL)
    compare([r"$x + 1$"], r"\boxed{\frac{2}{2} + x}", plain=True)  # builds sympy's caches before the first sample
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def compare(gold: list[str], answer: str, plain: bool) -> dict[str, Any]:
    """Compare an answer with the gold answers.

    Args:
        gold: the accepted answers.
        answer: the model's text.
        plain: also read answers that are not in LaTeX.

    Returns:
        ``is_equal``: whether it equals a gold answer, None if no gold answer can be parsed; ``parsed``: the stated
            answer or None; ``reason``, if it was not compared;
        ``is_expression``: whether a gold answer is mathematics, not words.
    """
    references = [value for text in gold for value in gold_values(text)]
    if not references:
        return {"is_equal": None, "parsed": None, "reason": "the reference cannot be read", "is_expression": False}
    is_expression = any(value.kind != "words" for value in references)
    stated = stated_answer(answer, plain=plain)
    if stated is None:
        return {"is_equal": False, "parsed": None, "reason": None, "is_expression": is_expression}
    values = values_of(stated)
    reason = None if values else "the answer cannot be parsed completely"
    is_equal = same(references, values)
    return {"is_equal": is_equal, "parsed": stated[:1000], "reason": reason, "is_expression": is_expression}


def gold_values(text: str) -> tuple[MathValue, ...]:
    """The interpretations of a reference: an answer, a solution that ends in a box, or a GSM8K solution (``####
    18``).
    """
    boxed = boxes(text)
    if boxed is not None:
        return values_of(boxed)
    marked = text.rpartition("####")
    return values_of(marked[2] if marked[1] else text) or values_of(stated_answer(text, plain=False) or "")


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        _set_alarm(request["limit_s"])
        try:
            answer = compare(request["gold"], request["answer"], request["plain"])
        finally:
            _set_alarm(0)
    except Late:
        return {"late": True}
    except (MemoryError, RecursionError):
        return {"late": True}
    return answer


def _set_alarm(limit_s: float) -> None:
    if hasattr(signal, "setitimer"):
        signal.signal(signal.SIGALRM, _raise_late)
        signal.setitimer(signal.ITIMER_REAL, limit_s)


def _raise_late(number: int, frame: FrameType | None) -> None:
    raise Late


def _limit_memory() -> None:
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    main()
