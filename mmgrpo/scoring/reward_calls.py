"""Calls a reward with a time limit, on the caller's thread or on a separate one."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, final

import torch

from mmgrpo.types import Sample


@final
class Caller:
    """Calls one reward sequentially, in the order of the calls.

    A thread cannot be stopped: a call that exceeds its time limit continues in the background, and later calls wait for
    it within their own limits. There is at most one thread, regardless of the number of timed-out calls; it is a daemon
    and does not keep the process alive.
    """

    def __init__(
        self, function: Callable[..., Any], *, threaded: bool, timeout_s: float | None, awaits: bool = False
    ) -> None:
        """Stores the function.

        Args:
            function: the reward.
            threaded: whether it runs on a thread, in parallel to the rollout and to other rewards.
            timeout_s: time limit of a call in seconds; None: unlimited.
            awaits: whether a call waits on a thread once it is started, also without ``threaded``.
        """
        self._function = function
        self._threaded, self._awaits = threaded, awaits
        self._timeout_s = timeout_s
        self._queue = _Queue()

    @property
    def threaded(self) -> bool:
        """Whether calls may start during the rollout, on a separate thread."""
        return self._threaded

    @property
    def launches(self) -> bool:
        """Whether ``start`` begins a call on a separate thread."""
        return self._threaded or self._awaits

    def start(self, samples: Sequence[Sample]) -> RewardCall:
        """Start a call; without a separate thread the reward runs in ``RewardCall.result``.

        Args:
            samples: the samples to score.

        Returns:
            The call.
        """
        call = RewardCall(partial(self._function, samples), self._timeout_s, self._queue)
        if self.launches:
            call.launch()
        return call


@final
class _Queue:
    """The calls of one reward on its thread, run sequentially; the thread lives while there are calls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RewardCall] = deque()
        self._current: RewardCall | None = None

    def put(self, call: RewardCall) -> None:
        """Append a call."""
        with self._lock:
            self._waiting.append(call)
            if self._current is None:
                self._current = self._waiting.popleft()
                threading.Thread(target=self._run, args=(self._current,), daemon=True).start()

    def drop(self, call: RewardCall) -> None:
        """Remove a call that timed out before it started, and release its samples."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(call)

    def is_next(self, call: RewardCall) -> bool:
        """Whether no other call is running or queued before this one."""
        with self._lock:
            return self._current in (call, None)

    def _run(self, call: RewardCall | None) -> None:
        while call is not None:
            call.run_on_thread()
            with self._lock:
                call = self._current = self._waiting.popleft() if self._waiting else None


@final
class RewardCall:
    """One call of a reward."""

    def __init__(self, function: Callable[[], Any], timeout_s: float | None, queue: _Queue) -> None:
        self._function = function
        self._timeout_s = timeout_s
        self._queue = queue
        self._device: int | None = None
        self._future: Future[Any] = Future()
        self._launched_s: float | None = None
        self._began_s: float | None = None
        self._ended_s: float | None = None

    @property
    def duration_s(self) -> float:
        """Seconds that the reward has run, excluding the time in the queue."""
        if self._began_s is None:
            return 0.0
        return (time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s

    def launch(self) -> None:
        """Queue the call on the thread."""
        self._launched_s = time.monotonic()
        self._device = _device()
        self._queue.put(self)

    def result(self) -> Any:
        """Wait for the reward's return value; raises the reward's exception, or TimeoutError.

        The time limit starts when the reward starts this call, or, while an earlier call is running, when this call was
        launched.
        """
        if self._launched_s is None:
            if self._timeout_s is None:
                return self._run()
            self.launch()
        while not self._future.done() and (left_s := self._left_s()) > 0:
            wait([self._future], None if math.isinf(left_s) else left_s)
        if self._future.cancel() or not self._future.done():
            self._queue.drop(self)
            raise TimeoutError(f"no answer within timeout_s = {self._timeout_s:g}")
        return self._future.result()

    def run_on_thread(self) -> None:
        """Run on the current thread and store the result for the waiting thread."""
        try:
            if self._future.set_running_or_notify_cancel():
                if self._device is not None:
                    torch.cuda.set_device(self._device)
                self._future.set_result(self._run())
        except BaseException as error:  # the waiting thread raises it
            self._future.set_exception(error)

    def _left_s(self) -> float:
        """Seconds left before the call times out."""
        if self._timeout_s is None:
            return math.inf
        if self._began_s is not None:
            return self._began_s + self._timeout_s - time.monotonic()
        if self._queue.is_next(self):  # about to begin
            return self._timeout_s
        assert self._launched_s is not None
        return self._launched_s + self._timeout_s - time.monotonic()

    def _run(self) -> Any:
        self._began_s = time.monotonic()
        try:
            return self._function()
        finally:
            self._ended_s = time.monotonic()


def _device() -> int | None:
    """The current CUDA device, which new threads do not inherit."""
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
