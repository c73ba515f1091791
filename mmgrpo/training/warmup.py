"""Supervised training before GRPO, in the same run and under the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mmgrpo.config import RunConfig, WarmupConfig
from mmgrpo.distributed.job import Job
from mmgrpo.policy import Policy
from mmgrpo.runs.progress import WarmupStep
from mmgrpo.training.build import build_optimizer
from mmgrpo.training.supervision import ExampleBatches, accumulate_supervised, load_examples, require_supervised


def warmup_of(policy: Policy, config: RunConfig, job: Job) -> Warmup | None:
    """The stage that a run begins with; None without the section ``warmup``."""
    if config.warmup is None:
        return None
    return Warmup(
        policy, config.warmup, seed=config.seed, job=job, max_skipped_frac=config.runtime.max_skipped_update_frac
    )


class Warmup:
    """The supervised stage; ``run`` continues from its state.

    Attributes:
        whole_step: number of complete steps of the weights; None within an update.
    """

    def __init__(
        self, policy: Policy, config: WarmupConfig, *, seed: int, job: Job, max_skipped_frac: float = 0.25
    ) -> None:
        """Prepares the stage.

        Args:
            policy: must also be ``SupportsSupervisedLoss``.
            config: the ``warmup:`` section.
            seed: the run's seed.
            job: the processes; each takes its part of every batch.
            max_skipped_frac: the run's ``runtime.max_skipped_update_frac``.
        """
        self.policy = policy
        self.config = config
        self.job = job
        self.whole_step: int | None = 0
        self._supervised = require_supervised(policy, "warmup")
        self._batches = ExampleBatches(load_examples(config.examples, "warmup.examples"), config.batch_size, seed)
        self.optimizer = build_optimizer(
            policy.trainable,
            config.optimizer,
            num_updates=config.steps,
            max_skipped_frac=max_skipped_frac,
            job=job,
        )

    def run(self, start: int, should_stop: Callable[[], bool]) -> Iterator[WarmupStep]:
        """Trains from step ``start`` on, one update per item, until done or stopped.

        A mean is over the terms of all examples, tokens or images, for any distribution over processes.

        Raises NonFiniteError if too many of the last updates had to be skipped.
        """
        for step in range(start, self.config.steps):
            if should_stop():
                return
            batch = self._batches.at(step, self.job, "warmup.batch_size")
            self.optimizer.clear()
            result = accumulate_supervised(self._supervised, batch, parameters=self.optimizer.parameters, job=self.job)
            self.whole_step = None
            applied = self.optimizer.apply()
            self.whole_step = step + 1
            self.optimizer.require_progress()
            yield WarmupStep(step + 1, result.mean, applied.lr)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and schedule."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.optimizer.load_state_dict(state)
