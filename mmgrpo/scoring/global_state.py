"""Isolates training from changes that a reward makes to the state of the process."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch

from mmgrpo.system.model_residence import restore_models
from mmgrpo.system.process_settings import restored_settings
from mmgrpo.types import Sample


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
    """A reward whose changes to global state are undone after each call.

    Restored, with one warning per reward and setting that names the reward: torch's default dtype and device, grad
    mode, autocast, number of threads, determinism and precision of float32 products, numpy's handling of floating-point
    errors, and the working directory. On the main thread each reward has separate states of the global generators of
    Python, numpy and torch: its random numbers and seeds affect no other part of the run, and its next call continues
    from its last state.
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
        restore_models()
        with restored_settings(f"reward '{self._name}'", self._reported):
            if threading.current_thread() is not threading.main_thread():  # which owns the generators
                return self._function(samples)
            outside = _RandomState.current()
            if self._random is not None:
                self._random.restore()
            try:
                return self._function(samples)
            finally:
                self._random = _RandomState.current()
                outside.restore()
