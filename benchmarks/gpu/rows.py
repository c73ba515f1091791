"""Sections of the table: each has a time budget, prints its rows at once, and does not end the run when it fails."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

Value = float | int | str | bool | list[float]


@dataclass(slots=True, kw_only=True)
class Bench:
    """The device, and the rows measured on it.

    Attributes:
        device: where.
        tiny: models of a few thousand weights of the same classes instead of the published shapes.
        rounds: turns of every comparison.
        file: JSON lines of the rows; None: printed alone.
        flow_grpo: a clone of flow_grpo; None: it is not measured.
        vllm_python: the Python of an environment with vLLM; None: vLLM is not measured.
        total_s: seconds after which no section begins and the running one ends; infinite: no limit.
        failed: names of the sections that failed.
    """

    device: str
    tiny: bool = False
    rounds: int = 2
    file: Path | None = None
    flow_grpo: Path | None = None
    vllm_python: Path | None = None
    total_s: float = math.inf
    failed: list[str] = field(default_factory=list)
    _section: str = ""
    _begun_s: float = field(default_factory=time.monotonic)
    _deadline_s: float = 0.0

    def row(self, case: str, values: Mapping[str, Value]) -> None:
        """Prints a row of the table and appends it to the file."""
        line = ", ".join(f"{name} {_text(value)}" for name, value in values.items())
        print(f"| {self._section} | {case} | {line} |", flush=True)
        if self.file is not None:
            with self.file.open("a") as file:
                file.write(json.dumps({"section": self._section, "case": case, **values}) + "\n")

    def run(self, name: str, work: Callable[[Bench], None], *, budget_s: float) -> None:
        """Runs a section; a failure is printed in full, and the time that it took in any case."""
        self._section, begun = name, time.monotonic()
        left_s = self._begun_s + self.total_s - begun
        if left_s <= 0:
            self.row(name, {"skipped": "no time left in the run"})
            return
        self._deadline_s = begun + min(budget_s, left_s)
        try:
            with _alarm(min(1.5 * budget_s, left_s)):
                work(self)
        except Exception:
            self.failed.append(name)
            traceback.print_exc()
            print(f"| {name} | failed | see the error above |", flush=True)
        release()
        print(f"({name}: {time.monotonic() - begun:.0f} s)", flush=True)

    @contextmanager
    def case(self, name: str) -> Iterator[None]:
        """A part of a section whose failure is printed, while the other parts continue."""
        try:
            yield
        except (TimeoutError, AssertionError):
            raise
        except Exception as error:
            traceback.print_exc()
            self.failed.append(f"{self._section}: {name}")
            self.row(name, {"error": f"{type(error).__name__}: {short_message(error)}"})
        release()

    @property
    def has_time(self) -> bool:
        """Whether the section is within its budget."""
        return time.monotonic() < self._deadline_s


def lacks(bench: Bench, package: str) -> bool:
    """Whether a package is missing, which is a row."""
    if importlib.util.find_spec(package) is not None:
        return False
    bench.row(package, {"skipped": f"no package {package}: pip install {package}"})
    return True


def short_message(error: Exception) -> str:
    """The beginning of an error's message."""
    return " ".join(str(error).split())[:200]


def release() -> None:
    """Frees the memory of models that are no longer used."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def allocated(device: str) -> int:
    """Bytes allocated on the GPU; 0 on the CPU."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0


def peak(device: str, work: Callable[[], Any]) -> tuple[Any, int]:
    """The result of ``work`` and the largest number of bytes allocated meanwhile; 0 on the CPU."""
    if not device.startswith("cuda"):
        return work(), 0
    torch.cuda.reset_peak_memory_stats(device)
    value = work()
    torch.cuda.synchronize(device)
    return value, torch.cuda.max_memory_allocated(device)


@contextmanager
def _alarm(seconds: float) -> Iterator[None]:
    """Raises TimeoutError in the main thread after so many seconds."""

    def ring(*_: Any) -> None:
        raise TimeoutError(f"the section took longer than {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _text(value: Value) -> str:
    if isinstance(value, list):
        return "[" + " ".join(map(_text, value)) + "]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
