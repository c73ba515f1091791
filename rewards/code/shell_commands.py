"""Reward from a custom command: a compiler, a proof checker, a simulator."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import regex

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.sandbox import Outcome, Program, SandboxLimits, is_readable, run
from mmgrpo.types import Sample, Score

from ..models.checkpoints import require_positive
from ..parsing.code_blocks import ExtractCode, extract_code
from ..parsing.explanations import excerpt
from ..parsing.extraction import require_choice
from .parallel_scoring import score_in_parallel

_FIELD = re.compile(r"\{(\w+)\}")


@final
class Command:
    r"""Reward: result of a command on the code of the answer: 1 for exit status 0, else 0; or a number from its output.

    For example Lean, Isabelle, a Verilog simulator or a compiler: the code of the answer is written to ``file`` in an
    empty folder, unchanged or inserted into ``template``, where ``{answer}`` is replaced by it and ``{column}`` by
    columns of the row; ``files`` maps names of further files, such as a test bench, to columns. Then ``command`` runs
    there in a sandbox without network and with limits; if that is not possible, nothing runs: see
    ``docs/how-to/sandbox.md``.

    Example: ``{name: command, command: [lean, a.lean], file: a.lean, paths: [/opt/lean], forbid: '\bsorry\b'}``.
    Settings: ``paths`` are files and folders that the command may read, besides ``/usr``, ``/bin`` and ``/lib``, such
    as its installation; ``forbid``: a pattern that the answer must not match (a proof by ``sorry``, a declared axiom);
    ``expect``: a pattern that the output must match for a 1; ``number``: a pattern whose first group in the output is
    the score, clipped to [0, 1]; ``env``: additional environment variables; ``extract`` as in ``code_tests``.
    Range: 0 to 1.   Units: seconds, MiB.
    Source: designed for mmgrpo.
    Traps: if the command executes code of the model, that code can print anything that ``expect`` and ``number`` match:
    use them only with checkers and compilers, and let a test bench set the exit status. Policies find trivial answers:
    forbid everything that would pass without being an answer. ``memory_mb`` limits the address space, of which some
    runtimes reserve much.
    """

    concurrent = True
    deterministic = True

    def __init__(
        self,
        command: Sequence[str] = ("python3", "-m", "py_compile", "answer.py"),
        file: str = "answer.py",
        template: str | None = None,
        files: Mapping[str, str] | None = None,
        forbid: str | None = None,
        expect: str | None = None,
        number: str | None = None,
        paths: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        extract: ExtractCode = "fenced",
        time_s: float = 60.0,
        memory_mb: int = 4096,
        processes: int = 32,
        concurrency: int = 4,
    ) -> None:
        if isinstance(command, str) or not command or isinstance(paths, str):
            raise ConfigError("Command.command and paths must be lists, such as [lean, proof.lean] and [/opt/lean]")
        names = (file, *(files or {}))
        if bad := [name for name in names if Path(name).name != name]:
            raise ConfigError(f"Command.file and files must be names without folders, got {', '.join(bad)}")
        self._command = tuple(command)
        self._file = file
        self._template = "{answer}" if template is None else template
        self._files = dict(files or {})
        self._forbid, self._expect, self._number = (_pattern(text) for text in (forbid, expect, number))
        self._paths = tuple(str(Path(path).expanduser().resolve()) for path in paths)
        self._env = dict(env or {})
        self._extract: ExtractCode = require_choice("Command.extract", extract, ExtractCode)
        self._limits = SandboxLimits(time_s=time_s, memory_mb=memory_mb, processes=processes)
        self._concurrency = require_positive("Command.concurrency", concurrency)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        binary = find_command(self._command[0], self._paths)
        needed_columns = {*self._files.values(), *_FIELD.findall(self._template)} - {"answer"}
        rows = [_row(sample, needed_columns) for sample in samples]

        def score(text: str, row: Mapping[str, str]) -> Score:
            return self._score(text, binary, row)

        return list(score_in_parallel(self._concurrency, score, samples, rows))

    def _score(self, text: str, binary: str, row: Mapping[str, str]) -> Score:
        code = extract_code(text, self._extract)
        if code is None:
            return Score(0.0, {"parsed": None, "reason": "no code"})
        if self._forbid is not None and self._forbid.search(code):
            return Score(0.0, {"parsed": excerpt(code), "reason": "contains a forbidden pattern"})
        fields = {**row, "answer": code}
        files = {name: row[column] for name, column in self._files.items()}
        program = Program(
            command=(binary, *self._command[1:]),
            files=files | {self._file: _FIELD.sub(lambda field: fields[field[1]], self._template)},
            paths=self._paths,
            env=self._env,
            limits=self._limits,
        )
        outcome = run(program)
        return Score(self._value(outcome), {"parsed": excerpt(code), "reason": describe_outcome(outcome)})

    def _value(self, outcome: Outcome) -> float:
        output = outcome.output.decode(errors="replace")
        if not outcome.succeeded or (self._expect is not None and not self._expect.search(output)):
            return 0.0
        if self._number is None:
            return 1.0
        match = self._number.search(output)
        try:
            return min(max(float(match[1]), 0.0), 1.0) if match else 0.0
        except ValueError:
            return 0.0


def _row(sample: Sample, needed_columns: Collection[str]) -> dict[str, str] | None:
    """The required columns; None if one is missing, or the text."""
    columns = sample.prompt.columns
    if sample.text is None or any(columns.get(column) is None for column in needed_columns):
        return None
    return {column: str(columns[column]) for column in needed_columns}


def _pattern(text: str | None) -> Any:
    try:
        return None if text is None else regex.compile(text)
    except regex.error as error:
        raise ConfigError(f"Command has a pattern that cannot be read, {text!r}: {error}") from error


def find_command(name: str, paths: Sequence[str]) -> str:
    """Path of a command: the first that the sandbox reads, of this Python, its PATH and ``paths``.

    Raises RewardError if there is none.
    """
    folders = [
        str(Path(sys.executable).parent),
        *os.get_exec_path(),
        *(folder for path in paths for folder in (path, f"{path}/bin")),
    ]
    binaries = [binary for folder in folders if (binary := shutil.which(name, path=folder))]
    if not binaries:
        raise RewardError(f"command {name!r} not found: install it, or add its folder to 'paths'")
    readable = next((binary for binary in binaries if is_readable(binary, paths)), None)
    if readable is None:
        raise RewardError(
            f"command {name!r} is {binaries[0]}, which the sandbox does not read: add the folder of its installation "
            "to 'paths', or install it below /usr"
        )
    return str(Path(readable).absolute())


def describe_outcome(outcome: Outcome) -> str:
    """The end of a command and an excerpt of its errors, or else of its output."""
    end = f"status {outcome.code}" if outcome.ending == "exited" else outcome.ending
    output = (outcome.errors or outcome.output).decode(errors="replace").strip()
    return excerpt(f"{end}: {output}") or end
