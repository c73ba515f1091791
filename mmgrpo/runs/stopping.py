"""How a run is told to end: Ctrl-C, and SIGTERM, SIGUSR1 or SIGUSR2 of whoever runs the machine."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

from mmgrpo.distributed.job import Job
from mmgrpo.system import interrupts
from mmgrpo.types import Sample

TERMINATING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGUSR2") if hasattr(signal, name))
"""Slurm pre-empts by the first, and warns by the one that ``--signal`` names; submitit takes the last."""

BOUNCE_S = 1.0  # a launcher passes on the Ctrl-C that the terminal sent to its processes as well


class Terminated(BaseException):
    """The step at hand is given up: the weights are still those of the step before."""


@final
class Stopping:
    """What was asked for so far; the run looks here where it can end.

    Attributes:
        after_step: the run is to end once the step at hand is done.
        at_once: the step at hand is to be given up as soon as the weights are those of a whole step.
        alarm: what a run is called that ended for an alarm; empty: none asked for it.
    """

    def __init__(self, job: Job) -> None:
        """Nothing was asked for yet, of any process of the job."""
        self._job = job
        self.after_step = False
        self.at_once = False
        self.alarm = ""
        self._interrupted_s: float | None = None
        self._must_end = False

    @property
    def status(self) -> str:
        """What a run that ended for it is called."""
        return "terminated" if self.at_once else "interrupted"

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Within it the first Ctrl-C asks for the end of the step, the second ends it there; the others give it up.

        Raises KeyboardInterrupt for a Ctrl-C that came before and was swallowed.
        """
        interrupts.require_none()
        before: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, *TERMINATING):
                answer = self._on_interrupt if number == signal.SIGINT else self._on_terminate
                before[number] = signal.signal(number, answer)
        except ValueError:  # not in the main thread: whoever owns it owns the signals
            pass
        try:
            yield
        finally:
            for number, answer in before.items():
                signal.signal(number, signal.SIG_DFL if answer is None else answer)

    def stop_for(self, alarm: str) -> None:
        """Asks for the end of the step at hand, for an alarm of that kind."""
        self.after_step, self.alarm = True, f"stopped by the alarm {alarm}"

    def is_told(self) -> bool:
        """Whether any process was told to end."""
        self._raise_swallowed()
        return any(self._job.gather_processes(self.after_step))

    def give_up(self) -> None:
        """Ends the step at hand before it changes the weights, on all processes, if one of them was told to."""
        self._raise_swallowed()
        if any(self._job.gather_processes(self.at_once)):
            self.at_once = True
            raise Terminated

    def give_up_alone(self, samples: Sequence[Sample]) -> None:
        """The same between the portions of a rollout, which several processes do not reach together."""
        if self._job.num_processes == 1 and self.at_once:
            raise Terminated

    def _raise_swallowed(self) -> None:
        """Raises the second Ctrl-C again where a reward that was running swallowed it."""
        if self._must_end:
            raise KeyboardInterrupt

    def _on_interrupt(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        if self._interrupted_s is not None and now - self._interrupted_s > BOUNCE_S:
            self._must_end = True
            raise KeyboardInterrupt
        self._interrupted_s = now if self._interrupted_s is None else self._interrupted_s
        self.after_step = True

    def _on_terminate(self, number: int, frame: Any) -> None:
        self.after_step = self.at_once = True
