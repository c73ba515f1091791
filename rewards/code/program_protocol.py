"""The protocol by which tests in one sandbox call a program in another, so the program never sees tests or results.

Runs as a script with the standard library alone. ``python program_protocol.py answer FILE`` executes the program in
FILE, then answers calls. ``python program_protocol.py check FILE`` executes the tests in FILE; each name that the
program defines is a proxy there: a call sends the arguments and returns the value. Plain values (numbers, strings,
lists, tuples, dicts, sets, None) are sent and compared in the checker. Any other object stays with the program; its
proxy can be called, indexed, read for attributes and converted to text, but not compared. ``==`` and truth values
therefore never run code of the program. The two processes exchange lines of JSON.

The checker writes the number of tests to its standard error, then 1 or 0 for each. Tests are the top-level statements
of FILE that contain an ``assert`` or a ``raise``, and the functions ``test..`` without arguments; if there are none,
the top-level calls. A failing statement that is not a test ends FILE: all later tests fail.
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
    """A value that cannot be serialized, or a proxy that cannot be compared."""


def packed(value: Any, keep: Callable[[Any], int] | None = None) -> Any:
    """Serialize a value as JSON; other objects become the id that ``keep`` returns, or raise NotPlainError."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return {"int": hex(int(value))}
    if isinstance(value, float):
        return {"float": repr(float(value))}
    if isinstance(value, bytes | bytearray):
        return {"bytes": value.hex()}
    if isinstance(value, dict):
        return {"dict": [[packed(key, keep), packed(item, keep)] for key, item in value.items()]}
    for name, kind in SEVERAL.items():
        if isinstance(value, kind):
            return {name: [packed(item, keep) for item in value]}
    if isinstance(value, RemoteObject):
        return {"object_id": object.__getattribute__(value, "_number")}
    if keep is None:
        raise NotPlainError(f"a {type(value).__name__} cannot be sent to the program")
    return {"object_id": keep(value)}


def unpacked(value: Any, resolve: Callable[[int], Any]) -> Any:
    """Deserialize a value from JSON; ``resolve`` maps an object id to the object or its proxy."""
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
        return {unpacked(key, resolve): unpacked(item, resolve) for key, item in inner}
    if name == "object_id":
        return resolve(inner)
    return SEVERAL[name](unpacked(item, resolve) for item in inner)


class RemoteProgram:
    """The program in the other sandbox."""

    def __init__(self, requests: IO[str], replies: IO[str]) -> None:
        self._requests = requests
        self._replies = replies

    def ask(self, what: str, number: int, *arguments: Any, **named: Any) -> Any:
        """Return the program's reply; its exceptions are raised here as the built-in exception of that name."""
        line = {"ask": what, "of": number, "arguments": packed(list(arguments)), "named": packed(named)}
        self._requests.write(json.dumps(line) + "\n")
        self._requests.flush()
        read = self._replies.readline(MAX_LINE_CHARS)
        if not read.endswith("\n"):
            raise EOFError("the program ended, or its reply exceeds the size limit")
        reply = json.loads(read)
        if "raised" in reply:
            kind = getattr(builtins, str(reply["raised"]), None)
            error_class = kind if isinstance(kind, type) and issubclass(kind, Exception) else RuntimeError
            raise error_class(str(reply.get("why", "")))
        return unpacked(reply["value"], lambda other: RemoteObject(self, int(other)))


class RemoteObject:
    """Proxy of an object that stays with the program; operations run there, comparisons are not supported."""

    def __init__(self, program: RemoteProgram, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return _request(self, "call", *arguments, **named)

    def __getattr__(self, name: str) -> Any:
        return _request(self, "attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        _request(self, "set", name, value)

    def __getitem__(self, key: Any) -> Any:
        return _request(self, "item", key)

    def __len__(self) -> int:
        return int(_request(self, "len"))

    def __str__(self) -> str:
        return str(_request(self, "str"))

    def __iter__(self) -> Iterator[Any]:
        yield from _request(self, "list")

    def __eq__(self, other: object) -> bool:
        raise NotPlainError("an object of the program cannot be compared")

    def __bool__(self) -> bool:
        raise NotPlainError("an object of the program is neither true nor false")

    __hash__ = None


def _request(remote: RemoteObject, what: str, *arguments: Any, **named: Any) -> Any:
    program: RemoteProgram = object.__getattribute__(remote, "_program")
    return program.ask(what, object.__getattribute__(remote, "_number"), *arguments, **named)


def check(file: str) -> None:
    """Run the tests of a file against the program that is connected to the standard streams."""
    program = RemoteProgram(os.fdopen(os.dup(1), "w"), os.fdopen(os.dup(0)))
    results = os.fdopen(os.dup(2), "w")
    with open(file, encoding="utf-8") as opened:
        body = ast.parse(opened.read()).body
    functions = [node.name for node in body if isinstance(node, ast.FunctionDef) and _is_test(node)]
    tests = [node for node in body if _asserts(node)]
    if not tests and not functions:
        tests = [node for node in body if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)]
    print(len(tests) + len(functions), file=results, flush=True)
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        names, setup_succeeded = _names(program), True
        for node in body:
            passed = setup_succeeded and _runs(ast.Module([node], []), names)
            if node in tests:
                print(int(passed), file=results, flush=True)
            else:
                setup_succeeded = passed
        for name in functions:
            passed = setup_succeeded and _runs(ast.parse(f"{name}()"), names)
            print(int(passed), file=results, flush=True)


def _asserts(statement: ast.stmt) -> bool:
    defines = isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    return not defines and any(isinstance(inner, ast.Assert | ast.Raise) for inner in ast.walk(statement))


def _is_test(function: ast.FunctionDef) -> bool:
    return function.name.startswith("test") and not ast.unparse(function.args)


def _names(program: RemoteProgram) -> dict[str, Any]:
    """The namespace of the tests: the program's names except built-ins, also importable as the module ``solution``."""
    names: dict[str, Any] = {"__name__": "tests"}
    module = ModuleType("solution")
    for name, number in program.ask("names", 0).items():
        if isinstance(name, str) and not hasattr(builtins, name) and not name.startswith("__"):
            names[name] = program.ask("value", int(number))
            setattr(module, name, names[name])
    sys.modules["solution"] = module
    return names


def _runs(code: ast.Module, names: dict[str, Any]) -> bool:
    """Whether the code runs without an exception."""
    try:
        exec(compile(code, "tests", "exec"), names)
    except (Exception, SystemExit):
        return False
    return True


def answer(file: str) -> NoReturn:
    """Execute the program of a file, then answer requests about its objects."""
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    module = sys.modules["solution"] = ModuleType("solution")  # classes of the program look up their module here
    names = module.__dict__
    with open(file, encoding="utf-8") as opened:
        exec(compile(opened.read(), file, "exec"), names)
    for line in requests:
        reply = _answer(json.loads(line), objects, keep, names)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()
    sys.exit(0)


def _answer(line: Mapping[str, Any], objects: list[Any], keep: Callable[[Any], int], names: dict[str, Any]) -> Any:
    arguments, named = (unpacked(line[part], objects.__getitem__) for part in ("arguments", "named"))
    try:
        if line["ask"] == "names":
            defined = {name: value for name, value in names.items() if not isinstance(value, ModuleType)}
            return {"value": packed({name: keep(value) for name, value in defined.items()})}
        return {"value": packed(_apply(line["ask"], objects[line["of"]], arguments, named), keep)}
    except Exception as error:
        return {"raised": type(error).__name__, "why": str(error)[:1000]}


def _apply(what: str, value: Any, arguments: list[Any], named: Mapping[str, Any]) -> Any:
    operations: Mapping[str, Callable[..., Any]] = {
        "value": lambda: value,
        "call": value,
        "attribute": lambda name: getattr(value, name),
        "set": lambda name, new: setattr(value, name, new),
        "item": lambda key: value[key],
        "len": lambda: len(value),
        "str": lambda: str(value),
        "list": lambda: list(value),
    }
    return operations[what](*arguments, **named)


if __name__ == "__main__":
    {"check": check, "answer": answer}[sys.argv[1]](sys.argv[2])
