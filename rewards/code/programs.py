"""Rewards for Python programs: the tests that they pass, and the time that they take."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from mmgrpo.types import Sample, Score

from ..explaining import excerpt, parts
from ..models.checkpoints import positive
from ..parsing.code import ExtractCode, code_in
from ..parsing.extraction import one_of
from ..parsing.references import error_of, references
from .judging import at_once
from .sandbox import PYTHON, Limits, Outcome, Program, confronted, run

Passing = Literal["all", "share"]
Measured = Literal["time", "memory"]

DIALOGUE = Path(__file__).with_name("dialogue.py")


@dataclass(frozen=True, slots=True)
class Exchange:
    """What a program is given and what it must write."""

    stdin: str
    stdout: str


Tests = str | tuple[Exchange, ...]
"""Python with asserts, or what goes in and what must come out."""


@final
class CodeTests:
    """Reward: 1 if the Python program of the answer passes all tests of its row, else 0; or the share that it passes.

    The column holds either statements that ``assert`` or ``raise``, functions ``test..`` or calls, as a text or a list
    of texts (MBPP, HumanEval, KodCode, LeetCode), or pairs of input and output: a list of ``{"input", "output"}``, or
    one mapping with the lists ``inputs`` and ``outputs`` (APPS, TACO), which may be JSON. With pairs the program is run
    once for each, and must write the output, up to white space at the ends of lines, and end with status 0. With
    asserts the program runs in one sandbox and the tests in another, which calls it: neither a right value nor the
    verdict is ever where the program could reach it, and its own ``==`` decides nothing. Each runs without network,
    within the limits, or not at all: see ``docs/sandbox.md``.

    Settings: ``extract`` is ``fenced`` (the last code block), ``tag`` or ``none`` (all that follows the thought);
    ``score`` is ``all`` or ``share``; ``wrong`` is the score of an answer without code; ``time_s`` for each run, of
    asserts for all together; ``max_tests`` of the pairs are tried, the first; ``concurrency`` samples at a time.
    Range: 0 to 1, and ``wrong``.
    Source: rewards by test cases as in DeepSeek-R1, arXiv:2501.12948, sec. 2.2.2; the sandbox is our own.
    Traps: tests that change a list in place see no change, and objects of the program cannot be compared, only what
    their attributes and methods give. A row whose tests cannot be read is not judged. Few or weak tests are learnt by
    heart: look at what passes.
    """

    concurrent = True
    deterministic = True

    def __init__(
        self,
        column: str = "tests",
        extract: ExtractCode = "fenced",
        score: Passing = "all",
        wrong: float = 0.0,
        time_s: float = 10.0,
        memory_mb: int = 1024,
        max_tests: int = 20,
        concurrency: int = 4,
    ) -> None:
        self.column = column
        self._extract: ExtractCode = one_of("CodeTests.extract", extract, ExtractCode)
        self._passing: Passing = one_of("CodeTests.score", score, Passing)
        self._wrong = wrong
        self._limits = Limits(time_s=time_s, memory_mb=memory_mb)
        self._max_tests = positive("CodeTests.max_tests", max_tests)
        self._concurrency = positive("CodeTests.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        known = references("code_tests", samples, self.column, read_tests)
        return list(at_once(self._concurrency, self._score, samples, known))

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return error_of(value, read_tests, "Python code, or a list of inputs and outputs")

    def _score(self, text: str, tests: Tests) -> Score | None:
        code = code_in(text, self._extract)
        if code is None:
            return Score(self._wrong, {"parsed": None, "reason": "no code"})
        if isinstance(tests, str):
            verdicts = asserted(code, tests, self._limits)
        else:
            verdicts = list(self._exchanged(code, tests[: self._max_tests]))
        if not verdicts:
            return None
        passed = sum(verdicts)
        value = passed / len(verdicts) if self._passing == "share" else float(passed == len(verdicts))
        return Score(value, {"parsed": excerpt(code), "reason": f"{passed} of {len(verdicts)} tests passed"})

    def _exchanged(self, code: str, tests: Sequence[Exchange]) -> Iterator[bool]:
        """The verdicts, up to the first that decides."""
        missing = 0
        for test in tests:
            right = self._passing == "share" or not missing
            right = right and writes(executed(code, test.stdin, self._limits), test.stdout)
            missing += not right
            yield right


@final
class RunTime:
    """Reward: how much less time, or memory, a right program takes than a reference.

    ``tanh(g)`` with g = (reference - own) / reference, at least -1: 0 as fast as the reference, 0.46 in half its time,
    0.76 at most, -0.76 in twice its time or more. The program of the answer and that of the column ``reference`` are
    run on the same inputs, ``repeats`` times each, and the least seconds of processor (or the least memory) of each
    input are added up. What does not pass its tests, which are pairs as ``code_tests`` has them, scores ``wrong``; a
    row whose reference does not pass them is not judged.

    Settings: ``measure`` is ``time`` or ``memory``; the others as in ``code_tests``.
    Range: -0.76 to 0.76, and ``wrong``.   Units: seconds of processor, MiB.
    Source: Afterburner, arXiv:2505.23387, and its code, ``safe_delta``, which takes time by the clock.
    Traps: what Python takes to start (about 10 ms, 10 MiB) is in both; inputs must be large enough that more is
    measured than that. Other work on the machine adds noise. Gate it by ``code_tests``.
    """

    def __init__(
        self,
        column: str = "tests",
        reference: str = "reference",
        measure: Measured = "time",
        repeats: int = 3,
        extract: ExtractCode = "fenced",
        wrong: float = 0.0,
        time_s: float = 10.0,
        memory_mb: int = 1024,
        max_tests: int = 20,
    ) -> None:
        self.column = column
        self._reference = reference
        self._measure: Measured = one_of("RunTime.measure", measure, Measured)
        self._repeats = positive("RunTime.repeats", repeats)
        self._extract: ExtractCode = one_of("RunTime.extract", extract, ExtractCode)
        self._wrong = wrong
        self._limits = Limits(time_s=time_s, memory_mb=memory_mb)
        self._max_tests = positive("RunTime.max_tests", max_tests)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        tests = references("run_time", samples, self.column, _pairs)
        programs = references("run_time", samples, self._reference, _program)
        return [
            None if test is None or program is None else self._score(sample.text or "", test, program)
            for sample, test, program in zip(samples, tests, programs, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return error_of(value, _pairs, "a list of inputs and outputs")

    def _score(self, text: str, tests: tuple[Exchange, ...], program: str) -> Score | None:
        code = code_in(text, self._extract)
        own = None if code is None else self._taken(code, tests[: self._max_tests])
        if own is None:
            return Score(self._wrong, {"parsed": excerpt(code), "reason": "not right"})
        known = self._taken(program, tests[: self._max_tests])
        if known is None:
            return None
        value = gain(own, known)
        return Score(value, {"parsed": excerpt(code)} | parts({"own": own, "reference": known}))

    def _taken(self, code: str, tests: Sequence[Exchange]) -> float | None:
        """Of all tests; None where one is not passed."""
        total = 0.0
        for test in tests:
            ran = [executed(code, test.stdin, self._limits) for _ in range(self._repeats)]
            if not all(writes(outcome, test.stdout) for outcome in ran):
                return None
            total += min(outcome.cpu_s if self._measure == "time" else outcome.memory_mb for outcome in ran)
        return total


def gain(own: float, known: float) -> float:
    """tanh((known - own) / known), the quotient at least -1: how much less is taken than was.

    Units: both the same -> dimensionless.
    Source: Afterburner, arXiv:2505.23387, ``safe_delta`` of its code, with scale 1.
    """
    return math.tanh(max((known - own) / known, -1.0))


def executed(code: str, stdin: str, limits: Limits) -> Outcome:
    """Runs a Python program with what it reads."""
    return run(Program(command=(*PYTHON, "main.py"), files={"main.py": code}, limits=limits), stdin)


def writes(outcome: Outcome, stdout: str) -> bool:
    """Whether a program ended well and wrote that, up to white space at the ends of lines."""
    return outcome.succeeded and _lines(outcome.output.decode(errors="replace")) == _lines(stdout)


def asserted(code: str, tests: str, limits: Limits) -> list[bool]:
    """The verdict of each test on a program that is elsewhere; of those that were not reached False, none if there are
    none or they are no Python."""
    dialogue = DIALOGUE.read_text()
    checker, solution = (
        Program(
            command=(*PYTHON, "dialogue.py", role, "given.py"),
            files={"dialogue.py": dialogue, "given.py": text},
            limits=limits,
        )
        for role, text in (("check", tests), ("answer", code))
    )
    said = confronted(checker, solution).errors.decode(errors="replace").split("\n")
    if not said[0].isdecimal():
        return []
    told = [line == "1" for line in said[1:-1]]
    return [*told, *[False] * int(said[0])][: int(said[0])]


def read_tests(value: Any) -> Tests | None:
    """What a column says of tests; None where it says none."""
    if isinstance(value, str) and (parsed := _json(value)) is not None:
        value = parsed
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        value = "\n".join(value)
    if not isinstance(value, str):
        return _pairs(value)
    try:
        ast.parse(value)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return value or None


def _pairs(value: Any) -> tuple[Exchange, ...] | None:
    value = _json(value) if isinstance(value, str) else value
    if isinstance(value, Mapping):
        given, wanted = value.get("inputs"), value.get("outputs")
        if not isinstance(given, list) or not isinstance(wanted, list) or len(given) != len(wanted):
            return None
        value = [{"input": one, "output": other} for one, other in zip(given, wanted, strict=True)]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        return None
    found = [(one.get("input"), one.get("output")) for one in value]
    if not found or not all(isinstance(text, str) for pair in found for text in pair):
        return None
    return tuple(Exchange(given, wanted) for given, wanted in found)


def _program(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _json(text: str) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
