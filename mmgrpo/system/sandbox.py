"""Runs code of a model in a separate process, without network and with limits; if that is not possible, nothing runs.

The isolation is described in ``docs/how-to/sandbox.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, final

from mmgrpo.errors import ConfigError, RewardError
from mmgrpo.system.sandbox_launcher import SYSTEM
from mmgrpo.system.site_pages import page_url

LAUNCHER = str(Path(__file__).with_name("sandbox_launcher.py"))
START_S = 30.0
"""Time limit for the start of the sandbox, in addition to that of the command."""

PYTHON = (sys.executable, "-I")
INTERPRETER = tuple(dict.fromkeys((sys.prefix, sys.base_prefix)))

ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/sandbox",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # reproducible results
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The environment variables of a command."""


def is_readable(path: str, further: Sequence[str] = ()) -> bool:
    """Whether a command can read a path, and what it links to, if it may also read ``further`` files and folders."""
    folders = [Path(folder) for folder in (*SYSTEM, *INTERPRETER, *further)]
    folders += [folder.resolve() for folder in folders]
    target = Path(path).absolute()
    return all(any(each.is_relative_to(folder) for folder in folders) for each in (target, target.resolve()))


STARTED = b"."
"""Message of the launcher when the command starts."""

Ending = Literal["exited", "killed", "late", "too much output"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Resource limits of a command.

    Attributes:
        time_s: wall-clock seconds from its start; then all its processes are killed.
        memory_mb: address space of each process, in MiB.
        disk_mb: total size of its files, which are in memory, and size of each file, in MiB.
        processes: maximum number of simultaneous processes and threads.
        output_kb: maximum output in KiB; beyond that it is killed.
    """

    time_s: float = 10.0
    memory_mb: int = 1024
    disk_mb: int = 64
    processes: int = 8
    output_kb: int = 1024

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise ConfigError(f"a sandbox needs {name} > 0, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command, and the files in its working directory.

    Attributes:
        command: the absolute path of a binary, and arguments.
        files: name -> text, in the otherwise empty working directory.
        paths: files and folders that it may read, besides those of the system and Python.
        env: additional environment variables.
        limits: resource limits.
    """

    command: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    paths: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    limits: SandboxLimits = field(default_factory=SandboxLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Result of a command.

    Attributes:
        ending: whether it exited, was killed by a signal, or was stopped by the sandbox.
        code: exit status, if it exited.
        output: standard output, as far as it was read.
        errors: standard error, as far as it was read.
        cpu_s: CPU seconds of the command and its waited-for children; 0 if the sandbox stopped it.
        memory_mb: peak memory in MiB, of the same processes.
    """

    ending: Ending
    code: int | None
    output: bytes
    errors: bytes
    cpu_s: float = 0.0
    memory_mb: float = 0.0

    @property
    def succeeded(self) -> bool:
        """Whether it exited with status 0."""
        return self.ending == "exited" and self.code == 0


def run(program: Program, stdin: str = "") -> Outcome:
    """Run a command to completion.

    Args:
        program: the program to run.
        stdin: its standard input.

    Returns:
        The outcome.

    Raises:
        RewardError: a limit cannot be set on this machine; nothing ran.
    """
    with _launched(program, stdin, subprocess.DEVNULL, subprocess.PIPE) as launched:
        assert launched.process.stdout is not None
        return launched.outcome(launched.process.stdout)


def run_against(checker: Program, solution: Program) -> Outcome:
    """Run two commands in separate sandboxes, each reading the other's output.

    Args:
        checker: sends requests, and reports its findings on standard error.
        solution: answers requests.

    Returns:
        The outcome of the checker; ``errors`` has its report.

    Raises:
        RewardError: a limit cannot be set on this machine.
    """
    (request_end, request_start), (reply_end, reply_start) = os.pipe(), os.pipe()
    with contextlib.ExitStack() as stack:
        stack.enter_context(_launched(solution, None, request_end, reply_start, subprocess.DEVNULL))
        _close(request_end, reply_start)
        judge = stack.enter_context(_launched(checker, None, reply_end, request_start))
        _close(reply_end, request_start)
        return judge.outcome()


SessionEnding = Literal["ended", "late", "too much output"]


@final
class Session:
    """A command that stays: it reads a line of its standard input, and answers with a line of its standard output.

    The time limit of the program applies to each line, the limit on output to each answer. The command ends with the
    thread that started it.
    """

    def __init__(self, program: Program) -> None:
        """Starts the command.

        Args:
            program: a program that answers each line with a line.

        Raises:
            RewardError: a limit cannot be set on this machine; nothing ran.
        """
        self._limits = program.limits
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            pipe = subprocess.PIPE
            launched = stack.enter_context(_launched(program, None, pipe, pipe, subprocess.DEVNULL))
            launched.require_start()
            self._stack = stack.pop_all()
        assert launched.process.stdin is not None
        assert launched.process.stdout is not None
        self._stdin, self._stdout = launched.process.stdin.fileno(), launched.process.stdout.fileno()
        os.set_blocking(self._stdin, False)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def ask(self, line: str, time_s: float | None = None) -> tuple[str, SessionEnding | None]:
        """Sends a line and waits for the answer.

        Args:
            line: a text without a newline.
            time_s: time limit in seconds; None: that of the program.

        Returns:
            The answer and None; after the end of the command or a limit an empty text and the reason, and the session
            is closed.
        """
        deadline = time.monotonic() + (self._limits.time_s if time_s is None else time_s)
        ending = self._exchange(line.encode() + b"\n", answer := bytearray(), deadline)
        if ending is None:
            return answer.decode("utf-8", "replace"), None
        self.close()
        return "", ending

    def close(self) -> None:
        """Kills all processes of the command; may be called again."""
        self._stack.close()

    def _exchange(self, unsent: bytes, answer: bytearray, deadline: float) -> SessionEnding | None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while not answer.endswith(b"\n"):
                ready = selector.select(max(deadline - time.monotonic(), 0))
                if not ready:
                    return "late"
                for key, _ in ready:
                    if key.fd == self._stdout:
                        piece = os.read(key.fd, 1 << 16)
                        if not piece:
                            return "ended"
                        answer += piece
                        continue
                    try:
                        unsent = unsent[os.write(key.fd, unsent) :]
                    except BrokenPipeError:
                        return "ended"
                    if not unsent:
                        selector.unregister(key.fd)
                if len(answer) > self._limits.output_kb << 10:
                    return "too much output"
        return None


@dataclass(slots=True)
class _Launched:
    """A running sandbox."""

    process: subprocess.Popen[bytes]
    report: IO[bytes]
    limits: SandboxLimits

    def require_start(self) -> None:
        """Wait for the start of the command. Raises RewardError if there is none."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.report, selectors.EVENT_READ)
            ready = selector.select(START_S)
        report = os.read(self.report.fileno(), 1 << 16) if ready else b""
        if not report.startswith(STARTED):
            raise _refusal(json.loads(report)["refused"] if report else "it ended before it began, or takes too long")

    def outcome(self, *outputs: IO[bytes]) -> Outcome:
        """Read the output until all processes have ended or a limit is reached."""
        assert self.process.stderr is not None
        output_by_pipe = dict.fromkeys((self.report, self.process.stderr, *outputs), b"")
        ending = self._read(output_by_pipe)
        errors, output = output_by_pipe[self.process.stderr], b"".join(output_by_pipe[pipe] for pipe in outputs)
        if ending is not None:
            return Outcome(ending=ending, code=None, output=output, errors=errors)
        report = output_by_pipe[self.report].removeprefix(STARTED)
        result: dict[str, Any] = (
            json.loads(report) if report else {"refused": f"it ended before it began: {errors.decode()[-500:]}"}
        )
        if "refused" in result:
            raise _refusal(result["refused"])
        how: Ending = "exited" if result["signal"] is None else "killed"
        return Outcome(
            ending=how,
            code=result["code"],
            output=output,
            errors=errors,
            cpu_s=result["cpu_s"],
            memory_mb=result["memory_mb"],
        )

    def _read(self, output_by_pipe: dict[IO[bytes], bytes]) -> Ending | None:
        """Read the pipes into the dict; returns None when all of them are closed."""
        deadline, most = time.monotonic() + START_S, self.limits.output_kb << 10
        began = False
        with selectors.DefaultSelector() as selector:
            for pipe in output_by_pipe:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                ready = selector.select(max(deadline - time.monotonic(), 0))
                for key, _ in ready:
                    pipe: Any = key.fileobj
                    piece = os.read(pipe.fileno(), 1 << 16)
                    output_by_pipe[pipe] += piece
                    if not piece:
                        selector.unregister(pipe)
                if not began and output_by_pipe[self.report].startswith(STARTED):
                    began, deadline = True, time.monotonic() + self.limits.time_s
                if max(len(text) for pipe, text in output_by_pipe.items() if pipe is not self.report) > most:
                    return "too much output"
                if not ready:
                    return "late"
        return None


def _refusal(reason: str) -> RewardError:
    return RewardError(
        f"generated code cannot be run within limits here, so it is not run: {reason}. "
        f"The requirements: {page_url('how-to/sandbox')}"
    )


@contextlib.contextmanager
def _launched(
    program: Program, stdin: str | None, stdin_pipe: int, stdout_pipe: int, errors: int = subprocess.PIPE
) -> Iterator[_Launched]:
    """Start a sandbox; remaining processes are killed on exit."""
    if sys.platform != "linux":
        raise RewardError(f"code that a model wrote is run on Linux alone, within limits; this is {sys.platform}")
    with contextlib.ExitStack() as stack:
        spec = stack.enter_context(tempfile.TemporaryFile("w+"))
        root = stack.enter_context(tempfile.TemporaryDirectory(prefix="mmgrpo-sandbox-"))
        json.dump(_spec(program, stdin, root), spec)
        spec.seek(0)
        reading, writing = os.pipe()
        report = stack.enter_context(os.fdopen(reading, "rb"))
        try:
            process = subprocess.Popen(
                [*PYTHON, "-S", LAUNCHER, str(spec.fileno()), str(writing)],
                stdin=stdin_pipe, stdout=stdout_pipe, stderr=errors, env={}, cwd="/",
                pass_fds=(spec.fileno(), writing), start_new_session=True,
            )  # fmt: skip
        finally:
            os.close(writing)
        stack.enter_context(process)
        stack.callback(process.kill)
        yield _Launched(process, report, program.limits)


def _spec(program: Program, stdin: str | None, root: str) -> dict[str, Any]:
    limits = program.limits
    return {
        "command": list(program.command),
        "files": dict(program.files),
        "paths": [*INTERPRETER, *program.paths],
        "env": ENVIRONMENT | dict(program.env),
        "stdin": stdin,
        "root": root,
        "processes": limits.processes,
        "memory_bytes": limits.memory_mb << 20,
        "disk_bytes": limits.disk_mb << 20,
    }


def _close(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
