"""Requests to end a run: Ctrl-C, and SIGTERM, SIGUSR1 or SIGUSR2 from a scheduler."""

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
"""Slurm pre-empts with the first, and warns with the one that ``--signal`` names; submitit uses the last."""

BOUNCE_S = 1.0  # a launcher forwards the Ctrl-C that the terminal has sent to its processes already


class Terminated(BaseException):
    """The current step is abandoned: the weights are still those of the previous step."""


@final
class StopRequests:
    """The stop requests received so far; the run checks them where it can end.

    Attributes:
        after_step: the run ends after the current step.
        at_once: the run abandons the current step as soon as the weights are those of a complete step.
        alert_status: status of a run that an alert ends; empty without such an alert.
    """

    def __init__(self, job: Job) -> None:
        """No request yet, on any process of the job."""
        self._job = job
        self.after_step = False
        self.at_once = False
        self.alert_status = ""
        self._interrupted_s: float | None = None
        self._must_end = False

    @property
    def status(self) -> str:
        """Status of a run that a signal ended."""
        return "terminated" if self.at_once else "interrupted"

    @contextmanager
    def handle_signals(self) -> Iterator[None]:
        """Context in which the first Ctrl-C requests the end of the step, the second raises, and the others abandon it.

        Raises KeyboardInterrupt if a Ctrl-C was swallowed before it.
        """
        interrupts.require_none()
        previous_handlers: dict[int, Any] = {}
        try:
            for number in (signal.SIGINT, *TERMINATING):
                handler = self._on_interrupt if number == signal.SIGINT else self._on_terminate
                previous_handlers[number] = signal.signal(number, handler)
        except ValueError:  # not in the main thread, which alone may set handlers
            pass
        try:
            yield
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def stop_after_alert(self, kind: str) -> None:
        """Requests the end of the current step because of an alert of this kind."""
        self.after_step, self.alert_status = True, f"stopped by the alert {kind}"

    def is_stopping(self) -> bool:
        """Whether any process received a request; a collective."""
        self._raise_swallowed()
        return any(self._job.gather_processes(self.after_step))

    def raise_if_terminated(self) -> None:
        """Raises Terminated on all processes if one has to abandon the step; called before the weights change."""
        self._raise_swallowed()
        if any(self._job.gather_processes(self.at_once)):
            self.at_once = True
            raise Terminated

    def raise_if_terminated_alone(self, samples: Sequence[Sample]) -> None:
        """Does the same between the batches of a rollout, if the job has one process."""
        if self._job.num_processes == 1 and self.at_once:
            raise Terminated

    def _raise_swallowed(self) -> None:
        """Raises the second Ctrl-C again if a running reward swallowed it."""
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
