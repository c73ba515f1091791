"""Processes that are forked from one that has imported the libraries and used none of them.

That process, the server, is itself a fork of the worker of the tests, from the moment at which the tests are collected.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import re
import signal
import socket
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import torch
from accelerate.state import AcceleratorState, PartialState

LIMIT_S = 800
"""Of a job: one that hangs is an error."""


@dataclass(frozen=True, slots=True)
class Server:
    """The process that others are forked from, by the worker's ends of its pipes."""

    requests: TextIO
    results: TextIO


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A job: a function of a module, called on several processes with a folder and names; the result of the first."""

    module: str
    function: str
    processes: int
    folder: str
    names: Sequence[str]
    result: str
    log: str
    environment: Mapping[str, str]


_servers: list[Server] = []


def fork() -> int:
    """os.fork() of a process that has used torch, for one that is to use it.

    A fork drops torch's pool of threads, and the first to set the number of threads makes a new one; of the threads
    that autograd starts all at once two may meet there, and end the process ("Invalid thread pool!").
    """
    pid = os.fork()
    if not pid:
        torch.set_num_threads(torch.get_num_threads())
    return pid


def start_server() -> Server:
    """Forks the server, which ends with this process."""
    (requests, requests_end), (results_end, results) = os.pipe(), os.pipe()
    if os.fork() == 0:
        try:
            os.close(requests_end)
            os.close(results_end)
            _serve(os.fdopen(requests), os.fdopen(results, "w"))
        finally:
            os._exit(0)
    os.close(requests)
    os.close(results)
    _servers.append(Server(os.fdopen(requests_end, "w"), os.fdopen(results_end)))
    return _servers[0]


def _serve(requests: TextIO, results: TextIO) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist ignores it
    os.environ.update(ACCELERATE_USE_CPU="true", OMP_NUM_THREADS="1", PYTHONPATH=str(Path.cwd()))
    torch.set_num_threads(1)
    PartialState._reset_state()
    AcceleratorState._reset_state()
    for line in requests:
        request = Request(**json.loads(line))
        pid = fork()
        if not pid:
            _leave_with(request)
        _, status = os.waitpid(pid, 0)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # processes that it left
        print(os.waitstatus_to_exitcode(status), file=results, flush=True)


def _leave_with(request: Request) -> None:
    """Does a job in a new process group and ends the process; what it prints goes to the log."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.alarm(LIMIT_S)
        os.dup2(os.open(request.log, os.O_WRONLY | os.O_CREAT), 1)
        os.dup2(1, 2)
        sys.stdout, sys.stderr = (os.fdopen(handle, "w", buffering=1, closefd=False) for handle in (1, 2))
        faulthandler.enable()
        _do(request)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _do(request: Request) -> None:
    os.environ.update(request.environment)
    if request.processes > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        num_processes = str(request.processes)
        os.environ.update(WORLD_SIZE=num_processes, LOCAL_WORLD_SIZE=num_processes)
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    function = getattr(importlib.import_module(request.module), request.function)
    others_ended, others_run = os.pipe()
    pids = []
    for rank in range(request.processes):
        if pid := fork():
            pids.append(pid)
            continue
        os.close(others_run)
        if request.processes > 1:
            os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        result = function(Path(request.folder), request.names)
        if rank == 0:
            torch.save(result, request.result)
            os.read(others_ended, 1)  # until then they may ask the store of torch.distributed, which is here
        return
    first = pids[0]
    while pids:
        if pids == [first]:
            os.close(others_run)
        pid, status = os.wait()
        pids.remove(pid)
        if status:  # the others wait for it
            for other in pids:
                os.kill(other, signal.SIGKILL)
            raise SystemExit(f"process {pid} ended with {os.waitstatus_to_exitcode(status)}")


def excerpt(text: str, limit: int = 9000) -> str:
    """The begin of a text, from a crash on if it has one, and its end, the traceback of an error."""
    crash = re.search("terminate called|Fatal Python error", text)
    text = text[crash.start() :] if crash else text
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
    """The result that a function of a module, called with a folder and names, has on the first of several processes.

    One process is no job: it has no rank. What they print is in ``output.log`` of the folder.
    """
    result, log = folder / "result.pt", folder / "output.log"
    request = {
        "module": module,
        "function": function,
        "processes": processes,
        "folder": str(folder / "runs"),
        "names": list(names),
        "result": str(result),
        "log": str(log),
        "environment": dict(environment or {}),
    }
    server = _servers[0] if _servers else start_server()
    server.requests.write(json.dumps(request) + "\n")
    server.requests.flush()
    assert server.results.readline() == "0\n", excerpt(log.read_text()) if log.exists() else "it did not start"
    return torch.load(result, weights_only=False)
