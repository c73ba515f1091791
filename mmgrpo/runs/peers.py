"""Whether the other processes of a job are still there: a thread in each looks, and says in whose stead they end.

A process that waits for one that is gone would wait until the process group's time is up, and then name a socket. Here
the first that fails leaves its cause in the store that the processes met by; one that is killed is missed at once by
those of its machine, and by the others once it was silent for ``runtime.heartbeat_timeout_s``.
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

from mmgrpo.errors import MmgrpoError, ProcessLostError
from mmgrpo.runs.processes import Job

logger = logging.getLogger(__name__)

T = TypeVar("T")
LOOK_S = 1.0
ANSWER_S = 3.0
FAILED_CODE = 2  # of the command line, for errors made on purpose
GRACE_S = 15.0
"""What a process that is told so has to end by itself; most fail by then in what they exchange."""
CLOSE_S = 20.0
"""What it then has to save what is whole, on the thread, before it is ended."""
_OF_EXCHANGES = ("closed by peer", "reset by peer", "Timed out waiting", "NCCL", "Broken pipe", "Socket")
"""What gloo and NCCL say where another process does not answer."""
_FAILED, _BEAT, _DONE = "failed", "beat", "done"


@final
class Peers:
    """The other processes of a job, while it trains.

    Attributes:
        lost: what is wrong with one of them; None: nothing that is known of.
    """

    def __init__(self, job: Job, *, heartbeat_timeout_s: float) -> None:
        """Looks at nothing yet.

        Args:
            job: the processes.
            heartbeat_timeout_s: seconds without a sign of life after which a process counts as gone.
        """
        self.lost: ProcessLostError | None = None
        self._job = job
        self._heartbeat_timeout_s = heartbeat_timeout_s
        self._store: Any = None
        self._ended = threading.Event()
        self._turn = threading.Lock()
        self._heard: dict[int, tuple[bytes, float]] = {}
        self._pids: dict[int, int] = {}
        self._names: dict[int, str] = {}

    @contextmanager
    def watched(self, close: Callable[[ProcessLostError], None]) -> Iterator[None]:
        """Within it the others are looked at.

        Args:
            close: saves what is whole and says how the run ended, where this process does not come to it by itself: it
                waits for one that is gone, in a call that nothing interrupts. The process ends after it.

        Yields:
            None: while they are.
        """
        if self._job.num_processes == 1 or not torch.distributed.is_initialized():
            yield
            return
        self._meet()
        for work in (self._talk, partial(self._watch, close)):
            threading.Thread(target=work, name="peers", daemon=True).start()
        try:
            yield
        finally:
            self._ended.set()
            self._asked(lambda: self._store.set(f"{_DONE}/{self._job.process}", "1"))

    def explained(self, error: BaseException) -> BaseException:
        """An error of this process, or what is wrong with another where that is its cause; the others are told."""
        if self._job.num_processes == 1 or self._store is None:
            return error
        if not self._turn.acquire(timeout=GRACE_S + CLOSE_S):  # by then the thread has ended this process, or is stuck
            return self.lost or error
        self._ended.set()
        try:
            of_exchange = isinstance(error, RuntimeError) and not isinstance(error, MmgrpoError)
            until = time.monotonic() + (3 * LOOK_S if of_exchange else 0)
            while of_exchange and self.lost is None and time.monotonic() < until:
                self._look()
                time.sleep(LOOK_S / 10)
            said = f"{type(error).__name__}: {error}"
            if self.lost is None and of_exchange and any(sign in said for sign in _OF_EXCHANGES):
                self.lost = ProcessLostError(
                    "an exchange with the other processes failed: one of them is gone, or came to it later than "
                    f"runtime.collective_timeout_s allows; the output of each may say why. It was said: {said:.300}"
                )
            if self.lost is None:
                self._tell(f"process {self._job.process} of {self._job.num_processes} failed: {said}")
                time.sleep(2 * LOOK_S)  # so that they hear of it where this process keeps the store
        finally:
            self._turn.release()
        return self.lost or error

    def is_heir(self) -> bool:
        """Whether this process is to write down how the run ended, as the main one is gone."""
        if self.lost is None or self._job.is_main or not self._is_gone(0):
            return False
        turn = self._asked(lambda: int(self._store.add("heirs", 1)))
        own = self._job.process
        here = (rank for rank in range(1, self._job.num_processes) if rank == own or not self._is_gone(rank))
        return turn == 1 if turn is not None else min(here) == own

    def _meet(self) -> None:
        from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

        common = self._job.from_main(lambda: f"mmgrpo/{time.time_ns()}")
        self._store = PrefixStore(common, _get_default_store().clone())
        known = self._job.gather_each((socket.gethostname(), os.getpid()))
        host = known[self._job.process][0]
        size = self._job.num_processes
        self._names = {rank: f"process {rank} of {size} (pid {pid} on {on})" for rank, (on, pid) in enumerate(known)}
        self._pids = {rank: pid for rank, (on, pid) in enumerate(known) if on == host and rank != self._job.process}
        self._heard = {rank: (b"", time.monotonic()) for rank in range(size) if rank != self._job.process}

    def _talk(self) -> None:
        """Says that this process is there, and hears of the others, as long as the store answers."""
        count = 0
        while not self._ended.wait(LOOK_S):
            count += 1
            with suppress(Exception):  # of a store whose keeper is gone: all are silent then
                self._store.set(f"{_BEAT}/{self._job.process}", str(count))
                for rank, (before, _) in list(self._heard.items()):
                    key = f"{_BEAT}/{rank}"
                    beat = self._store.get(key) if self._store.check([key]) else b""
                    if beat != before or self._store.check([f"{_DONE}/{rank}"]):
                        self._heard[rank] = (beat, time.monotonic())

    def _watch(self, close: Callable[[ProcessLostError], None]) -> None:
        while not self._ended.wait(LOOK_S):
            with self._turn:
                if self._ended.is_set():
                    return
                self._look()
            if self.lost is not None:
                break
        if self.lost is None or self._ended.wait(GRACE_S) or not self._turn.acquire(timeout=0):
            return
        late = threading.Timer(CLOSE_S, os._exit, [FAILED_CODE])
        late.daemon = True
        late.start()
        try:
            logger.error("%s", self.lost)
            close(self.lost)
        finally:
            sys.stdout.flush()
            os._exit(FAILED_CODE)

    def _look(self) -> None:
        """Finds out whether the others are there, and what they say."""
        if told := self._asked(lambda: self._store.get(_FAILED).decode() if self._store.check([_FAILED]) else ""):
            self._told(told)
        gone = next((rank for rank in self._pids if not _is_there(self._pids[rank]) and not self._is_done(rank)), None)
        if gone is not None:
            self._tell(
                f"{self._names[gone]} is gone: it was killed or crashed, and its own output may say why (where a "
                "machine runs out of memory the kernel kills one, and dmesg says so)"
            )
        silent = [rank for rank in self._heard if self._is_silent(rank)]
        if silent:
            self._tell(
                f"{self._names[silent[0]]} gave no sign of life for {self._heartbeat_timeout_s:g} s: it is stopped, "
                "hangs in a call that lets no other thread run, or its machine is gone; runtime.heartbeat_timeout_s "
                "sets the limit"
            )

    def _tell(self, cause: str) -> None:
        """Leaves the cause for all, if none has before."""
        self._asked(lambda: self._store.compare_set(_FAILED, "", cause[:2000]))
        self._told(cause)

    def _asked(self, call: Callable[[], T]) -> T | None:
        """What the store says; None if it does not answer soon, as where the process that keeps it is stopped."""
        said: list[T] = []

        def ask() -> None:
            with suppress(Exception):
                said.append(call())

        thread = threading.Thread(target=ask, name="peers", daemon=True)
        thread.start()
        thread.join(ANSWER_S)
        return said[0] if said else None

    def _told(self, cause: str) -> None:
        if self.lost is None and not cause.startswith(f"process {self._job.process} of "):
            self.lost = ProcessLostError(
                f"{cause}. The other processes cannot go on without it and end; what was saved stays"
            )

    def _is_done(self, rank: int) -> bool:
        return bool(self._asked(lambda: self._store.check([f"{_DONE}/{rank}"])))

    def _is_silent(self, rank: int) -> bool:
        return rank in self._heard and time.monotonic() - self._heard[rank][1] > self._heartbeat_timeout_s

    def _is_gone(self, rank: int) -> bool:
        return (rank in self._pids and not _is_there(self._pids[rank])) or self._is_silent(rank)


def _is_there(pid: int) -> bool:
    """Whether a process of this machine runs or is stopped; one that has ended and is still listed does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
