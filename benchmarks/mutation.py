"""The share of small faults in the maths that the tests notice: a mutation score on a fixed sample.

python -m benchmarks.mutation [--num 300] [--seed 0] [--into mutation.json] [--only mmgrpo/maths/ratios.py] [--list]

A mutant is one change of an operator, a constant, a return value or a statement inside a function of ``mmgrpo/maths``
or ``mmgrpo/methods``. The tests run once unchanged, and the functions that each of them calls are recorded. Then a
process is forked for every mutant; in it the code of the function is replaced, and the tests that call it run until one
fails. A first process without a mutant runs them all, and those that fail there are left out.
Module-level code, defaults of parameters, decorators, annotations and messages of errors are not mutated.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import gc
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import _lru_cache_wrapper as CachedFunction
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any
from zlib import crc32

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("mmgrpo/maths", "mmgrpo/methods")
TESTS = (
    "tests/maths",
    "tests/methods",
    "tests/properties",
    "tests/data/test_samplers.py",
    "tests/data/test_prompt_templates.py",
)
SLOWEST_S = 5.0
"""Tests that take longer are left out."""
MOST_S = 120.0
"""Time limit of a mutant, in addition to ten times the time of its tests without it."""

KILLED, SURVIVED, TIMED_OUT, UNTESTED = "killed", "survived", "timed out", "untested"

BINARY: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
COMPARED: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
Function = tuple[str, str, int]
"""Module, qualified name and first line of a function."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One change of the source.

    Attributes:
        file: its path from the root.
        line: of the change.
        node: number of the changed node in the order of ``ast.walk``.
        operator: kind of the change.
        before: the source of the node.
        after: what it becomes.
    """

    file: str
    line: int
    node: int
    operator: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a mutant.

    Attributes:
        mutant: the change.
        outcome: killed, survived, timed out or untested.
        num_tests: tests that call the function.
        test: the one that failed.
        seconds: what they took.
    """

    mutant: Mutant
    outcome: str
    num_tests: int
    test: str | None = None
    seconds: float = 0.0


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse(path.read_text())
    number = {id(node): index for index, node in enumerate(ast.walk(tree))}
    mutants = []
    for node in _mutable(tree, within=False):
        for operator, changed in _changes(node):
            mutants.append(
                Mutant(
                    file=path.relative_to(ROOT).as_posix(),
                    line=getattr(node, "lineno", 0),
                    node=number[id(node)],
                    operator=operator,
                    before=ast.unparse(node),
                    after=ast.unparse(changed),
                )
            )
    return sorted(mutants, key=lambda mutant: (mutant.line, mutant.node, mutant.operator, mutant.after))


def _mutable(node: ast.AST, *, within: bool) -> Iterator[ast.AST]:
    """The nodes inside functions that may be changed."""
    if within:
        yield node
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr):
        return
    if isinstance(node, ast.FunctionDef):
        body = node.body[1:] if ast.get_docstring(node) is not None else node.body
        for statement in body:
            yield from _mutable(statement, within=True)
    elif isinstance(node, ast.Lambda):
        yield from _mutable(node.body, within=True)
    else:
        for child in ast.iter_child_nodes(node):
            is_annotation = isinstance(node, ast.AnnAssign) and child is node.annotation
            if not is_annotation:
                yield from _mutable(child, within=within)


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The kinds of changes of a node, each with the node that takes its place."""
    match node:
        case ast.BinOp(op=op) if type(op) in BINARY:
            yield "arithmetic", _with(node, op=BINARY[type(op)]())
        case ast.AugAssign(op=op):
            if type(op) in BINARY:
                yield "arithmetic", _with(node, op=BINARY[type(op)]())
            yield "deletion", ast.Pass()
        case ast.Compare(ops=ops):
            for place, op in enumerate(ops):
                yield "comparison", _with(node, ops=[*ops[:place], COMPARED[type(op)](), *ops[place + 1 :]])
        case ast.BoolOp(op=op):
            yield "boolean", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.Invert() | ast.USub(), operand=operand):
            yield "boolean" if not isinstance(node.op, ast.USub) else "arithmetic", operand
        case ast.Constant(value=bool(value)):
            yield "constant", _with(node, value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield "constant", _with(node, value=value + 1)
        case ast.Return(value=value) if value is not None:
            yield "return", _with(node, value=ast.Constant(value=None))
        case ast.Raise() | ast.Continue() | ast.Break():
            yield "deletion", ast.Pass()
        case ast.Expr(value=ast.Call()):
            yield "deletion", ast.Pass()
        case ast.Assign(targets=[ast.Subscript() | ast.Attribute()]):
            yield "deletion", ast.Pass()
        case ast.IfExp(test=test) | ast.If(test=test):
            yield "condition", _with(node, test=ast.UnaryOp(op=ast.Not(), operand=test))


def _with(node: ast.AST, **changed: Any) -> ast.AST:
    result = copy.copy(node)
    for name, value in changed.items():
        setattr(result, name, value)
    return result


class _Replace(ast.NodeTransformer):
    def __init__(self, target: ast.AST, changed: ast.AST) -> None:
        self.target, self.changed = target, changed

    def visit(self, node: ast.AST) -> Any:
        return ast.copy_location(self.changed, node) if node is self.target else self.generic_visit(node)


def mutated_code(mutant: Mutant) -> dict[tuple[str, int], CodeType]:
    """The code of the functions of the file that the mutant changes, by qualified name and first line."""
    path = ROOT / mutant.file
    tree = ast.parse(path.read_text())
    before = _codes(compile(tree, str(path), "exec"))
    target = list(ast.walk(tree))[mutant.node]
    changed = next(
        each for operator, each in _changes(target) if operator == mutant.operator and ast.unparse(each) == mutant.after
    )
    after = _codes(compile(ast.fix_missing_locations(_Replace(target, changed).visit(tree)), str(path), "exec"))
    return {key: code for key, code in after.items() if key in before and code != before[key]}


def _codes(code: CodeType) -> dict[tuple[str, int], CodeType]:
    inner = [const for const in code.co_consts if isinstance(const, CodeType)]
    outer = {} if code.co_name == "<module>" else {(code.co_qualname, code.co_firstlineno): code}
    return {**outer, **{key: each for const in inner for key, each in _codes(const).items()}}


def module_of(file: str) -> str:
    """The name of the module of a file."""
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


class MutationRun:
    """A run of pytest that tries mutants in place of reporting tests.

    Attributes:
        mutants: what is tried.
        verdicts: what became of them.
    """

    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self.mutants = mutants
        self.verdicts: list[Verdict] = []
        self._calls: dict[Function, list[int]] = {}
        self._seconds: dict[int, float] = {}
        self._failed: str | None = None
        self._functions: dict[str, list[FunctionType]] = {}
        self._caches: list[CachedFunction[Any]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed = report.nodeid

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Runs the tests unchanged, then those of each mutant in a separate process."""
        gc.unfreeze()  # tests/conftest.py freezes what is imported; the functions are looked up among it
        self._observe(session.items)
        self._leave_out_failing(session.items)
        prefixes = tuple(module_of(package) for package in PACKAGES)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self._functions.setdefault(each.__module__ or "", []).append(each)
            elif isinstance(each, CachedFunction) and each.__module__.startswith(prefixes):
                self._caches.append(each)
        gc.freeze()
        for number, mutant in enumerate(self.mutants):
            verdict = self._try(mutant, session.items)
            self.verdicts.append(verdict)
            print(
                f"{number + 1:4} {verdict.outcome:9} {verdict.seconds:6.1f} s {verdict.num_tests:5} tests "
                f"{mutant.file}:{mutant.line} {mutant.operator}: {mutant.before[:60]!r} -> {mutant.after[:60]!r}",
                flush=True,
            )
        return True

    def _observe(self, items: Sequence[pytest.Item]) -> None:
        """The functions that each test calls, and its time."""
        prefixes = tuple(str(ROOT / package) for package in PACKAGES)
        called: set[tuple[str, str, int]] = set()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            code = frame.f_code
            if event == "call" and code.co_filename.startswith(prefixes):
                called.add((code.co_filename, code.co_qualname, code.co_firstlineno))

        for number, item in enumerate(items):
            called.clear()
            self._failed, begin = None, time.perf_counter()
            sys.setprofile(note)
            try:
                self._run(item, items[number + 1] if number + 1 < len(items) else None)
            finally:
                sys.setprofile(None)
            self._seconds[number] = time.perf_counter() - begin
            if self._failed is not None:
                print(f"left out, as it fails unchanged: {item.nodeid}", flush=True)
            elif self._seconds[number] <= SLOWEST_S:
                for filename, name, line in called:
                    file = Path(filename).relative_to(ROOT).as_posix()
                    self._calls.setdefault((module_of(file), name, line), []).append(number)

    def _leave_out_failing(self, items: Sequence[pytest.Item]) -> None:
        """Leaves out the tests that fail in a forked process without a mutant."""
        numbers = sorted({number for each in self._calls.values() for number in each})

        def failing() -> str:
            return json.dumps([number for number in numbers if self._first_failure([items[number]]) is not None])

        _, text = self._forked(failing, limit_s=MOST_S + 10 * sum(self._seconds[number] for number in numbers))
        failed = set(json.loads(text))
        for number in failed:
            print(f"left out, as it fails in a forked process: {items[number].nodeid}", flush=True)
        self._calls = {
            function: [number for number in each if number not in failed] for function, each in self._calls.items()
        }
        print(f"{len(numbers) - len(failed)} tests of {len(items)} call {len(self._calls)} functions", flush=True)

    @staticmethod
    def _forked(run: Callable[[], str], *, limit_s: float) -> tuple[bool, str]:
        """Whether a function returned within a time in a separate process, and its result."""
        read, write = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(limit_s) + 1)
            with os.fdopen(write, "w") as pipe:
                pipe.write(run())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            text = pipe.read()
        return os.waitpid(process, 0)[1] == 0, text

    @staticmethod
    def _run(item: pytest.Item, following: pytest.Item | None) -> None:
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def _try(self, mutant: Mutant, items: Sequence[pytest.Item]) -> Verdict:
        module, codes = module_of(mutant.file), mutated_code(mutant)
        numbers = sorted({n for name, line in codes for n in self._calls.get((module, name, line), ())})
        if not numbers:
            return Verdict(mutant=mutant, outcome=UNTESTED, num_tests=0)
        numbers.sort(key=lambda number: self._seconds[number])
        limit_s = MOST_S + 10 * sum(self._seconds[number] for number in numbers)

        def run() -> str:
            self._replace(module, codes)
            for results in self._caches:
                results.cache_clear()  # or the mutated code would not be called
            return self._first_failure([items[number] for number in numbers]) or ""

        begin = time.perf_counter()
        returned, test = self._forked(run, limit_s=limit_s)
        return Verdict(
            mutant=mutant,
            outcome=TIMED_OUT if not returned else KILLED if test else SURVIVED,
            num_tests=len(numbers),
            test=test or None,
            seconds=time.perf_counter() - begin,
        )

    def _replace(self, module: str, codes: Mapping[tuple[str, int], CodeType]) -> None:
        for function in self._functions.get(module, ()):
            code = codes.get((function.__code__.co_qualname, function.__code__.co_firstlineno))
            if code is not None and len(code.co_freevars) == len(function.__code__.co_freevars):
                function.__code__ = code

    def _first_failure(self, items: Sequence[pytest.Item]) -> str | None:
        self._failed = None
        for item in items:
            try:
                self._run(item, None)
            except BaseException as error:  # a test that breaks pytest itself has noticed too
                return f"{item.nodeid}: {type(error).__name__}"
            if self._failed is not None:
                return self._failed
        return None


def sampled(num: int, seed: int, only: Sequence[str] = ()) -> list[Mutant]:
    """So many mutants of the packages, or of some files: those of the lowest checksums."""
    files = [ROOT / name for name in only] or [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    every = [mutant for path in sorted(files) for mutant in mutants_of(path)]
    counts: Counter[str] = Counter()
    checksums: dict[int, int] = {}
    for index, mutant in enumerate(every):
        identity = f"{seed} {mutant.file} {mutant.operator} {mutant.before} {mutant.after}"
        checksums[index] = crc32(f"{identity} {counts[identity]}".encode())
        counts[identity] += 1
    return [every[index] for index in sorted(sorted(checksums, key=checksums.__getitem__)[:num])]


def summary(verdicts: Sequence[Verdict], args: argparse.Namespace) -> dict[str, Any]:
    """The score of all, of each package and of each kind of change; and every mutant that no test noticed."""

    def score(chosen: Callable[[Verdict], bool]) -> dict[str, Any]:
        counts = Counter(verdict.outcome for verdict in verdicts if chosen(verdict))
        noticed = counts[KILLED] + counts[TIMED_OUT]
        return {"num": counts.total(), **counts, "score": round(noticed / max(counts.total(), 1), 4)}

    operators = sorted({verdict.mutant.operator for verdict in verdicts})
    command = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    return {
        "date": datetime.date.today().isoformat(),
        "commit": subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip(),
        "seed": args.seed,
        "tests": list(TESTS),
        **score(lambda verdict: True),
        "packages": {
            package: score(lambda verdict, package=package: verdict.mutant.file.startswith(package))
            for package in PACKAGES
        },
        "operators": {
            operator: score(lambda verdict, operator=operator: verdict.mutant.operator == operator)
            for operator in operators
        },
        "not_noticed": [
            {
                **asdict(verdict.mutant),
                "before": verdict.mutant.before[:200],
                "after": verdict.mutant.after[:200],
                "outcome": verdict.outcome,
                "num_tests": verdict.num_tests,
            }
            for verdict in verdicts
            if verdict.outcome in (SURVIVED, UNTESTED)
        ],
    }


def main() -> None:
    """Prints the result of each mutant, and the score; writes them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=0, help="of the sample")
    parser.add_argument("--only", nargs="*", default=(), help="files that mutants are sampled from")
    parser.add_argument("--into", type=Path, help="JSON file")
    parser.add_argument("--list", action="store_true", help="print the sample and do nothing")
    args = parser.parse_args()
    mutants = sampled(args.num, args.seed, args.only)
    if args.list:
        for mutant in mutants:
            print(f"{mutant.file}:{mutant.line} {mutant.operator}: {mutant.before!r} -> {mutant.after!r}")
        return
    run = MutationRun(mutants)
    paths = [str(ROOT / path) for path in TESTS]
    if missing := [path for path in paths if not Path(path).exists()]:
        parser.error(f"the tests {', '.join(missing)} do not exist: follow their new names in TESTS")
    quiet = ["-o", "addopts=", "-p", "no:terminal", "-p", "no:cacheprovider"]
    pytest.main([*paths, *quiet, "-m", "not slow and not gpu and not nightly", "--rootdir", str(ROOT)], plugins=[run])
    result = summary(run.verdicts, args)
    text = json.dumps(result, indent=1)
    if args.into is not None:
        args.into.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
