"""Tests put to a program that is in another sandbox: no test, no right value and no verdict is where the program runs.

Started as a file, with the standard library alone. ``python dialogue.py answer FILE`` runs the program in FILE, then
answers calls. ``python dialogue.py check FILE`` runs the tests in FILE, where each name that the program defines stands
for what is over there: called, it sends the arguments and gets back the value. Plain values (numbers, texts, lists,
tuples, dicts, sets, None) are sent as they are and compared here; anything else stays there, and what came here in its
place can be called, asked for attributes and items and written out, not compared. So ``==`` and a truth value are never
the program's own. Lines of JSON go between the two.

The checker says on its standard error the number of tests, then 1 or 0 for each. A test is each top-level statement of
FILE with an ``assert`` or a ``raise`` in it and each function ``test..`` without arguments; where there is neither,
each top-level call. What is no test and fails ends FILE: all tests after it fail.
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from numbers import Integral
from types import ModuleType
from typing import IO, Any, NoReturn

MAX_LINE_CHARS = 1 << 24

SEVERAL = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlainError(TypeError):
    """A value that cannot be sent, or that was not sent and so is not known here."""


def packed(value: Any, keep: Callable[[Any], int] | None = None) -> Any:
    """A value as JSON; what is not plain by the number it is kept under, or refused."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return {"int": hex(int(value))}
    if isinstance(value, float):
        return {"float": repr(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[packed(key, keep), packed(one, keep)] for key, one in value.items()]}
    for name, kind in SEVERAL.items():
        if isinstance(value, kind):
            return {name: [packed(one, keep) for one in value]}
    if isinstance(value, Remote):
        return {"there": object.__getattribute__(value, "_number")}
    if keep is None:
        raise NotPlainError(f"a {type(value).__name__} cannot be sent to the program")
    return {"there": keep(value)}


def unpacked(value: Any, there: Callable[[int], Any]) -> Any:
    """The value that JSON stands for; ``there`` gives what was not sent."""
    if not isinstance(value, dict):
        return value
    ((name, inner),) = value.items()
    if name == "int":
        return int(inner, 16)
    if name == "float":
        return float(inner)
    if name == "bytes":
        return bytes.fromhex(inner)
    if name == "dict":
        return {unpacked(key, there): unpacked(one, there) for key, one in inner}
    if name == "there":
        return there(inner)
    return SEVERAL[name](unpacked(one, there) for one in inner)


class Program:
    """The other side, as it is asked."""

    def __init__(self, asking: IO[str], answered: IO[str]) -> None:
        self._asking = asking
        self._answered = answered

    def ask(self, what: str, number: int, *arguments: Any, **named: Any) -> Any:
        """What the program says; what it raised is raised here, as the built-in exception of that name."""
        line = {"ask": what, "of": number, "arguments": packed(list(arguments)), "named": packed(named)}
        self._asking.write(json.dumps(line) + "\n")
        self._asking.flush()
        read = self._answered.readline(MAX_LINE_CHARS)
        if not read.endswith("\n"):
            raise EOFError("the program has ended, or says more than may be said")
        said = json.loads(read)
        if "raised" in said:
            kind = getattr(builtins, str(said["raised"]), None)
            known = kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
            raise known(str(said.get("why", "")))
        return unpacked(said["value"], lambda other: Remote(self, int(other)))


class Remote:
    """What stayed with the program: it is asked there, and compared nowhere."""

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _asked(self, "call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return _asked(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _asked(self, "set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _asked(self, "item", key)

    def __len__(self) -> int:
        return int(_asked(self, "len"))

    def __str__(self) -> str:
        return str(_asked(self, "str"))

    def __iter__(self) -> Iterator[Any]:
        yield from _asked(self, "list")

    def __eq__(self, other: object) -> bool:
        raise NotPlainError("an object of the program cannot be compared")

    def __bool__(self) -> bool:
        raise NotPlainError("an object of the program is neither true nor false")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def _asked(remote: Remote, what: str, *arguments: Any, **named: Any) -> Any:
    program: Program = object.__getattribute__(remote, "_program")
    return program.ask(what, object.__getattribute__(remote, "_number"), *arguments, **named)


def check(file: str) -> None:
    """Runs the tests of a file against the program at the other end of the standard streams."""
    program = Program(os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0)))
    verdicts = os.fdopen(os.dup(2), "w")
    with open(file, encoding="utf-8") as opened:
        body = ast.parse(opened.read()).body
    functions = [one.name for one in body if isinstance(one, ast.FunctionDef) and _is_test(one)]
    tests = [one for one in body if _asserts(one)]
    if not tests and not functions:
        tests = [one for one in body if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call)]
    print(len(tests) + len(functions), file=verdicts, flush=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        names, goes_on = _names(program), True
        for one in body:
            right = goes_on and _holds(ast.Module([one], []), names)
            if one in tests:
                print(int(right), file=verdicts, flush=True)
            else:
                goes_on = right
        for name in functions:
            right = goes_on and _holds(ast.parse(f"{name}()"), names)
            print(int(right), file=verdicts, flush=True)


def _asserts(statement: ast.stmt) -> bool:
    defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return not defines and any(isinstance(inner, ast.Assert | ast.Raise) for inner in ast.walk(statement))


def _is_test(function: ast.FunctionDef) -> bool:
    return function.name.startswith("test") and not ast.unparse(function.args)


def _names(program: Program) -> dict[str, Any]:
    """What the tests find: the program's names, but none of Python's own, also as the module ``solution``."""
    names: dict[str, Any] = {"__name__": "tests"}
    module = ModuleType("solution")
    for name, number in program.ask("names", 0).items():
        if isinstance(name, str) and not hasattr(builtins, name) and not name.startswith("__"):
            names[name] = program.ask("value", int(number))
            setattr(module, name, names[name])
    sys.modules["solution"] = module
    return names


def _holds(code: ast.Module, names: dict[str, Any]) -> bool:
    """Whether it runs to its end."""
    try:
        exec(compile(code, "tests", "exec"), names)
    except (Exception, SystemExit):
        return False
    return True


def answer(file: str) -> NoReturn:
    """Runs the program of a file, then answers what is asked about it."""
    asked, answering = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    kept: list[Any] = []

    def keep(value: Any) -> int:
        kept.append(value)
        return len(kept) - 1

    module = sys.modules["solution"] = ModuleType("solution")  # where its classes find themselves
    names = module.__dict__
    with open(file, encoding="utf-8") as opened:
        exec(compile(opened.read(), file, "exec"), names)
    for line in asked:
        said = _answer(json.loads(line), kept, keep, names)
        answering.write(json.dumps(said) + "\n")
        answering.flush()
    sys.exit(0)


def _answer(line: Mapping[str, Any], kept: list[Any], keep: Callable[[Any], int], names: dict[str, Any]) -> Any:
    arguments, named = (unpacked(line[part], kept.__getitem__) for part in ("arguments", "named"))
    try:
        if line["ask"] == "names":
            own = {name: value for name, value in names.items() if not isinstance(value, ModuleType)}
            return {"value": packed({name: keep(value) for name, value in own.items()})}
        return {"value": packed(_done(line["ask"], kept[line["of"]], arguments, named), keep)}
    except Exception as error:
        return {"raised": type(error).__name__, "why": str(error)[:1000]}


def _done(what: str, value: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    asked: Mapping[str, Callable[..., Any]] = {
        "value": lambda: value,
        "call": value,
        "attribute": lambda name: getattr(value, name),
        "set": lambda name, new: setattr(value, name, new),
        "item": lambda key: value[key],
        "len": lambda: len(value),
        "str": lambda: str(value),
        "list": lambda: list(value),
    }
    return asked[what](*arguments, **named)


if __name__ == "__main__":
    {"check": check, "answer": answer}[sys.argv[1]](sys.argv[2])
