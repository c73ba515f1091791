"""The process that runs math-verify, on its own so that it can be stopped: a line of JSON in, a line of JSON out.

Started by ``mmgrpo.rewards.text.mathematics`` as a file, so that it imports sympy and not torch. It takes
``{"gold", "answer", "plain", "limit_s"}`` and says ``{"verdict": true, false or null, "parsed": text or null}``, null
where the gold answer or the answer cannot be read, or ``{"late": true}``. math-verify's own limits stay off: they cover
single steps, this one the whole.
"""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from functools import lru_cache
from types import FrameType
from typing import Any

from latex2sympy2_extended import NormalizationConfig
from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

MEMORY_BYTES = 4 << 30

_THOUSANDS = re.compile(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3}(?!\d))")
_WORDS = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}|[$\n]")


class Late(BaseException):
    """The time is up; no Exception, so that nothing on the way catches it."""


def main() -> None:
    """Answers every line until the input ends."""
    _limit_memory()
    logging.disable(logging.CRITICAL)
    verdict(
        "$x + 1$", r"\boxed{\frac{2}{2} + x}", plain=True
    )  # what sympy builds on first use is not on the first sample
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line))), flush=True)


def verdict(gold: str, answer: str, plain: bool) -> bool | None:
    """Whether an answer equals the gold one; see ``judged``."""
    return judged(gold, answer, plain)["verdict"]


def judged(gold: str, answer: str, plain: bool) -> dict[str, Any]:
    """The verdict, whether an answer equals the gold one, None where the gold one cannot be read; and what was parsed.

    Args:
        gold: the right answer.
        answer: the model's text.
        plain: also read answers that are not in LaTeX.

    Returns:
        ``verdict``: what TRL 1.16's ``accuracy_reward`` makes of the two, if not ``plain``, but that it reads
        ``\\frac12``, ``1\\,000`` and gold answers in LaTeX without dollar signs; ``parsed``: the answer as it was read,
        None where none was found.
    """
    known = _gold(gold)
    if not known:
        return {"verdict": None, "parsed": None}
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True, malformed_operators=True),
        boxed_match_priority=0,
        try_extract_without_anchor=False,
    )
    said = parse(
        _joined(answer),
        extraction_config=[latex, ExprExtractionConfig()] if plain else [latex],
        extraction_mode="first_match",
        parsing_timeout=0,
    )
    written = [one for one in said if isinstance(one, str)]
    return {"verdict": bool(verify(known, said, timeout_seconds=0)), "parsed": written[-1][:1000] if written else None}


@lru_cache(maxsize=256)
def _gold(gold: str) -> list[Any]:
    """As it stands; else as LaTeX, unless it has words in it."""
    found = parse(_joined(gold), parsing_timeout=0)
    return found or ([] if _WORDS.search(gold) else parse(f"${_joined(gold)}$", parsing_timeout=0))


def _joined(text: str) -> str:
    """Without LaTeX's narrow spaces between thousands, which would multiply them."""
    return _THOUSANDS.sub("", text)


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        _set_alarm(asked["limit_s"])
        try:
            found = judged(asked["gold"], asked["answer"], asked["plain"])
        finally:
            _set_alarm(0)
    except Late:
        return {"late": True}
    except (MemoryError, RecursionError):
        return {"late": True}
    return found


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
