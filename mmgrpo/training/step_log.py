"""What a task writes down of the updates of a step."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, final

from mmgrpo.distributed.job import Job
from mmgrpo.runs.alerts import step_summary
from mmgrpo.training.step import StepResult
from mmgrpo.training.update_policy import UpdateMetrics


@final
class StepLog:
    """The lines of a step's updates.

    Attributes:
        advantages: what is learnt from.
        scores: what the rewards said, of the whole job's samples.
        metrics: of the step, which each line has.
        num_updates: of the step.
        last: the last line.
        summary: the same, with the largest share of decisions that each mechanism changed in any of the step's updates.
    """

    def __init__(self, result: StepResult, *, num_updates: int) -> None:
        """Begins before the first update.

        Args:
            result: the step.
            num_updates: how many updates it has.
        """
        self.advantages = result.advantages
        self.scores = result.rewards.scores
        self.metrics = dict(result.metrics)
        self.num_updates = num_updates
        self.last: dict[str, Any] = dict(result.metrics)
        self.summary: dict[str, Any] = {}
        self._num_forwards = self.advantages.rollout.num_forwards
        self._num_samples = len(self.advantages.credit.keep_B)
        self._gap, self._clock = 0.0, time.perf_counter()

    def line(self, step: int, update: UpdateMetrics, metrics: Mapping[str, float], job: Job) -> dict[str, Any]:
        """The line of an update. A collective.

        ``count/forwards_per_sample`` are all forwards of the step so far, those of samples drawn for the strategy alone
        too, per sample that may be trained on.
        """
        self._num_forwards += update.gradient.num_forwards
        self._gap = self._gap if update.number else max(job.gather(update.gradient.max_gap))
        now = time.perf_counter()
        self.last = {
            "step": step,
            "update": update.number,
            **self.metrics,
            **metrics,
            "policy/on_policy_gap": self._gap,
            "count/samples": float(self._num_samples),
            "count/forwards_per_sample": sum(job.gather(self._num_forwards)) / self._num_samples,
            "time/update_s": now - self._clock,
        }
        self.summary = step_summary(self.summary, self.last)
        self._clock = now
        return self.last
