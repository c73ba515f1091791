"""Supervised training before GRPO, in the same run and under the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from mmgrpo.config import WarmupConfig
from mmgrpo.config.registry import resolve
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Policy, Supervised
from mmgrpo.run.processes import Job
from mmgrpo.run.progress import WarmupStep
from mmgrpo.train.build import build_optimizer, build_schedule
from mmgrpo.train.optimizer import GuardedOptimizer
from mmgrpo.types import Example, SupervisedLoss

WARMUP_SEED = 2  # keeps the warm-up's random numbers apart from the rollouts'


class Warmup:
    """The supervised stage; ``run`` goes on from wherever its state says.

    Attributes:
        whole_step: how many steps the weights have seen; None in the midst of an update.
    """

    def __init__(
        self, policy: Policy, config: WarmupConfig, *, seed: int, job: Job, max_skipped_frac: float = 0.25
    ) -> None:
        """Prepares the stage.

        Args:
            policy: must also be ``Supervised``.
            config: the ``warmup:`` section.
            seed: the run's seed.
            job: the processes; each takes its part of every batch.
            max_skipped_frac: the run's ``max_skipped_update_frac``.
        """
        if not isinstance(policy, Supervised):
            raise ConfigError(f"warmup: {type(policy).__name__} cannot be taught from examples; remove the section")
        self.policy = policy
        self.config = config
        self.seed = seed
        self.job = job
        self.whole_step: int | None = 0
        self.examples = load_examples(config)
        optimizer = build_optimizer(
            policy.trainable, lr=config.lr, betas=config.betas, eps=1e-8, weight_decay=config.weight_decay
        )
        schedule = build_schedule(
            optimizer, name="cosine", num_updates=config.steps, num_warmup=config.lr_warmup_steps, floor=config.lr_floor
        )
        self.optimizer = GuardedOptimizer(
            policy.trainable,
            optimizer,
            schedule,
            job=job,
            max_grad_norm=config.max_grad_norm,
            max_skipped_frac=max_skipped_frac,
        )

    def run(self, start: int, should_stop: Callable[[], bool]) -> Iterator[WarmupStep]:
        """Trains from step ``start`` on, one update per item, until done or told to stop.

        A mean is over what the whole job's examples hold, tokens or pictures, however they lie on the processes.

        Raises NonFiniteError if too many of the last updates had to be skipped.
        """
        supervised = self.policy
        assert isinstance(supervised, Supervised)
        for step in range(start, self.config.steps):
            if should_stop():
                return
            share = self.job.shard(self._batch(step), "warmup.batch_size")
            seeds = [derive_seed(self.seed, WARMUP_SEED, step, index) for index, _ in share]
            self.optimizer.clear()
            loss = supervised.supervised_loss([example for _, example in share], seeds=seeds)
            if not isinstance(loss, SupervisedLoss):
                raise PolicyError(
                    f"{type(supervised).__name__}.supervised_loss gave a {type(loss).__name__}; "
                    "return mmgrpo.SupervisedLoss(mean=..., num_terms=...)"
                )
            parts = self.job.gather((float(loss.mean.detach()), loss.num_terms))
            num_terms = sum(terms for _, terms in parts)
            (loss.mean * (loss.num_terms / num_terms)).backward()
            self.whole_step = None
            applied = self.optimizer.apply()
            self.whole_step = step + 1
            self.optimizer.require_progress()
            yield WarmupStep(step + 1, sum(mean * terms for mean, terms in parts) / num_terms, applied.lr)

    def state_dict(self) -> dict[str, Any]:
        """Optimiser and schedule."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.optimizer.load_state_dict(state)

    def _batch(self, step: int) -> list[Example]:
        draw = Random(derive_seed(self.seed, WARMUP_SEED, step))
        return [self.examples[draw.randrange(len(self.examples))] for _ in range(self.config.batch_size)]


def load_examples(config: WarmupConfig) -> Sequence[Example]:
    """The examples that ``warmup.examples`` names.

    Raises ConfigError if it names nothing or does not take these arguments, DataError if what it returned are not
    ``Example`` rows.
    """
    source = resolve("examples", config.examples.name)
    try:
        examples = list(source(**config.examples.numbers))
    except TypeError as error:
        raise ConfigError(f"warmup.examples: {config.examples.name}: {error}") from error
    if not examples or not all(isinstance(example, Example) for example in examples):
        raise DataError(f"warmup.examples: {config.examples.name} must return mmgrpo.types.Example rows, at least one")
    return examples
