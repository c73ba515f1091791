"""Keeps what a reward does to the state of the process away from training."""

from __future__ import annotations

import logging
import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
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


def _set_cudnn_deterministic(value: bool) -> None:
    torch.backends.cudnn.deterministic = value


_SETTINGS: Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "the default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "the default device": (torch.get_default_device, torch.set_default_device),
    "grad mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "the number of threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic algorithms": (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    "cuDNN's determinism": (lambda: torch.backends.cudnn.deterministic, _set_cudnn_deterministic),
    "the working directory": (_working_directory, _set_working_directory),
}


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
    mode, number of threads and determinism, and the working directory. On the main thread the global generators of
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
        before = {setting: get() for setting, (get, _) in _SETTINGS.items()}
        if threading.current_thread() is not threading.main_thread():  # the generators are shared with what runs there
            try:
                return self._function(samples)
            finally:
                self._restore(before)
        outside = _RandomState.current()
        if self._random is not None:
            self._random.restore()
        try:
            return self._function(samples)
        finally:
            self._random = _RandomState.current()
            outside.restore()
            self._restore(before)

    def _restore(self, before: Mapping[str, Any]) -> None:
        for setting, (get, restore) in _SETTINGS.items():
            if (after := get()) == before[setting]:
                continue
            restore(before[setting])
            if setting not in self._reported:
                self._reported.add(setting)
                logger.warning(
                    "reward '%s' changed %s from %s to %s; it is restored after each call",
                    self._name, setting, before[setting], after,
                )  # fmt: skip
