"""Ctrl-C outside the steps of a run, where foreign code may swallow it.

scikit-learn's ``MLPClassifier.fit`` catches KeyboardInterrupt and returns a classifier that is fitted halfway: a run
that was interrupted there would train on with another reward.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_received = threading.Event()


def install() -> None:
    """From here on a Ctrl-C is remembered as well as raised; for the first line of a command."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,
        signal.SIG_DFL,
    ):
        _received.clear()
        signal.signal(signal.SIGINT, _remember_and_raise)


def require_none() -> None:
    """Raises KeyboardInterrupt if one was raised since ``install`` and code that was running swallowed it."""
    if _received.is_set():
        _received.clear()
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Within it a Ctrl-C waits for the end, where it is raised.

    Yields:
        None: nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    waiting: list[int] = []

    def wait(number: int, frame: Any) -> None:
        waiting.append(number)

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if waiting and callable(before):
            before(waiting[0], None)


def _remember_and_raise(number: int, frame: Any) -> None:
    _received.set()
    raise KeyboardInterrupt
