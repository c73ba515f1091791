"""Rewards for mathematics: answers compared as expressions, by math-verify in a process that can be stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, final

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.rewards.explaining import compared, excerpt
from mmgrpo.rewards.parsing.extraction import extracted, without_thought
from mmgrpo.rewards.parsing.references import references
from mmgrpo.system.extras import is_installed, missing
from mmgrpo.types import Sample, Score

logger = logging.getLogger(__name__)

GRACE_S = 1.0  # beyond its limit, for the worker to stop by itself; then it is killed
START_S = 120.0
MAX_FORM_CHARS = 1_000


@final
class MathVerify:
    r"""Reward: 1 if the answer equals the reference as a mathematical expression, else 0, by math-verify.

    The answer is read from LaTeX in the text, ``\boxed{..}`` first; with ``plain: true`` from plain expressions ("1/2")
    as well. The reference, in ``column``, is LaTeX, an expression or a number; one that cannot be read is not judged
    (None). Verification runs in a process of its own with ``time_limit_s`` a sample and 4 GiB, on any thread; a sample
    that exceeds either has failed (NaN) and counts in ``failed_frac``. Of the text only the last ``max_chars``
    characters are read, and of those what stands outside of ``<think>..</think>``.

    Needs: the extra ``math``.
    Range: 0 or 1.   Units: seconds.
    Source: math-verify with the settings of TRL 1.16's ``accuracy_reward``. Deviations: time limits on every thread,
    and None instead of 0 for what takes too long; ``\frac12`` is a half and ``1\,000`` a thousand (there 0); references
    such as ``(1,2)`` and ``\sqrt2`` are read without dollar signs around them.
    Traps: an answer without LaTeX or a box scores 0 unless ``plain``; several different boxes are read as one list, and
    wrong. A reference that cannot be read is said once in the log, and ``applies_frac`` shows how many.
    """

    deterministic = True

    def __init__(
        self, column: str = "solution", plain: bool = False, time_limit_s: float = 5.0, max_chars: int = 20_000
    ) -> None:
        if not time_limit_s > 0 or max_chars < 1:
            raise ConfigError(
                f"MathVerify.time_limit_s and max_chars must be positive, got {time_limit_s} and {max_chars}"
            )
        if not is_installed("math_verify"):
            raise missing("math_verify", "reward math_verify")
        self._column = column
        self._plain = plain
        self._limit_s = time_limit_s
        self._max_chars = max_chars
        self._worker = _Worker()
        self._said_unread = False

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        known = references("math_verify", samples, self._column, _reference)
        values = [None if r is None else self._score(s.text or "", r) for s, r in zip(samples, known, strict=True)]
        self._say_unread([r for r, value in zip(known, values, strict=True) if r is not None and value is None])
        return values

    def _say_unread(self, unread: list[str]) -> None:
        if unread and not self._said_unread:
            self._said_unread = True
            logger.warning("math-verify cannot read %d references, such as %.80r: not judged", len(unread), unread[0])

    def _score(self, text: str, reference: str) -> float | Score | None:
        asked = {
            "gold": reference,
            "answer": without_thought(text[-self._max_chars :]),
            "plain": self._plain,
            "limit_s": self._limit_s,
        }
        said = self._worker.ask(asked, self._limit_s + GRACE_S)
        if "verdict" not in said:
            return float("nan")
        return None if said["verdict"] is None else Score(float(said["verdict"]), compared(said["parsed"], reference))


@final
class MathForm:
    r"""Reward: 1 if the answer in a box reads as a mathematical expression, right or wrong; else 0.

    The answer is what the last ``\boxed{..}`` holds, and no reference is needed. It is read as a reference of
    ``math_verify`` is, in a process of its own with ``time_limit_s`` a sample; a sample that exceeds it has failed
    (NaN).

    Needs: the extra ``math``.
    Range: 0 or 1.   Units: seconds.
    Source: the answer format of "Surrogate Signals from Format and Length", arXiv:2505.19439, which asks sympy.
    Traps: any number will do, so alone it is learnt at once. A box of more than 1,000 characters scores 0.
    """

    deterministic = True

    def __init__(self, time_limit_s: float = 5.0) -> None:
        if not time_limit_s > 0:
            raise ConfigError(f"MathForm.time_limit_s must be positive, got {time_limit_s}")
        if not is_installed("math_verify"):
            raise missing("math_verify", "reward math_form")
        self._limit_s = time_limit_s
        self._worker = _Worker()

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [None if sample.text is None else self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> float | Score:
        boxed = extracted(text, "boxed") or ""
        if not 0 < len(boxed) <= MAX_FORM_CHARS:
            return Score(0.0, {"parsed": excerpt(boxed or None), "reason": "too long" if boxed else "no box"})
        asked = {"gold": boxed, "answer": "", "plain": False, "limit_s": self._limit_s}
        said = self._worker.ask(asked, self._limit_s + GRACE_S)
        return Score(float(said["verdict"] is not None), {"parsed": excerpt(boxed)}) if "verdict" in said else math.nan


def _reference(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    return str(value)


@final
class _Worker:
    """One process of ``math_worker.py``, started when it is first asked, again after it had to be killed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._end: Callable[[], object] = _nothing
        self._lock = threading.Lock()

    def ask(self, asked: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Its answer; an empty one where it was killed or died."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                self._end()
                process = self._process = self._started()
            answer = _exchange(process, json.dumps(asked), limit_s)
            if not answer:
                self._end()
                self._process = None
                logger.warning("math-verify was stopped after %.1f s on %.80r", limit_s, asked["answer"][-80:])
            return answer

    def _started(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("math_worker.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
        )  # fmt: skip
        self._end = weakref.finalize(self, _ended, process)
        if not _exchange(process, None, START_S):
            self._end()
            raise MissingPackageError("math-verify could not be started: python -c 'import math_verify' says why")
        return process


def _nothing() -> None:
    """What ends no process."""


def _ended(process: subprocess.Popen[str]) -> None:
    """Stops a process, waits for it and closes its pipes."""
    process.kill()
    with contextlib.suppress(OSError), process:  # what was not yet written to it breaks the pipe
        pass


def _exchange(process: subprocess.Popen[str], line: str | None, limit_s: float) -> dict[str, Any]:
    """A line out and a line in; empty if the process has not answered in time, when it is killed."""
    assert process.stdin is not None
    assert process.stdout is not None
    timer = threading.Timer(limit_s, process.kill)
    timer.start()
    try:
        if line is not None:
            process.stdin.write(line + "\n")
            process.stdin.flush()
        return json.loads(process.stdout.readline() or "{}")
    except (OSError, ValueError):
        return {}
    finally:
        timer.cancel()
