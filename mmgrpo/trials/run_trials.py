"""Carries out the runs of a comparison, each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from types import FrameType
from typing import final

from mmgrpo.report.number_format import duration
from mmgrpo.runs.folder import clear_unbegun, has_ended
from mmgrpo.runs.stopping import TERMINATING
from mmgrpo.system.console import brief
from mmgrpo.trials.trial_plan import Comparison, ComparisonTrial

LOG_TAIL = 20_000
"""Bytes at the end of a log in which the reason of a failure is looked for."""


@final
class ComparisonInterrupted(BaseException):
    """A signal that ends the comparison.

    Attributes:
        exit_code: as a shell gives it.
    """

    def __init__(self, number: int) -> None:
        """Of the signal of a number."""
        super().__init__(number)
        self.exit_code = 128 + number


@final
class ComparisonRunner:
    """Runs in processes, a few at a time; what ended before is not run again, and what was cut off goes on."""

    def __init__(self, *, num_jobs: int, say: Callable[[str], None]) -> None:
        """Starts nothing yet.

        Args:
            num_jobs: how many run at a time.
            say: is given a line for every run that ended.
        """
        self._num_jobs = num_jobs
        self._say = say
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_told = False
        self._reasons: dict[str, str] = {}

    def carry_out(self, comparison: Comparison) -> list[ComparisonTrial]:
        """Runs what is left of a comparison: the warm-ups, then everything else.

        Args:
            comparison: whose configurations are written.

        Returns:
            The runs that failed; what they said is in their logs.

        Raises:
            ComparisonInterrupted: Ctrl-C or SIGTERM came; what runs was told to end.
        """
        left = [trial for trial in comparison.runs if not has_ended(trial.folder)]
        if known := len(comparison.runs) - len(left):
            self._say(f"{known} of {len(comparison.runs)} runs are there already")
        with _told_to_end():
            first = self._all([trial for trial in left if trial in comparison.warmups])
            broken = {trial.seed for trial in first}
            rest = [trial for trial in left if trial not in comparison.warmups]
            return first + self._all([trial for trial in rest if trial.seed not in broken])

    def _all(self, trials: Sequence[ComparisonTrial]) -> list[ComparisonTrial]:
        failed: list[ComparisonTrial] = []
        began = time.perf_counter()
        with ThreadPoolExecutor(self._num_jobs) as pool:
            pending = {pool.submit(self._one, trial): trial for trial in trials}
            try:
                for done, future in enumerate(as_completed(pending), 1):
                    trial, took_s = pending[future], future.result()
                    is_whole = has_ended(trial.folder)
                    failed += [] if is_whole else [trial]
                    left_s = (time.perf_counter() - began) / done * (len(trials) - done)
                    ended = f"{duration(took_s)}" if is_whole else self._failure(trial)
                    more = f"; about {duration(left_s)} left" if done < len(trials) else ""
                    self._say(f"{trial.name} ({done} of {len(trials)}): {ended}{more}")
            except BaseException:
                self._is_told = True
                for future in pending:
                    future.cancel()
                self._end()
                self._say("cut off: what ran keeps a checkpoint, and the same command goes on from here")
                raise
        return failed

    def _failure(self, trial: ComparisonTrial) -> str:
        """How a run failed: the reason in full the first time, and for the same reason again the run that had it."""
        reason = failure_reason(trial.log)
        first = self._reasons.setdefault(reason, trial.name)
        return (
            f"failed: {reason} (log: {trial.log})" if first == trial.name else f"failed as {first} did; see {trial.log}"
        )

    def _one(self, trial: ComparisonTrial) -> float:
        began = time.perf_counter()
        what = ["--resume", str(trial.folder)] if clear_unbegun(trial.folder) else [str(trial.file)]
        with trial.log.open("ab") as log:
            with self._lock:
                if self._is_told:
                    return 0.0
                process = subprocess.Popen(
                    [sys.executable, "-m", "mmgrpo", "train", *what], stdout=log, stderr=subprocess.STDOUT
                )
                self._running.add(process)
            process.wait()
        with self._lock:
            self._running.discard(process)
        return time.perf_counter() - began

    def _end(self) -> None:
        """Tells what runs to end, which leaves a checkpoint of it."""
        with self._lock:
            for process in self._running:
                process.terminate()


def failure_reason(log: Path) -> str:
    """What a failed run wrote last of why: the line of its error, else the last line of its log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        return f"its log cannot be read ({error.strerror or error})"
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return brief((errors or lines or ["it wrote nothing"])[-1])


@contextmanager
def _told_to_end() -> Iterator[None]:
    """Ctrl-C, SIGTERM and what Slurm warns by raise what tells them apart."""

    def told(number: int, frame: FrameType | None) -> None:
        raise ComparisonInterrupted(number)

    before = {number: signal.signal(number, told) for number in (signal.SIGINT, *TERMINATING)}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)
