"""Restores settings of the process that third-party code (rewards, environments) changes."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import torch

logger = logging.getLogger(__name__)


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _set_working_directory(path: str | None) -> None:
    if path is not None:
        os.chdir(path)


def _cudnn() -> tuple[bool, bool]:
    return torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark


def _set_cudnn(value: tuple[bool, bool]) -> None:
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = value


def _deterministic() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _set_deterministic(value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _set_default_device(device: torch.device) -> None:
    torch.set_default_device(None if device.type == "cpu" else device)


def _autocast() -> tuple[bool, bool]:
    return torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")


def _set_autocast(enabled: tuple[bool, bool]) -> None:
    torch.set_autocast_enabled("cpu", enabled[0])
    torch.set_autocast_enabled("cuda", enabled[1])


_Settings = Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]]

_THREAD_SETTINGS: _Settings = {
    "the default device": (torch.get_default_device, _set_default_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_autocast, _set_autocast),
    "numpy's handling of floating-point errors": (np.geterr, lambda value: np.seterr(**value)),
}
"""Thread-local settings."""

_PROCESS_SETTINGS: _Settings = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (_deterministic, _set_deterministic),
    "cuDNN's determinism and benchmark": (_cudnn, _set_cudnn),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "the working directory": (_working_directory, _set_working_directory),
}
"""Settings shared by all threads."""


def _values(settings: _Settings) -> dict[str, Any]:
    return {name: get() for name, (get, _) in settings.items()}


@final
class _Calls:
    """The running calls on all threads, and the shared settings from before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: Mapping[str, Any] = {}
        self._running: list[str] = []
        self._names: set[str] = set()

    def begin(self, name: str) -> None:
        with self._lock:
            if not self._running:
                self._before = _values(_PROCESS_SETTINGS)
                self._names = set()
            self._running.append(name)
            self._names.add(name)

    def end(self, name: str) -> tuple[list[tuple[str, Any, Any]], str]:
        """Restores the shared settings.

        Args:
            name: name of the code whose call ends.

        Returns:
            Name, earlier value and changed value of each changed setting; a text that names the possible causes.
        """
        with self._lock:
            self._running.remove(name)
            changed = _restore(_PROCESS_SETTINGS, self._before)
            names = sorted(self._names)
            return changed, names[0] if len(names) == 1 else f"one of {', '.join(names)}"


_calls = _Calls()


def _restore(settings: _Settings, before: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    changed = []
    for setting, (get, restore) in settings.items():
        if (after := get()) != before[setting]:
            restore(before[setting])
            changed.append((setting, before[setting], after))
    return changed


@contextmanager
def restored_settings(name: str, reported: set[str]) -> Iterator[None]:
    """Context of third-party code; restores the process settings that it changes, with a warning for each.

    Concurrent calls share the settings from before the first of them, so that no call restores a value that another
    call changed.

    Args:
        name: name of the code, such as "reward 'aesthetic'".
        reported: settings without a further warning; extended in place.

    Yields:
        None: while the code runs.
    """
    before = _values(_THREAD_SETTINGS)
    _calls.begin(name)
    try:
        yield
    finally:
        shared, names = _calls.end(name)
        thread_changes = [(name, *change) for change in _restore(_THREAD_SETTINGS, before)]
        for culprit, setting, earlier, after in [*thread_changes, *((names, *change) for change in shared)]:
            if setting not in reported:
                reported.add(setting)
                logger.warning("%s changed %s from %s to %s; it is restored", culprit, setting, earlier, after)
