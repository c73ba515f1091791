"""Calls a reward: here and now, or on a thread of its own, within a time limit."""

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
    """Calls one reward, never twice at once, in the order of the calls.

    A thread cannot be stopped: a call that is given up after its time limit goes on in the background, and the calls
    that follow wait for it, within their own limits. There is at most one thread, however many calls were given up;
    it does not keep the process from ending.
    """

    def __init__(self, function: Callable[..., Any], *, threaded: bool, timeout_s: float | None) -> None:
        self._function = function
        self._threaded = threaded
        self._timeout_s = timeout_s
        self._queue = _Queue()

    @property
    def threaded(self) -> bool:
        """Whether calls run on a thread, beside whatever else is going on."""
        return self._threaded

    def start(self, samples: Sequence[Sample]) -> RewardCall:
        """Begins a call; on the caller's own thread the reward runs when it is waited for.

        Args:
            samples: what is to be judged.

        Returns:
            The call.
        """
        call = RewardCall(partial(self._function, samples), self._timeout_s, self._queue)
        if self._threaded:
            call.launch()
        return call


@final
class _Queue:
    """The calls of one reward that run on its thread, which lives while there are any: one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: deque[RewardCall] = deque()
        self._current: RewardCall | None = None

    def put(self, call: RewardCall) -> None:
        """Adds a call after those that wait."""
        with self._lock:
            self._waiting.append(call)
            if self._current is None:
                self._current = self._waiting.popleft()
                threading.Thread(target=self._run, args=(self._current,), daemon=True).start()

    def drop(self, call: RewardCall) -> None:
        """Forgets a call that was given up before its turn, and with it its samples."""
        with self._lock, suppress(ValueError):
            self._waiting.remove(call)

    def is_next(self, call: RewardCall) -> bool:
        """Whether no other call runs or waits before this one."""
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
    def took_s(self) -> float:
        """Seconds that the reward ran, so far if it still does; waiting for its turn is none of them."""
        if self._began_s is None:
            return 0.0
        return (time.monotonic() if self._ended_s is None else self._ended_s) - self._began_s

    def launch(self) -> None:
        """Runs on a thread from now on, in its turn."""
        self._launched_s = time.monotonic()
        self._device = _device()
        self._queue.put(self)

    def result(self) -> Any:
        """Waits for what the reward returns; raises what the reward raised, or TimeoutError.

        The time limit counts from where the reward began on this call; while an earlier call does not end, from where
        this one was launched.
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
        """Runs here and now, for whoever waits elsewhere."""
        try:
            if self._future.set_running_or_notify_cancel():
                if self._device is not None:
                    torch.cuda.set_device(self._device)
                self._future.set_result(self._run())
        except BaseException as error:  # whatever ends the call is the waiting thread's to see
            self._future.set_exception(error)

    def _left_s(self) -> float:
        """Seconds left until it is given up, as it stands now."""
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
    """The current CUDA device, which a new thread does not take over by itself."""
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
