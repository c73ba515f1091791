"""A Python interpreter that keeps its names; runs as a script in a sandbox, with the standard library alone.

``python python_worker.py MAX_CHARS TRACEBACK_LINES`` reads lines ``{"code": text}`` and answers each with
``{"output": text, "num_cut": number, "error": text}``: the beginning of what the code wrote, with the value of a last
expression as a notebook shows it; the number of bytes after that beginning; and the end of the traceback of an error.
"""

from __future__ import annotations

import ast
import json
import linecache
import os
import sys
import traceback
from contextlib import suppress
from io import TextIOWrapper
from typing import Any

OUTPUT = "/tmp/output"


def main() -> None:
    """Answer the lines of the standard input."""
    max_chars, traceback_lines = int(sys.argv[1]), int(sys.argv[2])
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    output = os.open(OUTPUT, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)  # of programs that the code starts as well
    os.dup2(output, 2)
    assert isinstance(sys.stdout, TextIOWrapper)
    sys.stdout.reconfigure(line_buffering=True)  # in order with the output of those programs
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, line in enumerate(requests, start=1):
        os.ftruncate(output, 0)
        error = run(json.loads(line)["code"], f"<call {number}>", names, traceback_lines)
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # the code may have closed or replaced it
                stream.flush()
        written = os.pread(output, 4 * max_chars, 0).decode("utf-8", "replace")
        text = written[:max_chars]
        num_cut = max(os.fstat(output).st_size - len(text.encode("utf-8", "replace")), 0)
        replies.write(json.dumps({"output": text, "num_cut": num_cut, "error": error[-max_chars:]}) + "\n")
        replies.flush()


def run(code: str, file: str, names: dict[str, Any], traceback_lines: int) -> str:
    """Execute code and print the value of a last expression.

    Args:
        code: the code.
        file: its name in tracebacks.
        names: its global names.
        traceback_lines: number of lines of a traceback.

    Returns:
        The last lines of the traceback; empty if it succeeds.
    """
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    try:
        body = ast.parse(code, file).body
        last = body[-1] if body and isinstance(body[-1], ast.Expr) else None
        statements = body if last is None else body[:-1]
        exec(compile(ast.Module(statements, []), file, "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), file, "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # SystemExit and KeyboardInterrupt of the code end the call, not the interpreter
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        lines = "".join(traceback.format_exception(type(error), error, frames)).splitlines()
        return "\n".join(lines[-traceback_lines:])
    return ""


if __name__ == "__main__":
    main()
