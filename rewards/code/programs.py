"""Rewards for Python programs: passed tests, run time and memory."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, final

from mmgrpo.system.sandbox import PYTHON, Outcome, Program, SandboxLimits, run, run_against
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.code_blocks import ExtractCode, extract_code
from ..parsing.explanations import excerpt, parts
from ..parsing.extraction import require_choice
from ..parsing.reference_values import find_reference_error, read_references
from .parallel_scoring import score_in_parallel

Passing = Literal["all", "share"]
Measured = Literal["time", "memory"]

PROTOCOL = Path(__file__).with_name("program_protocol.py")


@dataclass(frozen=True, slots=True)
class Exchange:
    """Input of a program and its expected output."""

    stdin: str
    stdout: str


Tests = str | tuple[Exchange, ...]
"""Python code with asserts, or pairs of input and output."""


@final
class CodeTests:
    """Reward: 1 if the Python program of the answer passes all tests of its row, else 0; or the fraction of passed
    tests.

    The column has either statements that ``assert`` or ``raise``, functions ``test..`` or calls, as a text or a list of
    texts (MBPP, HumanEval, KodCode, LeetCode), or pairs of input and output: a list of ``{"input", "output"}``, or one
    mapping with the lists ``inputs`` and ``outputs`` (APPS, TACO), optionally as JSON. With pairs the program runs once
    for each, and must write the output, ignoring whitespace at the ends of lines, and exit with status 0. With asserts
    the program runs in one sandbox and the tests in another, which calls it: the program can access neither expected
    values nor results, and its ``==`` is never used. Both run without network and with limits; if that is not possible,
    nothing runs: see ``docs/how-to/sandbox.md``.

    Settings: ``extract`` is ``fenced`` (the last code block), ``tag`` or ``none`` (everything after the thought);
    ``score`` is ``all`` or ``share``; ``wrong`` is the score of an answer without code; ``time_s`` per run, with
    asserts for all tests together; ``max_tests``: number of pairs that are used; ``concurrency``: number of parallel
    samples.
    Range: 0 to 1, and ``wrong``.
    Source: rewards by test cases as in DeepSeek-R1, arXiv:2501.12948, sec. 2.2.2; the sandbox is designed for mmgrpo.
    Traps: in-place changes of a list are not visible to the tests, and objects of the program cannot be compared, only
    plain values from their attributes and methods. A row whose tests cannot be parsed is not scored. Few or weak tests
    can be memorized: inspect passing programs.
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
        self._extract: ExtractCode = require_choice("CodeTests.extract", extract, ExtractCode)
        self._passing: Passing = require_choice("CodeTests.score", score, Passing)
        self._wrong = wrong
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb)
        self._max_tests = require_positive("CodeTests.max_tests", max_tests)
        self._concurrency = require_positive("CodeTests.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        tests = read_references("code_tests", samples, self.column, read_tests)
        return list(score_in_parallel(self._concurrency, self._score, samples, tests))

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, read_tests, "Python code, or a list of inputs and outputs")

    def _score(self, text: str, tests: Tests) -> Score | None:
        code = extract_code(text, self._extract)
        if code is None:
            return Score(self._wrong, {"parsed": None, "reason": "no code"})
        if isinstance(tests, str):
            passes = asserted(code, tests, self._limits)
        else:
            passes = list(self._exchanged(code, tests[: self._max_tests]))
        if not passes:
            return None
        passed = sum(passes)
        value = passed / len(passes) if self._passing == "share" else float(passed == len(passes))
        return Score(value, {"parsed": excerpt(code), "reason": f"{passed} of {len(passes)} tests passed"})

    def _exchanged(self, code: str, tests: Sequence[Exchange]) -> Iterator[bool]:
        """The test results, up to the first failure if all must pass."""
        missing = 0
        for test in tests:
            right = self._passing == "share" or not missing
            right = right and writes(executed(code, test.stdin, self._limits), test.stdout)
            missing += not right
            yield right


@final
class RunTime:
    """Reward: time or memory saved by a correct program relative to a reference program.

    ``tanh(g)`` with g = (reference - own) / reference, at least -1: 0 for equal time, 0.46 for half the time, at most
    0.76, -0.76 for twice the time or more. The program of the answer and that of the column ``reference`` run on the
    same inputs, ``repeats`` times each; the minimum CPU time (or memory) per input is summed. A program that fails its
    tests, pairs as in ``code_tests``, scores ``wrong``; a row whose reference fails them is not scored.

    Settings: ``measure`` is ``time`` or ``memory``; the others as in ``code_tests``.
    Range: -0.76 to 0.76, and ``wrong``.   Units: CPU seconds, MiB.
    Source: Afterburner, arXiv:2505.23387, and its code, ``safe_delta``, which uses wall-clock time.
    Traps: both include the startup of Python (about 10 ms, 10 MiB), so inputs must be large enough. Other load on the
    machine adds noise. Gate it by ``code_tests``.
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
        self._measure: Measured = require_choice("RunTime.measure", measure, Measured)
        self._repeats = require_positive("RunTime.repeats", repeats)
        self._extract: ExtractCode = require_choice("RunTime.extract", extract, ExtractCode)
        self._wrong = wrong
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb)
        self._max_tests = require_positive("RunTime.max_tests", max_tests)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        tests = read_references("run_time", samples, self.column, _pairs)
        programs = read_references("run_time", samples, self._reference, _program)
        return [
            None if test is None or program is None else self._score(sample.text or "", test, program)
            for sample, test, program in zip(samples, tests, programs, strict=True)
        ]

    def reference_error(self, value: Any) -> str | None:
        """Why a value of the column is no reference; None if it is one."""
        return find_reference_error(value, _pairs, "a list of inputs and outputs")

    def _score(self, text: str, tests: tuple[Exchange, ...], program: str) -> Score | None:
        code = extract_code(text, self._extract)
        answer_cost = None if code is None else self._taken(code, tests[: self._max_tests])
        if answer_cost is None:
            return Score(self._wrong, {"parsed": excerpt(code), "reason": "not right"})
        reference_cost = self._taken(program, tests[: self._max_tests])
        if reference_cost is None:
            return None
        value = gain(answer_cost, reference_cost)
        return Score(value, {"parsed": excerpt(code)} | parts({"own": answer_cost, "reference": reference_cost}))

    def _taken(self, code: str, tests: Sequence[Exchange]) -> float | None:
        """Total cost of all tests; None if one fails."""
        total = 0.0
        for test in tests:
            ran = [executed(code, test.stdin, self._limits) for _ in range(self._repeats)]
            if not all(writes(outcome, test.stdout) for outcome in ran):
                return None
            total += min(outcome.cpu_s if self._measure == "time" else outcome.memory_mb for outcome in ran)
        return total


def gain(cost: float, reference_cost: float) -> float:
    """tanh((known - own) / known), with the quotient at least -1: the relative saving.

    Units: both the same -> dimensionless.
    Source: Afterburner, arXiv:2505.23387, ``safe_delta`` of its code, with scale 1.
    """
    return math.tanh(max((reference_cost - cost) / reference_cost, -1.0))


def executed(code: str, stdin: str, limits: SandboxLimits) -> Outcome:
    """Run a Python program with a standard input."""
    return run(Program(command=(*PYTHON, "main.py"), files={"main.py": code}, limits=limits), stdin)


def writes(outcome: Outcome, stdout: str) -> bool:
    """Whether a program succeeded with this output, ignoring whitespace at the ends of lines."""
    return outcome.succeeded and _lines(outcome.output.decode(errors="replace")) == _lines(stdout)


def asserted(code: str, tests: str, limits: SandboxLimits) -> list[bool]:
    """Results of the tests on a program in a separate sandbox; False for tests that did not run, empty without valid
    tests.
    """
    protocol = PROTOCOL.read_text()
    checker, solution = (
        Program(
            command=(*PYTHON, "program_protocol.py", role, "code.py"),
            files={"program_protocol.py": protocol, "code.py": text},
            limits=limits,
        )
        for role, text in (("check", tests), ("answer", code))
    )
    lines = run_against(checker, solution).errors.decode(errors="replace").split("\n")
    if not lines[0].isdecimal():
        return []
    passes = [line == "1" for line in lines[1:-1]]
    return [*passes, *[False] * int(lines[0])][: int(lines[0])]


def read_tests(value: Any) -> Tests | None:
    """Parse the tests of a column value; None if it has none."""
    if isinstance(value, str) and (parsed := _json(value)) is not None:
        value = parsed
    if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
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
        inputs, outputs = value.get("inputs"), value.get("outputs")
        if not isinstance(inputs, list) or not isinstance(outputs, list) or len(inputs) != len(outputs):
            return None
        value = [{"input": item, "output": output} for item, output in zip(inputs, outputs, strict=True)]
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        return None
    pairs = [(item.get("input"), item.get("output")) for item in value]
    if not pairs or not all(isinstance(text, str) for pair in pairs for text in pair):
        return None
    return tuple(Exchange(inputs, outputs) for inputs, outputs in pairs)


def _program(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None


def _json(text: str) -> Any:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, list | dict) else None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]
