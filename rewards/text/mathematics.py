"""Rewards for mathematics: answers compared as expressions by math-verify, in a separate process with limits."""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import math
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, final

from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.system.extras import is_installed, missing
from mmgrpo.system.folders import PACKAGE
from mmgrpo.types import Sample, Score

from ..parsing.explanations import comparison, excerpt
from ..parsing.extraction import extract_answer, without_thought
from ..parsing.reference_values import read_references, shortest_notation
from ..parsing.scalars import plain_value

logger = logging.getLogger(__name__)

GRACE_S = 1.0  # time beyond the limit for the worker to stop; then it is killed
START_S = 120.0
MAX_FORM_CHARS = 1_000


@final
class MathVerify:
    r"""Reward: 1 if the answer is mathematically equal to the reference, else 0, by math-verify.

    Texts must be parsed completely. The reference, in ``column``, is LaTeX with or without delimiters, plain
    mathematics, words, a number, a solution that ends in a box, a GSM8K solution (``#### 18``), or a list of accepted
    ones. A reference that cannot be parsed completely is not scored (None); a run without a readable reference raises
    an error before training, other runs log the number. The answer is the content of the last ``\boxed{..}``, or else
    the LaTeX after "answer"; with ``plain: true`` also the expression after "answer", or the last expression of the
    text ("it is 1/2"). An answer that can only be parsed partially scores 0.

    Forms: integers, fractions, mixed numbers, decimals, repeating decimals, 1.5\times 10^{3} and 1.5e3, thousands
    (``1,234``, ``1{,}234``, ``1\,234``), percent, degrees, currencies, units, roots, powers, factorials, \pi, i,
    polynomials and functions, lists in any order, \pm, sets, tuples, intervals and unions, inequalities, equations,
    matrices, ratios, times of day, numerals in a base, words and letters. None: cases, families of solutions
    (k \in \mathbb{Z}), digits separated by spaces other than thousands.

    Verification runs in a separate process with ``time_limit_s`` per sample and 4 GiB; a sample that exceeds either
    limit fails (NaN) and counts in ``failed_frac``. Only the last ``max_chars`` characters of the text are read,
    without ``<think>..</think>``.

    Needs: the extra ``math``.
    Range: 0 or 1.   Units: seconds.
    Source: TRL 1.16's ``accuracy_reward``, with math-verify's parser and symbolic comparison.
    Deviations: references and answers are parsed completely, so fragments do not match; numbers are compared exactly, a
    decimal with a non-terminating number (1/3, \sqrt{2}) within a relative 1e-6; a set is not a tuple; letters are
    case-sensitive; words are compared as words; time limits apply on every thread, and exceeding them gives NaN instead
    of 0.
    Traps: an answer without LaTeX or a box scores 0 unless ``plain``; different boxes close to each other form one
    list. A unit or percent sign on only one side is ignored (50 equals 50%, as does 0.5), as is the base of a numeral;
    two units of measurement must agree (5 cm equals 50 mm). "1,234" is a number, "1, 234" a list. A rounded decimal
    (3.14 for \pi) is wrong.
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
        self.column = column
        self._plain = plain
        self._limit_s = time_limit_s
        self._max_chars = max_chars
        self._worker = _Worker()
        self._has_warned = False

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        golds = read_references("math_verify", samples, self.column, _reference)
        values = [None if r is None else self._score(s.text or "", r) for s, r in zip(samples, golds, strict=True)]
        self._warn_of_unread([r for r, value in zip(golds, values, strict=True) if r is not None and value is None])
        return values

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        gold = _reference(plain_value(value))
        if gold is None:
            return "it is neither a text nor a number"
        if self._score("", gold) is None:
            return "it cannot be parsed completely"
        return None

    def _warn_of_unread(self, unread: list[list[str]]) -> None:
        if unread and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "math-verify cannot parse %d references completely, such as %.80r: not scored",
                len(unread),
                unread[0][0],
            )

    def _score(self, text: str, gold: list[str]) -> float | Score | None:
        request = {
            "gold": gold,
            "answer": without_thought(text[-self._max_chars :]),
            "plain": self._plain,
            "limit_s": self._limit_s,
        }
        reply = self._worker.ask(request, self._limit_s + GRACE_S)
        if "is_equal" not in reply:
            return float("nan")
        if reply["is_equal"] is None:
            return None
        return Score(float(reply["is_equal"]), comparison(reply["parsed"], gold, reply["reason"]))


@final
class MathForm:
    r"""Reward: 1 if the answer in a box parses as a mathematical expression, correct or not; else 0.

    The answer is the content of the last ``\boxed{..}``; no reference is needed. It is parsed like a reference of
    ``math_verify``, in a separate process with ``time_limit_s`` per sample; a sample that exceeds it fails (NaN).

    Needs: the extra ``math``.
    Range: 0 or 1.   Units: seconds.
    Source: the answer format of "Surrogate Signals from Format and Length", arXiv:2505.19439, which uses sympy.
    Traps: any number satisfies it, so alone it is learned immediately. A box of more than 1,000 characters scores 0.
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
        boxed = extract_answer(text, "boxed") or ""
        if not 0 < len(boxed) <= MAX_FORM_CHARS:
            return Score(0.0, {"parsed": excerpt(boxed or None), "reason": "too long" if boxed else "no box"})
        request = {"gold": [boxed], "answer": "", "plain": False, "limit_s": self._limit_s}
        reply = self._worker.ask(request, self._limit_s + GRACE_S)
        if "is_equal" not in reply:
            return math.nan
        return Score(float(reply["is_expression"]), {"parsed": excerpt(boxed)})


def _reference(value: Any) -> list[str] | None:
    """The accepted answers of a value of the column, numbers without exponents; None if it has none."""
    items = value if isinstance(value, list) else [value]
    if not items or any(isinstance(item, bool) or not isinstance(item, str | int | float) for item in items):
        return None
    return [shortest_notation(item) for item in items]


@final
class _Worker:
    """Sends one request at a time to a process of ``math_worker.py``, which other rewards use after it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def ask(self, request: dict[str, Any], limit_s: float) -> dict[str, Any]:
        """Return the response of the process; empty if it was killed or died."""
        with self._lock:
            process = _idle_process() or _started()
            answer = _exchange(process, json.dumps(request), limit_s)
            if answer:
                _IDLE[os.getpid()].append(process)
            else:
                _ended(process)
                logger.warning("math-verify was stopped after %.1f s on %.80r", limit_s, request["answer"][-80:])
            return answer


_IDLE: defaultdict[int, list[subprocess.Popen[str]]] = defaultdict(list)
"""Id of this process, which may be forked -> started processes without a request."""


def _idle_process() -> subprocess.Popen[str] | None:
    """Take a running process from the idle ones; None if there is none."""
    idle = _IDLE[os.getpid()]
    with contextlib.suppress(IndexError):  # another thread may take the last
        while process := idle.pop():
            if process.poll() is None:
                return process
            _ended(process)
    return None


def _started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "mmgrpo.rewards.text.math_worker"], env=_environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, encoding="utf-8",
    )  # fmt: skip
    if not _exchange(process, None, START_S):
        _ended(process)
        raise MissingPackageError("math-verify could not be started: python -c 'import math_verify' prints the reason")
    return process


@atexit.register
def _end_idle() -> None:
    for process in _IDLE.pop(os.getpid(), []):
        _ended(process)


def _environment() -> dict[str, str]:
    """The environment of this process, with this package on the PYTHONPATH."""
    root = str(PACKAGE.parent)
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))}


def _ended(process: subprocess.Popen[str]) -> None:
    """Kill a process, wait for it and close its pipes."""
    process.kill()
    with contextlib.suppress(OSError), process:  # unwritten data breaks the pipe
        pass


def _exchange(process: subprocess.Popen[str], line: str | None, limit_s: float) -> dict[str, Any]:
    """Send a line and read a line; returns an empty dict and kills the process after the time limit."""
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
