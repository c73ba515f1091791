"""Processes of a job that are forked from one, so that the libraries are imported once, and not in each."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

SCRIPT = """
import faulthandler, importlib, os, signal, socket, sys, traceback
from pathlib import Path
import torch

faulthandler.enable()
torch.set_num_threads(1)
module, function, processes, folder, found, *names = sys.argv[1:]
called = getattr(importlib.import_module(module), function)
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
os.environ.update(WORLD_SIZE=processes, LOCAL_WORLD_SIZE=processes, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
over, keep = os.pipe()
pids = []
for rank in range(int(processes)):
    if pid := os.fork():
        pids.append(pid)
        continue
    code = 1
    os.close(keep)
    try:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        answer = called(Path(folder), names)
        if rank == 0:
            torch.save(answer, found)
            os.read(over, 1)  # the others may yet ask the store, which is this one's
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
first = pids[0]
while pids:
    if pids == [first]:
        os.close(keep)
    pid, status = os.wait()
    pids.remove(pid)
    if status:  # the others wait for it
        for other in pids:
            os.kill(other, signal.SIGKILL)
        sys.exit(f"process {pid} ended with {os.waitstatus_to_exitcode(status)}")
"""


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
    found = folder / "found.pt"
    given = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path.cwd()), **(environment or {})}
    command = [sys.executable, "-c", SCRIPT, module, function, str(processes), str(folder / "runs"), str(found), *names]
    done = subprocess.run(command, env={**os.environ, **given}, timeout=800, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-9000:]
    return torch.load(found, weights_only=False)
