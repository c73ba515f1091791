"""Calls a reward: here and now, or on a thread of its own, within a time limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from functools import partial
from typing import Any, final

import torch

from mmgrpo.types import Sample


@final
class Caller:
    """Calls one reward, never twice at once.

    A thread cannot be stopped: a call that is given up after its time limit goes on in the background, and the calls
    that follow wait for it, within their own limits. Threads do not keep the process from ending.
    """

    def __init__(self, function: Callable[..., Any], *, threaded: bool, timeout_s: float | None) -> None:
        self._function = function
        self._threaded = threaded
        self._timeout_s = timeout_s
        self._one_at_a_time = threading.Lock()

    @property
    def threaded(self) -> bool:
        """Whether calls run on a thread, beside whatever else is going on."""
        return self._threaded

    def start(self, samples: Sequence[Sample]) -> Callable[[], Any]:
        """Begins a call.

        Args:
            samples: what is to be judged.

        Returns:
            A function that waits for what the reward returns; it raises what the reward raised, or TimeoutError. On the
            caller's own thread the reward runs when it is waited for.
        """
        if not self._threaded and self._timeout_s is None:
            return partial(self._function, samples)
        return self._launched(samples) if self._threaded else lambda: self._launched(samples)()

    def _launched(self, samples: Sequence[Sample]) -> Callable[[], Any]:
        future: Future[Any] = Future()
        deadline = None if self._timeout_s is None else time.monotonic() + self._timeout_s
        threading.Thread(target=self._run, args=(future, samples, _device()), daemon=True).start()
        return partial(self._waited, future, deadline)

    def _run(self, future: Future[Any], samples: Sequence[Sample], device: int | None) -> None:
        with self._one_at_a_time:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if device is not None:
                    torch.cuda.set_device(device)
                future.set_result(self._function(samples))
            except BaseException as error:  # whatever ends the call is the waiting thread's to see
                future.set_exception(error)

    def _waited(self, future: Future[Any], deadline: float | None) -> Any:
        try:
            return future.result(None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except FutureTimeoutError:
            if future.done():  # the reward's own error
                raise
            future.cancel()
            raise TimeoutError(f"no answer within timeout_s = {self._timeout_s:g}") from None


def _device() -> int | None:
    """The current CUDA device, which a new thread does not take over by itself."""
    return torch.cuda.current_device() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
