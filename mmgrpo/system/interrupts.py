"""Ctrl-C outside the steps of a run, where third-party code may swallow it.

scikit-learn's ``MLPClassifier.fit`` catches KeyboardInterrupt and returns a classifier that is only partly fitted: a
run interrupted there would continue with another reward.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_received = threading.Event()


def install() -> None:
    """Makes a Ctrl-C be recorded as well as raised; called on the first line of a command."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) in (
        signal.default_int_handler,
        signal.SIG_DFL,
    ):
        _received.clear()
        signal.signal(signal.SIGINT, _record_and_raise)


def require_none() -> None:
    """Raises KeyboardInterrupt if one was raised since ``install`` and swallowed by running code."""
    if _received.is_set():
        _received.clear()
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[None]:
    """Context in which a Ctrl-C is deferred to the end, and raised there.

    Yields:
        None: nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []

    def record(number: int, frame: Any) -> None:
        received.append(number)

    previous_handler = signal.signal(signal.SIGINT, record)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous_handler)
        if received and callable(previous_handler):
            previous_handler(received[0], None)


def _record_and_raise(number: int, frame: Any) -> None:
    _received.set()
    raise KeyboardInterrupt
