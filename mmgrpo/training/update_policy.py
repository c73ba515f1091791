"""All optimizer updates of a step's rows.

Axes: B rows, T decisions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import final

import torch
from torch import Tensor

from mmgrpo.distributed.job import Job
from mmgrpo.maths.aggregates import Totals, count
from mmgrpo.maths.objectives import Objective
from mmgrpo.policy import Policy
from mmgrpo.system.out_of_memory import free_memory_of, is_out_of_memory
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.gradients import Gradient, accumulate_gradient, nonfinite_rows, with_values
from mmgrpo.training.optimizer import Applied, GuardedOptimizer
from mmgrpo.training.streaming import halve_slices, slice_limit
from mmgrpo.types import Rollout
from mmgrpo.values import OF_TWO_DISTRIBUTIONS, of_view

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMetrics:
    """One optimizer update.

    Attributes:
        number: of the step's updates, from 0.
        gradient: the result of this process's pass.
        totals: the counts of its rows in the loss's means, over all processes.
        applied: the outcome of the gradient.
        nonfinite_rows: where it was not finite, this process's rows whose own gradient is not.
        slice_limit: maximum rows of this process's slices since memory ran out; None: it did not.
    """

    number: int
    gradient: Gradient
    totals: Totals
    applied: Applied
    nonfinite_rows: Sequence[int]
    slice_limit: int | None = None


@final
class UpdatePlan:
    """The training data of a step for a policy, update by update."""

    def __init__(
        self,
        policy: Policy,
        advantages: Advantages,
        objective: Objective,
        *,
        job: Job,
        weight: float = 1.0,
        before_apply: Sequence[Callable[[], None]] = (),
        extra_gradient: Callable[[int, Sequence[int]], Gradient] | None = None,
    ) -> None:
        """Computes once the values that the updates do not change.

        Args:
            policy: the trained policy.
            advantages: its training data.
            objective: the loss.
            job: the processes; each takes part in every update, with any rows.
            weight: how much its gradient counts relative to those of other plans.
            before_apply: called before the weights move.
            extra_gradient: adds a gradient, called with the number of the update and this process's rows
                (``Auxiliaries.extra_gradient``).
        """
        self.job = job
        self.before_apply = before_apply
        self._policy, self._batch, self._objective = policy, advantages, objective
        self._weight, self._extra_gradient = weight, extra_gradient
        self._rollout = _with_still_views(policy, advantages, objective)
        self._spent = self._rollout.num_forwards - advantages.rollout.num_forwards
        self._group_index_B = _group_indices(advantages.rollout.prompt_index_B, advantages.chosen_B, job)
        self._number, self._rows, self._taken = 0, list[int](), self._rollout
        self._local_totals = Totals(num_samples=0, num_decisions=0)

    def begin(self, number: int, *, epochs: int, minibatches: int, cycle_masks: bool) -> Totals:
        """Takes the rows of an update; returns their counts in the loss's means, over all processes."""
        epoch, part = divmod(number, minibatches)
        rows = ((self._group_index_B + epoch) % minibatches == part).nonzero().flatten().tolist()
        rollout = self._rollout
        self._number, self._rows = number, rows
        self._taken = rollout.keep(rollout.segment_BT % epochs == epoch) if cycle_masks else rollout
        zero_B, group_B = self._batch.zero_B[rows], rollout.prompt_index_B[rows]
        self._local_totals = self.job.sum_totals(count(self._taken.mask_BT[rows], zero_B, group_B))
        return self._local_totals

    def accumulate(self, totals: Totals) -> Gradient:
        """Adds the gradient of the update's rows, and of auxiliary losses, to that of earlier tasks."""
        with _counted(self._policy, self._weight, self.job):
            gradient = self._added(totals)(rows=self._rows, gather=self.job.gather)
            gradient = replace(gradient, num_forwards=gradient.num_forwards + self._spent)
            return (
                gradient
                if self._extra_gradient is None
                else gradient.merge(self._extra_gradient(self._number, self._rows))
            )

    @property
    def can_repeat(self) -> bool:
        """Whether this process may repeat ``accumulate`` alone: no other process waits in it."""
        objective = self._objective
        waits = objective.selections or objective.modulations or self._extra_gradient is not None
        return self.job.num_processes == 1 or not (self.job.is_sharded or waits)

    def halve_slices(self) -> bool:
        """Bounds the rows of the next slices to half of those of the last one; False if that had one row."""
        has_changed = halve_slices(self._policy)
        if has_changed:
            logger.warning(
                "out of memory in the update: from now on it runs at most %s rows at a time; the gradient is the same, "
                "to rounding. Lower policy.update_batch or policy.update_tokens to start so",
                slice_limit(self._policy),
            )
        return has_changed

    def applied(self, gradient: Gradient, totals: Totals, applied: Applied) -> UpdateMetrics:
        """The result of the update; the rows age by one if the weights moved."""
        bad_rows = nonfinite_rows(self._policy, self._rows, self._added(totals), self.job) if applied.skipped else []
        self._rollout = self._rollout if applied.skipped else self._rollout.aged()
        self._spent = 0
        return UpdateMetrics(
            number=self._number,
            gradient=gradient,
            totals=self._local_totals,
            applied=applied,
            nonfinite_rows=bad_rows,
            slice_limit=slice_limit(self._policy),
        )

    def _added(self, totals: Totals) -> Callable[..., Gradient]:
        arguments, advantages = (self._policy, self._taken, self._batch.advantage_BT, self._objective), self._batch
        return partial(
            accumulate_gradient, *arguments, totals=totals, reward_B=advantages.reward_B, views=advantages.views
        )


def update_policy(
    policy: Policy,
    advantages: Advantages,
    objective: Objective,
    optimizer: GuardedOptimizer,
    *,
    epochs: int,
    minibatches: int,
    cycle_masks: bool = False,
    job: Job,
    before_apply: Sequence[Callable[[], None]] = (),
    extra_gradient: Callable[[int, Sequence[int]], Gradient] | None = None,
) -> Iterator[UpdateMetrics]:
    """Updates the weights, once per item: ``epochs`` passes over the rows, each in ``minibatches`` of complete groups.

    Args:
        policy: the trained policy.
        advantages: its training data.
        objective: the loss.
        optimizer: over its trainable parameters.
        epochs: passes.
        minibatches: updates per pass.
        cycle_masks: whether a pass trains one segment of each row, that of its number, and not all.
        job: the processes; each takes part in every update, with any rows.
        before_apply: called before the weights move.
        extra_gradient: adds a gradient, called with the number of the update and this process's rows
            (``Auxiliaries.extra_gradient``).

    Yields:
        UpdateMetrics: the metrics of each update, in order.
    """
    plan = UpdatePlan(policy, advantages, objective, job=job, before_apply=before_apply, extra_gradient=extra_gradient)
    passes = {"epochs": epochs, "minibatches": minibatches, "cycle_masks": cycle_masks}
    yield from (update for (update,) in update_jointly([plan], optimizer, **passes))


def update_jointly(
    plans: Sequence[UpdatePlan],
    optimizer: GuardedOptimizer,
    *,
    epochs: int,
    minibatches: int,
    cycle_masks: bool = False,
) -> Iterator[tuple[UpdateMetrics, ...]]:
    """The same of several lessons for one policy: the rows of all are one batch, each in its own loss.

    Means are over the rows of all, so that lessons of one objective are that of all their rows in one.

    Args:
        plans: of the same weights.
        optimizer: over them.
        epochs: as of ``update_policy``, of each lesson's rows.
        minibatches: likewise.
        cycle_masks: likewise.

    Yields:
        tuple[UpdateMetrics, ...]: the metrics of each update, one per lesson.
    """
    for number in range(epochs * minibatches):
        parts = [plan.begin(number, epochs=epochs, minibatches=minibatches, cycle_masks=cycle_masks) for plan in plans]
        totals = sum(parts[1:], start=parts[0])
        gradients = _accumulate(plans, totals, optimizer)
        while optimizer.has_overflowed():
            gradients = _accumulate(plans, totals, optimizer)
        for plan in plans:
            for call in plan.before_apply:
                call()
        applied = optimizer.apply()
        yield tuple(plan.applied(gradient, totals, applied) for plan, gradient in zip(plans, gradients, strict=True))
        optimizer.require_progress()


def _accumulate(plans: Sequence[UpdatePlan], totals: Totals, optimizer: GuardedOptimizer) -> list[Gradient]:
    """The gradients of plans; if memory runs out, again from the start in slices of half as many rows."""
    while True:
        optimizer.clear()
        try:
            with optimizer.accumulating():
                return [plan.accumulate(totals) for plan in plans]
        except Exception as error:
            if not is_out_of_memory(error) or not all(plan.can_repeat for plan in plans):
                raise
            free_memory_of(error)
            optimizer.clear()
            if not plans[0].halve_slices():  # plans are of one policy
                raise


@contextmanager
def _counted(policy: Policy, weight: float, job: Job) -> Iterator[None]:
    """Gradients that are added within it count so many times."""
    if weight == 1:
        yield
        return
    before = [parameter.grad for parameter in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    yield
    job.finish_sharded_calls()  # gradients of sharded weights still arrive while others have rows
    for parameter, before_grad in zip(policy.trainable, before, strict=True):
        added = None if parameter.grad is None else parameter.grad.mul_(weight)
        parameter.grad = added if before_grad is None else before_grad if added is None else before_grad.add_(added)


def _with_still_views(policy: Policy, advantages: Advantages, objective: Objective) -> Rollout:
    """The rollout with the values of views that the updates do not move: they are computed once."""
    single = {value for value in objective.values if value.name not in OF_TWO_DISTRIBUTIONS}
    requested = {of_view(str(value.view)) for value in single if value.view is not None} | single
    of_views = [value for value in sorted(requested, key=str) if value.view in advantages.views]
    still = [value for value in of_views if not advantages.views[str(value.view)].view.moves]
    return with_values(policy, advantages.rollout, still, advantages.views)


def _group_indices(group_B: Tensor, chosen_B: Tensor, job: Job) -> Tensor:
    """The index of each row's group among those of the job that a strategy keeps, so that minibatches are even."""
    groups = torch.cat(job.gather(group_B[chosen_B])).unique()
    return torch.searchsorted(groups, group_B)
