"""Keeps what a reward does to the state of the process away from training."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from mmgrpo.types import Sample

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

_OF_THREAD: _Settings = {
    "the default device": (torch.get_default_device, _set_default_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "autocast": (_autocast, _set_autocast),
    "numpy's handling of floating-point errors": (np.geterr, lambda value: np.seterr(**value)),
}
"""Settings that each thread has for itself."""

_OF_PROCESS: _Settings = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (_deterministic, _set_deterministic),
    "cuDNN's determinism and benchmark": (_cudnn, _set_cudnn),
    "the precision of float32 products": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    "the working directory": (_working_directory, _set_working_directory),
}
"""Settings that all threads share."""


def _values(settings: _Settings) -> dict[str, Any]:
    return {name: get() for name, (get, _) in settings.items()}


@final
class _Calls:
    """The calls that run now on any thread, and the shared settings from before the first of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._before: Mapping[str, Any] = {}
        self._running: list[str] = []
        self._names: set[str] = set()

    def begin(self, name: str) -> None:
        with self._lock:
            if not self._running:
                self._before = _values(_OF_PROCESS)
                self._names = set()
            self._running.append(name)
            self._names.add(name)

    def end(self, name: str) -> tuple[list[tuple[str, Any, Any]], str]:
        """Restores the shared settings.

        Args:
            name: of the reward whose call ends.

        Returns:
            The name, earlier value and value of each setting that was changed; the names of the rewards that may have
            changed it.
        """
        with self._lock:
            self._running.remove(name)
            changed = _restored(_OF_PROCESS, self._before)
            names = sorted(self._names)
            return changed, f"reward '{names[0]}'" if len(names) == 1 else f"one of the rewards {', '.join(names)}"


_calls = _Calls()


def _restored(settings: _Settings, before: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    changed = []
    for setting, (get, restore) in settings.items():
        if (after := get()) != before[setting]:
            restore(before[setting])
            changed.append((setting, before[setting], after))
    return changed


@contextmanager
def restored_settings(name: str, reported: set[str]) -> Iterator[None]:
    """Restores what the code of a reward changes of the process's settings, with a warning for each.

    Rewards that run at the same time share the settings from before the first of them, so that none restores what
    another changed.

    Args:
        name: of the reward.
        reported: settings that no warning names again; extended here.

    Yields:
        None: while the code runs.
    """
    before = _values(_OF_THREAD)
    _calls.begin(name)
    try:
        yield
    finally:
        shared, names = _calls.end(name)
        of_thread = [(f"reward '{name}'", *change) for change in _restored(_OF_THREAD, before)]
        for who, setting, earlier, after in [*of_thread, *((names, *change) for change in shared)]:
            if setting not in reported:
                reported.add(setting)
                logger.warning("%s changed %s from %s to %s; it is restored", who, setting, earlier, after)


@dataclass(frozen=True, slots=True)
class _RandomState:
    """The states of the global generators of Python, numpy and torch's CPU."""

    python: Any
    numpy: Any
    torch: torch.Tensor

    @classmethod
    def current(cls) -> _RandomState:
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


@final
class Isolated:
    """A reward whose changes to global state end with each call.

    Restored, with one warning per reward and setting that names the reward: torch's default dtype and device, grad
    mode, autocast, number of threads, determinism and precision of float32 products, numpy's handling of floating-point
    errors, and the working directory. On the main thread the global generators of
    Python, numpy and torch are the reward's own: what it draws or seeds there changes no other part of the run, and
    its next call continues where this one ended.
    """

    def __init__(self, name: str, function: Callable[[Sequence[Sample]], Any]) -> None:
        """Wraps a reward.

        Args:
            name: of the reward, for the warning.
            function: the reward.
        """
        self._name = name
        self._function = function
        self._random: _RandomState | None = None
        self._reported: set[str] = set()

    def __call__(self, samples: Sequence[Sample]) -> Any:
        with restored_settings(self._name, self._reported):
            if threading.current_thread() is not threading.main_thread():  # generators are shared with what runs there
                return self._function(samples)
            outside = _RandomState.current()
            if self._random is not None:
                self._random.restore()
            try:
                return self._function(samples)
            finally:
                self._random = _RandomState.current()
                outside.restore()
