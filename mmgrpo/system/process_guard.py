"""Commands that end with this process, however it ends; also the script that guards them.

``python process_guard.py FILES GRACE_S COMMAND ..`` runs a command until its standard input has a byte or is closed, or
its parent has ended, even by SIGKILL; FILES are the numbers of open files that the command has from 3 on. Then it
terminates the command, kills it after GRACE_S seconds with all its descendants, also those that left its process group,
and removes their temporary files. With ``--piped`` as FILES, the command has the standard input and output of the
script, which ends with it. The script needs the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, final

PR_SET_CHILD_SUBREAPER = 36
PIPED = "--piped"
FIRST_FILE = 3
"""Number of the first open file that a command inherits after its standard ones."""
POLL_S = 1.0
"""Seconds between two looks at the parent: a process that it forked may keep the standard input open."""
END_S = 60.0
"""Seconds that the guard gets to kill its processes and to remove their files, on a busy machine too."""


@final
class GuardedProcess:
    """A command in a new session (Ctrl-C does not reach it) that ends with this process; ends completely on Linux."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        output: IO[bytes],
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        grace_s: float = 0.0,
    ) -> None:
        """Starts the command.

        Args:
            command: the program and its arguments.
            output: file for its output and errors.
            files: descriptors of open files, such as ends of pipes, that the command has as 3, 4 and so on; POSIX only.
            environment: its environment variables; None: those of this process.
            grace_s: seconds from SIGTERM to SIGKILL, for a command that has to remove something when it ends.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, ",".join(map(str, files)), str(grace_s), *command],
            stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, pass_fds=files,
            env=environment,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """Process id of the guard, the parent of the command."""
        return self._process.pid

    def end(self) -> None:
        """Kills the command with its descendants; returns when they have ended."""
        stdin = self._process.stdin
        assert stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the guard has ended
            if not stdin.closed:
                stdin.write(b"end")  # a process that this one forked may keep the other end of the pipe open
            stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def piped_command(command: Sequence[str]) -> list[str]:
    """A command that runs another one with its standard input and output, and ends it when this process ends.

    The descendants of the other command end too, on Linux.

    Args:
        command: the program and its arguments.

    Returns:
        The command; its exit code is that of the other.
    """
    return [sys.executable, "-I", "-S", __file__, PIPED, "0", *command]


def _main(files: Sequence[int], grace_s: float, command: Sequence[str], *, is_piped: bool) -> int:
    """Runs the command; returns its exit code, 0 if it was killed."""
    parent = os.getppid()
    numbered = _numbered(files)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":  # orphans of the command become children of this process
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, "TMPDIR": folder}
        stdin = None if is_piped else subprocess.DEVNULL
        child = subprocess.Popen(
            command, stdin=stdin, env=environment, preexec_fn=_default_signals, pass_fds=numbered
        )  # signals that are ignored here would be ignored by the command
        for file in numbered:  # only the command holds its ends of pipes
            os.close(file)
        code = None
        while os.getppid() == parent and code is None:
            if is_piped:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    code = child.wait(POLL_S)
            elif select.select([0], [], [], POLL_S)[0]:
                break
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
        child.kill()
        _kill_children()
        return code or 0


def _numbered(files: Sequence[int]) -> list[int]:
    """Gives open files the numbers from ``FIRST_FILE`` on."""
    numbers = range(FIRST_FILE, FIRST_FILE + len(files))
    copies = []
    for file in files:
        copy = os.dup(file)
        while copy in numbers:
            copy = os.dup(copy)
        copies.append(copy)
    for copy, number in zip(copies, numbers, strict=True):
        os.dup2(copy, number)
    os.closerange(numbers.stop, max([*copies, *files], default=0) + 1)
    return list(numbers)


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def _kill_children() -> None:
    """Kills all children until there is none: those of a killed process become children of this one."""
    while True:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    children = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = entry.read_text(errors="replace").rpartition(")")[2].split()  # the name may contain anything
            if int(fields[1]) == os.getpid():
                children.append(int(entry.parent.name))
    return children


if __name__ == "__main__":
    option, grace, *arguments = sys.argv[1:]
    piped = option == PIPED
    open_files = [] if piped else [int(file) for file in option.split(",") if file]
    sys.exit(_main(open_files, float(grace), arguments, is_piped=piped))
