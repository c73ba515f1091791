"""Processes of a job that are forked from one that has imported the libraries, once for all tests of a session."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch

SCRIPT = """
import faulthandler, importlib, json, os, signal, socket, sys, traceback
from pathlib import Path
import torch
from tests.forked import fork

faulthandler.enable()
torch.set_num_threads(1)


def job(module, function, processes, folder, found, names, environment):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    os.environ.update(environment, WORLD_SIZE=str(processes), LOCAL_WORLD_SIZE=str(processes))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    called = getattr(importlib.import_module(module), function)
    over, keep = os.pipe()
    pids = []
    for rank in range(processes):
        if pid := fork():
            pids.append(pid)
            continue
        os.close(keep)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        answer = called(Path(folder), names)
        if rank == 0:
            torch.save(answer, found)
            os.read(over, 1)  # the others may yet ask the store, which is this one's
        return
    first = pids[0]
    while pids:
        if pids == [first]:
            os.close(keep)
        pid, status = os.wait()
        pids.remove(pid)
        if status:  # the others wait for it
            for other in pids:
                os.kill(other, signal.SIGKILL)
            raise SystemExit(f"process {pid} ended with {os.waitstatus_to_exitcode(status)}")


for line in sys.stdin:
    asked = json.loads(line)
    said = asked.pop("said")
    importlib.import_module(asked["module"])
    pid = fork()
    if not pid:
        code = 1
        try:
            os.setpgid(0, 0)
            signal.alarm(800)  # of this one alone, so that what hangs is an error
            os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT), 1)
            os.dup2(1, 2)
            job(**asked)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    try:
        os.killpg(pid, signal.SIGKILL)  # whom it left behind
    except ProcessLookupError:
        pass
    print(os.waitstatus_to_exitcode(status), flush=True)
"""


def fork() -> int:
    """os.fork() of a process that has used torch, for one that is to use it.

    A fork drops torch's pool of threads, and whoever first sets the number of threads makes a new one; of the threads
    that autograd starts all at once two may meet there, and end the process ("Invalid thread pool!").
    """
    pid = os.fork()
    if not pid:
        torch.set_num_threads(torch.get_num_threads())
    return pid


@cache
def _ready() -> subprocess.Popen[str]:
    """The process that others are forked from; it has no threads, and no GPU."""
    environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd())}
    started = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    atexit.register(started.kill)
    return started


def _ends(text: str, limit: int = 9000) -> str:
    """The first of what was said, which names the cause of a crash, and the last, which is the trace of an error."""
    return text if len(text) <= limit else f"{text[: limit // 3]}\n[...]\n{text[-2 * limit // 3 :]}"


def on_processes(
    folder: Path,
    names: Sequence[str],
    *,
    module: str,
    function: str,
    processes: int = 2,
    environment: Mapping[str, str] | None = None,
) -> Any:
    """What a function of a module of tests, given a folder and the names, gives on the first of so many processes."""
    found, said, ready = folder / "found.pt", folder / "said.log", _ready()
    asked = {
        "module": module,
        "function": function,
        "processes": processes,
        "folder": str(folder / "runs"),
        "found": str(found),
        "names": list(names),
        "environment": dict(environment or {}),
        "said": str(said),
    }
    assert ready.stdin is not None
    assert ready.stdout is not None
    ready.stdin.write(json.dumps(asked) + "\n")
    ready.stdin.flush()
    assert ready.stdout.readline() == "0\n", _ends(said.read_text()) if said.exists() else "it did not start"
    return torch.load(found, weights_only=False)
