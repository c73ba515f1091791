"""Guarded commands end with the process that started them, with all their descendants and temporary files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mmgrpo.system.process_guard import GuardedProcess, piped_command

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="orphans are found on Linux alone")

LIMIT_S = 60.0

# The command ends itself; of its two children one leaves its session, as the helpers of browsers do.
COMMAND = "echo $TMPDIR; touch $TMPDIR/file; setsid sleep 1000 & echo $!; sleep 1001 & echo $!; echo ready"

PARENT = """
import os, signal, sys, time
from concurrent.futures import ThreadPoolExecutor
from mmgrpo.system.process_guard import GuardedProcess

signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore it
output = open(sys.argv[1], "wb")
# the thread that starts it ends before the process
with ThreadPoolExecutor(1) as pool:
    guarded = pool.submit(GuardedProcess, ["sh", "-c", sys.argv[2]], output=output).result()
if sys.argv[3] == "end":
    while b"ready" not in open(sys.argv[1], "rb").read():
        time.sleep(0.01)
    if os.fork() == 0:  # a process that has the ends of the pipes too
        time.sleep(1000)
    guarded.end()
    print("ended", flush=True)
time.sleep(1000)
"""


def alive(pid: int) -> bool:
    """Whether a process runs; a process that ended without a wait does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_ended(pids: list[int]) -> list[int]:
    """The processes that still run after the limit."""
    deadline = time.monotonic() + LIMIT_S
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def started(output: Path, how: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PARENT, str(output), COMMAND, how], stdout=subprocess.PIPE, start_new_session=True
    )


def lines_of(output: Path) -> tuple[Path, list[int]]:
    """The temporary folder of a command, and its two children."""
    deadline = time.monotonic() + LIMIT_S
    while not output.exists() or "ready" not in output.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    folder, *pids, _ = output.read_text().split()
    return Path(folder), [int(pid) for pid in pids]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_commands_end_with_a_killed_parent(number: signal.Signals, tmp_path: Path) -> None:
    parent = started(tmp_path / "output", "wait")
    folder, pids = lines_of(tmp_path / "output")
    assert [alive(pid) for pid in pids] == [True, True]
    assert (folder / "file").is_file()
    parent.send_signal(number)
    parent.wait(LIMIT_S)
    assert wait_until_ended(pids) == []
    deadline = time.monotonic() + LIMIT_S
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not folder.exists()


def test_end_returns_when_every_process_has_ended(tmp_path: Path) -> None:
    parent = started(tmp_path / "output", "end")
    folder, pids = lines_of(tmp_path / "output")
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"ended\n"
    assert [alive(pid) for pid in pids] == [False, False]
    assert not folder.exists()
    os.killpg(parent.pid, signal.SIGKILL)
    parent.wait()


PIPED_PARENT = """
import subprocess, sys, time
from mmgrpo.system.process_guard import piped_command

guarded = subprocess.Popen(piped_command(["sh", "-c", sys.argv[1]]), stdin=subprocess.PIPE)
guarded.stdin.write(b"hello\\n")
guarded.stdin.flush()
time.sleep(1000)
"""


@pytest.mark.nightly
def test_a_piped_command_has_the_streams_and_ends_with_its_parent() -> None:
    command = "read line; echo $line; setsid sleep 1000 & echo $!; echo $$; sleep 1001"
    with subprocess.Popen([sys.executable, "-c", PIPED_PARENT, command], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        line, *pids = [parent.stdout.readline().strip() for _ in range(3)]
        parent.kill()
    assert line == "hello"
    assert wait_until_ended([int(pid) for pid in pids]) == []


def test_a_piped_command_may_end_by_itself() -> None:
    ended = subprocess.run(piped_command(["sh", "-c", "cat; exit 3"]), input=b"words", stdout=subprocess.PIPE)
    assert (ended.stdout, ended.returncode) == (b"words", 3)


def test_commands_inherit_files_by_number(tmp_path: Path) -> None:
    """The command has the files as 3 and 4, in any order of their numbers here; no other process keeps them open."""
    (command_end, commands), (replies, reply_end) = os.pipe(), os.pipe()
    with open(tmp_path / "output", "wb") as output:
        files = sorted([command_end, reply_end], key=lambda file: file == command_end)
        guarded = GuardedProcess(["sh", "-c", "cat <&4 >&3"], output=output, files=files)
    os.close(command_end)
    os.close(reply_end)
    os.write(commands, b"text")
    assert os.read(replies, 100) == b"text"
    os.close(commands)  # which ends the command
    assert os.read(replies, 100) == b""
    os.close(replies)
    guarded.end()
