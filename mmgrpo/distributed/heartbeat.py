"""Heartbeats between the processes of a job: a thread in each process ends it if another process is lost.

A process that waits for a lost one would wait until the process group's timeout, and then report a socket error.
Instead the first process that fails writes its cause to the store of the process group. The processes on the same
machine notice a killed process at once; the others notice it after ``runtime.heartbeat_timeout_s`` without a heartbeat.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar, final

import torch.distributed

from mmgrpo.distributed.job import Job
from mmgrpo.errors import MmgrpoError, ProcessLostError
from mmgrpo.system.processes import is_running

logger = logging.getLogger(__name__)

T = TypeVar("T")
CHECK_INTERVAL_S = 1.0
STORE_TIMEOUT_S = 3.0
FAILED_CODE = 2  # exit code of the command line for an MmgrpoError
GRACE_S = 15.0
"""Seconds that a process has to exit after another was lost; by then most fail in a collective."""
CLOSE_S = 20.0
"""Seconds that the thread then has to save complete results before it ends the process."""
_COLLECTIVE_ERRORS = ("closed by peer", "reset by peer", "Timed out waiting", "NCCL", "Broken pipe", "Socket")
"""Texts in the errors of gloo and NCCL when another process does not answer."""
_FAILED, _BEAT, _DONE = "failed", "beat", "done"


@final
class Heartbeat:
    """Heartbeats between the processes of a job while it trains.

    Attributes:
        lost: the error about a lost process; None: no process is lost.
    """

    def __init__(self, job: Job, *, timeout_s: float) -> None:
        """Starts no thread yet.

        Args:
            job: the processes.
            timeout_s: seconds without a heartbeat after which a process counts as lost.
        """
        self.lost: ProcessLostError | None = None
        self._job = job
        self._timeout_s = timeout_s
        self._store: Any = None
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._last_beat: dict[int, tuple[bytes, float]] = {}
        self._pids: dict[int, int] = {}
        self._names: dict[int, str] = {}

    @contextmanager
    def running(self, close: Callable[[ProcessLostError], None]) -> Iterator[None]:
        """Context in which the heartbeat threads run.

        Args:
            close: saves complete results and records the status of the run. The thread calls it, and then ends the
                process, if another process is lost while this one hangs in a call that nothing interrupts.

        Yields:
            None: while the threads run.
        """
        if self._job.num_processes == 1 or not torch.distributed.is_initialized():
            yield
            return
        self._connect()
        for loop in (self._beat_loop, partial(self._check_loop, close)):
            threading.Thread(target=loop, name="heartbeat", daemon=True).start()
        try:
            yield
        finally:
            self._stopped.set()
            self._call_store(lambda: self._store.set(f"{_DONE}/{self._job.process}", "1"))

    def root_cause(self, error: BaseException) -> BaseException:
        """Returns the error of a lost process if that caused this one; else the error, after telling the others."""
        if self._job.num_processes == 1 or self._store is None:
            return error
        if not self._lock.acquire(timeout=GRACE_S + CLOSE_S):  # by then the thread has ended this process, or is stuck
            return self.lost or error
        self._stopped.set()
        try:
            may_be_collective = isinstance(error, RuntimeError) and not isinstance(error, MmgrpoError)
            deadline = time.monotonic() + (3 * CHECK_INTERVAL_S if may_be_collective else 0)
            while may_be_collective and self.lost is None and time.monotonic() < deadline:
                self._check()
                time.sleep(CHECK_INTERVAL_S / 10)
            message = f"{type(error).__name__}: {error}"
            if self.lost is None and may_be_collective and any(text in message for text in _COLLECTIVE_ERRORS):
                self.lost = ProcessLostError(
                    "a collective of the processes failed: one of them is gone, or reached it later than "
                    "runtime.collective_timeout_s allows; the output of each process may say why. The error is: "
                    f"{message:.300}"
                )
            if self.lost is None:
                self._report(f"process {self._job.process} of {self._job.num_processes} failed: {message}")
                time.sleep(2 * CHECK_INTERVAL_S)  # so that the others read it, if this process hosts the store
        finally:
            self._lock.release()
        return self.lost or error

    def replaces_main(self) -> bool:
        """Whether this process has to record how the run ended, because the main process is lost."""
        if self.lost is None or self._job.is_main or not self._is_lost(0):
            return False
        order = self._call_store(lambda: int(self._store.add("heirs", 1)))
        process = self._job.process
        alive = (other for other in range(1, self._job.num_processes) if other == process or not self._is_lost(other))
        return order == 1 if order is not None else min(alive) == process

    def _connect(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        prefix = self._job.run_on_main(lambda: f"mmgrpo/{time.time_ns()}")
        self._store = PrefixStore(prefix, _get_default_store().clone())
        addresses = self._job.gather_processes((socket.gethostname(), os.getpid()))
        this_host, this_process = addresses[self._job.process][0], self._job.process
        size = self._job.num_processes
        self._names = {
            process: f"process {process} of {size} (pid {pid} on {host})"
            for process, (host, pid) in enumerate(addresses)
        }
        self._pids = {
            process: pid
            for process, (host, pid) in enumerate(addresses)
            if host == this_host and process != this_process
        }
        self._last_beat = {process: (b"", time.monotonic()) for process in range(size) if process != this_process}

    def _beat_loop(self) -> None:
        """Sends this process's heartbeat and reads those of the others, while the store answers."""
        count = 0
        while not self._stopped.wait(CHECK_INTERVAL_S):
            count += 1
            with suppress(Exception):  # if the process that hosts the store is gone, all others fall silent
                self._store.set(f"{_BEAT}/{self._job.process}", str(count))
                for process, (last, _) in list(self._last_beat.items()):
                    key = f"{_BEAT}/{process}"
                    beat = self._store.get(key) if self._store.check([key]) else b""
                    if beat != last or self._store.check([f"{_DONE}/{process}"]):
                        self._last_beat[process] = (beat, time.monotonic())

    def _check_loop(self, close: Callable[[ProcessLostError], None]) -> None:
        while not self._stopped.wait(CHECK_INTERVAL_S):
            with self._lock:
                if self._stopped.is_set():
                    return
                self._check()
            if self.lost is not None:
                break
        if self.lost is None or self._stopped.wait(GRACE_S) or not self._lock.acquire(timeout=0):
            return
        timer = threading.Timer(CLOSE_S, os._exit, [FAILED_CODE])
        timer.daemon = True
        timer.start()
        try:
            logger.error("%s", self.lost)
            close(self.lost)
        finally:
            sys.stdout.flush()
            os._exit(FAILED_CODE)

    def _check(self) -> None:
        """Reads the cause that another process reported, and looks for processes that are gone or silent."""
        cause = self._call_store(lambda: self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else "")
        if cause:
            self._set_lost(cause)
        gone = next((p for p, pid in self._pids.items() if not is_running(pid) and not self._is_done(p)), None)
        if gone is not None:
            self._report(
                f"{self._names[gone]} is gone: it was killed or crashed, and its output may say why (if the machine "
                "ran out of memory, the kernel killed it, and dmesg shows that)"
            )
        silent = [process for process in self._last_beat if self._is_silent(process)]
        if silent:
            self._report(
                f"{self._names[silent[0]]} sent no heartbeat for {self._timeout_s:g} s: it is stopped, hangs in a call "
                "that blocks its other threads, or its machine is gone; runtime.heartbeat_timeout_s sets the limit"
            )

    def _report(self, cause: str) -> None:
        """Writes the cause to the store for all processes, unless one is there already."""
        self._call_store(lambda: self._store.compare_set(_FAILED, "", cause[:2000]))
        self._set_lost(cause)

    def _call_store(self, call: Callable[[], T]) -> T | None:
        """Returns the store's answer; None after a timeout, such as when the process that hosts it is stopped."""
        answers: list[T] = []

        def run() -> None:
            with suppress(Exception):
                answers.append(call())

        thread = threading.Thread(target=run, name="heartbeat", daemon=True)
        thread.start()
        thread.join(STORE_TIMEOUT_S)
        return answers[0] if answers else None

    def _set_lost(self, cause: str) -> None:
        if self.lost is None and not cause.startswith(f"process {self._job.process} of "):
            self.lost = ProcessLostError(
                f"{cause}. The other processes cannot continue without it and end; saved files stay"
            )

    def _is_done(self, process: int) -> bool:
        return bool(self._call_store(lambda: self._store.check([f"{_DONE}/{process}"])))

    def _is_silent(self, process: int) -> bool:
        return process in self._last_beat and time.monotonic() - self._last_beat[process][1] > self._timeout_s

    def _is_lost(self, process: int) -> bool:
        return (process in self._pids and not is_running(self._pids[process])) or self._is_silent(process)
