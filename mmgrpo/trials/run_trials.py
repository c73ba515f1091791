"""Executes the runs of a comparison, each in a separate process."""

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
from mmgrpo.runs.folder import has_ended, remove_unstarted
from mmgrpo.runs.stopping import TERMINATING
from mmgrpo.system.console import shorten
from mmgrpo.trials.trial_plan import Comparison, ComparisonTrial

LOG_TAIL = 20_000
"""Bytes at the end of a log that are searched for the reason of a failure."""


@final
class ComparisonInterrupted(BaseException):
    """A signal that ends the comparison.

    Attributes:
        exit_code: 128 + signal number, as in shells.
    """

    def __init__(self, number: int) -> None:
        """Made from the number of the signal."""
        super().__init__(number)
        self.exit_code = 128 + number


@final
class ComparisonRunner:
    """Executes runs in processes, a few at a time; skips finished runs and resumes interrupted ones."""

    def __init__(self, *, num_jobs: int, print_line: Callable[[str], None]) -> None:
        """Starts no process.

        Args:
            num_jobs: number of runs at a time.
            print_line: prints a line.
        """
        self._num_jobs = num_jobs
        self._print_line = print_line
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_interrupted = False
        self._reasons: dict[str, str] = {}

    def carry_out(self, comparison: Comparison) -> list[ComparisonTrial]:
        """Executes the remaining runs of a comparison: the warm-ups, then the methods.

        Args:
            comparison: the runs, with written configurations.

        Returns:
            The failed runs; their logs have the errors.

        Raises:
            ComparisonInterrupted: Ctrl-C or SIGTERM was received, and the running processes were terminated.
        """
        remaining = [trial for trial in comparison.runs if not has_ended(trial.folder)]
        if num_done := len(comparison.runs) - len(remaining):
            self._print_line(f"{num_done} of {len(comparison.runs)} runs have finished already")
        with _interrupt_on_signals():
            failed_warmups = self._all([trial for trial in remaining if trial in comparison.warmups])
            failed_seeds = {trial.seed for trial in failed_warmups}
            rest = [trial for trial in remaining if trial not in comparison.warmups]
            return failed_warmups + self._all([trial for trial in rest if trial.seed not in failed_seeds])

    def _all(self, trials: Sequence[ComparisonTrial]) -> list[ComparisonTrial]:
        failed: list[ComparisonTrial] = []
        start = time.perf_counter()
        with ThreadPoolExecutor(self._num_jobs) as pool:
            pending = {pool.submit(self._run_trial, trial): trial for trial in trials}
            try:
                for done, future in enumerate(as_completed(pending), 1):
                    trial, elapsed_s = pending[future], future.result()
                    is_finished = has_ended(trial.folder)
                    failed += [] if is_finished else [trial]
                    left_s = (time.perf_counter() - start) / done * (len(trials) - done)
                    ended = f"{duration(elapsed_s)}" if is_finished else self._failure(trial)
                    more = f"; about {duration(left_s)} left" if done < len(trials) else ""
                    self._print_line(f"{trial.name} ({done} of {len(trials)}): {ended}{more}")
            except BaseException:
                self._is_interrupted = True
                for future in pending:
                    future.cancel()
                self._end()
                self._print_line("interrupted: running runs save a checkpoint; the same command resumes the comparison")
                raise
        return failed

    def _failure(self, trial: ComparisonTrial) -> str:
        """The reason of a failure; if an earlier run failed for the same reason, the name of that run."""
        reason = failure_reason(trial.log)
        first = self._reasons.setdefault(reason, trial.name)
        return (
            f"failed: {reason} (log: {trial.log})" if first == trial.name else f"failed as {first} did; see {trial.log}"
        )

    def _run_trial(self, trial: ComparisonTrial) -> float:
        start = time.perf_counter()
        arguments = ["--resume", str(trial.folder)] if remove_unstarted(trial.folder) else [str(trial.file)]
        with trial.log.open("ab") as log:
            with self._lock:
                if self._is_interrupted:
                    return 0.0
                process = subprocess.Popen(
                    [sys.executable, "-m", "mmgrpo", "train", *arguments], stdout=log, stderr=subprocess.STDOUT
                )
                self._running.add(process)
            process.wait()
        with self._lock:
            self._running.discard(process)
        return time.perf_counter() - start

    def _end(self) -> None:
        """Terminates the running processes, which save a checkpoint."""
        with self._lock:
            for process in self._running:
                process.terminate()


def failure_reason(log: Path) -> str:
    """The reason of a failed run: the last error line of its log, else the last line."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_TAIL))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        return f"its log cannot be read ({error.strerror or error})"
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    return shorten((errors or lines or ["it wrote nothing"])[-1])


@contextmanager
def _interrupt_on_signals() -> Iterator[None]:
    """A context in which Ctrl-C, SIGTERM and the warning signals of Slurm raise ComparisonInterrupted."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise ComparisonInterrupted(number)

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, *TERMINATING)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
