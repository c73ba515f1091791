"""Wall and processor seconds of the parts of a training iteration."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The time of a call.

    Attributes:
        wall_s: wall time.
        cpu_s: processor time of all threads; waiting for a core does not count.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(wall_s=self.wall_s + other.wall_s, cpu_s=self.cpu_s + other.cpu_s)

    def __sub__(self, other: Spent) -> Spent:
        return Spent(wall_s=self.wall_s - other.wall_s, cpu_s=self.cpu_s - other.cpu_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The times of the parts of an iteration.

    Attributes:
        rollout: generating the samples.
        credit: the reward and the advantages.
        update: the gradient and the optimizer's step.
    """

    rollout: Spent
    credit: Spent = Spent()
    update: Spent

    @property
    def iteration(self) -> Spent:
        """All of them."""
        return self.rollout + self.credit + self.update


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and range of some numbers."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Timed(Generic[T]):
    """The result of a call, and its time."""

    value: T
    spent: Spent


def timed(device: str, work: Callable[[], T]) -> Timed[T]:
    """Runs ``work``, to the end of whatever it has started on the device."""
    _settle(device)
    wall, cpu = time.perf_counter(), time.process_time()
    value = work()
    _settle(device)
    return Timed(value, Spent(wall_s=time.perf_counter() - wall, cpu_s=time.process_time() - cpu))


def spread(values: Sequence[float]) -> Spread:
    """Median and range."""
    return Spread(median(values), min(values), max(values))


def _settle(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
