"""Supervised learning: examples, the gradient of the loss on them, and the warm-up before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, final

from torch import nn

from mmgrpo.config import Named, RunConfig, WarmupConfig
from mmgrpo.config.registry import resolve
from mmgrpo.differentiating import backward
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.maths.diagnostics import ValueSum
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.policy import Policy, SupportsSupervisedLoss
from mmgrpo.runs.progress import WarmupStep
from mmgrpo.training.build import build_optimizer
from mmgrpo.training.loss_scaler import LossScaler
from mmgrpo.types import Example, SupervisedLoss

EXAMPLES_SEED = 2  # separates the examples' random numbers from the rollouts'


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedBatch:
    """One batch of examples.

    Attributes:
        examples: this process's.
        seeds: one each, of the noise of the loss.
    """

    examples: Sequence[Example]
    seeds: Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedResult:
    """The result of a supervised pass.

    Attributes:
        mean: mean loss over the terms of all processes, or the weighted mean over their examples; 0 without examples.
        local_loss: this process's part of the scaled loss.
        local_sum: this process's part of the mean: terms, or the weights of its examples, and the sum over them.
    """

    mean: float
    local_loss: float
    local_sum: ValueSum


@final
@dataclass(frozen=True, slots=True)
class ExampleBatches:
    """Examples in batches; the n-th is a function of the seed.

    Attributes:
        examples: all examples.
        batch_size: over all processes.
        seed: the run's.
    """

    examples: Sequence[Example]
    batch_size: int
    seed: int

    def at(self, number: int, job: Job, key: str) -> SupervisedBatch:
        """This process's part of a batch. Raises ConfigError, naming ``key``, if the job cannot share it out."""
        random = Random(derive_seed(self.seed, EXAMPLES_SEED, number))
        batch = [self.examples[random.randrange(len(self.examples))] for _ in range(self.batch_size)]
        share = job.local_share(batch, key)
        return SupervisedBatch(
            examples=[example for _, example in share],
            seeds=[derive_seed(self.seed, EXAMPLES_SEED, number, index) for index, _ in share],
        )


def accumulate_supervised(
    policy: SupportsSupervisedLoss,
    batch: SupervisedBatch,
    *,
    parameters: Sequence[nn.Parameter],
    job: Job,
    scale: float = 1.0,
) -> SupervisedResult:
    """Adds the gradient of the mean over the job's examples to the trainable parameters' ``grad``.

    L = scale sum_i n_i l_i / sum_i n_i, l_i the mean loss of example i over its n_i terms, tokens or images.

    Args:
        policy: the policy; it gets this process's examples together.
        batch: of this process.
        parameters: the trainable ones.
        job: the processes, each of which takes part.
        scale: of the loss.

    Returns:
        The result.

    Raises:
        PolicyError: the policy's loss is no ``SupervisedLoss``.
    """
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None

    def local_loss() -> ValueSum:
        loss = _loss(policy, batch.examples, batch.seeds)
        backward(loss.mean * (scale * loss.num_terms if job.size > 1 else scale))
        return ValueSum(loss.num_terms, float(loss.mean.detach()) * loss.num_terms)

    parts = job.run_on_all(local_loss)
    local_sum, total = parts[job.rank], sum(parts, start=ValueSum(0, 0.0))
    for parameter, earlier in zip(parameters, before, strict=True):
        if parameter.grad is not None and job.size > 1:
            parameter.grad /= total.count  # known once all have met, and no graph is held that long
        if earlier is not None:
            parameter.grad = earlier if parameter.grad is None else earlier + parameter.grad
    return SupervisedResult(
        mean=float(total.total / total.count),
        local_loss=float(scale * local_sum.total / total.count),
        local_sum=local_sum,
    )


def accumulate_weighted(
    policy: SupportsSupervisedLoss,
    batch: SupervisedBatch,
    weights: Sequence[float],
    *,
    num: int,
    job: Job,
    scale: float = 1.0,
) -> SupervisedResult:
    """Adds the gradient of weighted losses of examples to the trainable parameters' ``grad``.

    L = scale sum_i w_i l_i / num, l_i the mean loss of example i. No two graphs are held at a time.

    Args:
        policy: the policy; it gets one example at a time.
        batch: of this process; there may be nothing in it.
        weights: of its examples, above 0.
        num: number of all examples of the job, including those of weight 0.
        job: the processes, each of which takes part.
        scale: of the loss.

    Returns:
        The result.

    Raises:
        PolicyError: the policy's loss is no ``SupervisedLoss``.
    """

    def local_losses() -> ValueSum:
        total = 0.0
        for example, seed, weight in zip(batch.examples, batch.seeds, weights, strict=True):
            mean = _loss(policy, [example], [seed]).mean
            backward(mean * (scale * weight / num))
            total += weight * float(mean.detach())
        return ValueSum(sum(weights), total)

    parts = job.run_on_all(local_losses)
    local_sum, job_sum = parts[job.rank], sum(parts, start=ValueSum(0.0, 0.0))
    mean = float(job_sum.total / job_sum.count) if job_sum.count else 0.0
    return SupervisedResult(mean=mean, local_loss=float(scale * local_sum.total / num), local_sum=local_sum)


def _loss(policy: SupportsSupervisedLoss, examples: Sequence[Example], seeds: Sequence[int]) -> SupervisedLoss:
    loss = policy.supervised_loss(examples, seeds=seeds)
    if not isinstance(loss, SupervisedLoss):
        raise PolicyError(
            f"{type(policy).__name__}.supervised_loss gave a {type(loss).__name__}; "
            "return mmgrpo.SupervisedLoss(mean=..., num_terms=...)"
        )
    return loss


def require_supervised(policy: Policy, section: str) -> SupportsSupervisedLoss:
    """The policy, as one with a supervised loss. Raises ConfigError, naming the section, if it has none."""
    if not isinstance(policy, SupportsSupervisedLoss):
        raise ConfigError(f"{section}: {type(policy).__name__} has no supervised loss; remove the section")
    return policy


def load_examples(named: Named, key: str) -> Sequence[Example]:
    """The examples of a function, or of a registered name.

    Args:
        named: with its arguments.
        key: of the configuration, for messages.

    Returns:
        At least one.

    Raises:
        ConfigError: it names nothing or does not take these arguments.
        DataError: it returned other objects than ``Example`` rows.
    """
    source = resolve("examples", named.name)
    try:
        examples = list(source(**named.settings))
    except TypeError as error:
        raise ConfigError(f"{key}: {named.name}: {error}") from error
    if not examples or not all(isinstance(example, Example) for example in examples):
        raise DataError(f"{key}: {named.name} must return mmgrpo.types.Example rows, at least one")
    return examples


def warmup_of(policy: Policy, config: RunConfig, job: Job) -> Warmup | None:
    """The stage that a run begins with; None without the section ``update.warmup``."""
    if config.update.warmup is None:
        return None
    return Warmup(policy, config.update.warmup, seed=config.seed, job=job)


class Warmup:
    """The supervised stage; ``run`` continues from its state.

    Attributes:
        finished_step: number of complete steps of the weights; None within an update.
    """

    def __init__(self, policy: Policy, config: WarmupConfig, *, seed: int, job: Job) -> None:
        """Prepares the stage.

        Args:
            policy: must also be ``SupportsSupervisedLoss``.
            config: the section ``update.warmup``.
            seed: the run's seed.
            job: the processes; each takes its part of every batch.
        """
        self.policy = policy
        self.config = config
        self.job = job
        self.finished_step: int | None = 0
        self._supervised = require_supervised(policy, "warmup")
        self._batches = ExampleBatches(
            load_examples(config.examples, "update.warmup.examples"), config.batch_size, seed
        )
        self.optimizer = build_optimizer(
            policy.trainable,
            config.optimizer,
            num_updates=config.steps,
            job=job,
            scaler=LossScaler.of(policy),
        )

    def run(self, start: int, should_stop: Callable[[], bool]) -> Iterator[WarmupStep]:
        """Trains from step ``start`` on, one update per item, until done or stopped.

        A mean is over the terms of all examples, tokens or images, for any distribution over processes.

        Raises NonFiniteError if too many of the last updates had to be skipped.
        """
        for step in range(start, self.config.steps):
            if should_stop():
                return
            batch = self._batches.at(step, self.job, "update.warmup.batch_size")
            result = self._accumulate(batch)
            while self.optimizer.has_overflowed():
                result = self._accumulate(batch)
            self.finished_step = None
            applied = self.optimizer.apply()
            self.finished_step = step + 1
            self.optimizer.require_progress()
            yield WarmupStep(step + 1, result.mean, applied.lr)

    def _accumulate(self, batch: SupervisedBatch) -> SupervisedResult:
        self.optimizer.clear()
        with self.optimizer.accumulating():
            return accumulate_supervised(self._supervised, batch, parameters=self.optimizer.parameters, job=self.job)

    def state_dict(self) -> dict[str, Any]:
        """Optimizer and schedule."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores ``state_dict``."""
        self.optimizer.load_state_dict(state)
