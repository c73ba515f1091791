"""Learning: all optimiser updates that a step's rows are good for.

Axes: B rows, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from mmgrpo.maths.aggregates import Totals, count
from mmgrpo.maths.objectives import Objective
from mmgrpo.policy import Policy
from mmgrpo.run.processes import Job
from mmgrpo.train.credit import Batch
from mmgrpo.train.learner import Gradient, accumulate_gradient, measured, nonfinite_rows
from mmgrpo.train.optimizer import Applied, GuardedOptimizer
from mmgrpo.types import Rollout
from mmgrpo.values import of_view


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """One optimiser update.

    Attributes:
        number: of the step's updates, from 0.
        gradient: what this process's pass left behind.
        totals: what the loss was a mean over, of the whole job.
        applied: what became of the gradient.
        odd_rows: where it was not finite, this process's rows whose own gradient is not.
    """

    number: int
    gradient: Gradient
    totals: Totals
    applied: Applied
    odd_rows: Sequence[int]


def learn(
    policy: Policy,
    batch: Batch,
    objective: Objective,
    optimizer: GuardedOptimizer,
    *,
    epochs: int,
    minibatches: int,
    in_turn: bool = False,
    job: Job,
    before_apply: Callable[[], None] = lambda: None,
    beside: Callable[[int, Sequence[int]], Gradient] | None = None,
) -> Iterator[Update]:
    """Updates the weights, once per item: ``epochs`` passes over the rows, each in ``minibatches`` of whole groups.

    Args:
        policy: what is trained.
        batch: what it learns from.
        objective: the loss.
        optimizer: over its trainable parameters.
        epochs: passes.
        minibatches: updates per pass.
        in_turn: whether a pass trains one segment of each row, the one of its own number, and not all.
        job: the processes; each takes part in every update, with whatever rows it has.
        before_apply: called before the weights move.
        beside: adds further gradient, given the update's number and this process's rows (``Auxiliaries.beside``).

    Yields:
        Update: what was done, update by update.
    """
    rollout = _with_still_views(policy, batch, objective)
    spent = rollout.num_forwards - batch.rollout.num_forwards
    place_B = _places(rollout.prompt_index_B, batch.chosen_B, job)
    for number in range(epochs * minibatches):
        epoch, part = divmod(number, minibatches)
        rows = ((place_B + epoch) % minibatches == part).nonzero().flatten().tolist()
        group_B = rollout.prompt_index_B[rows]
        taken = rollout.keep(rollout.segment_BT % epochs == epoch) if in_turn else rollout
        totals = job.total(count(taken.mask_BT[rows], batch.zero_B[rows], group_B))
        taught = policy, taken, batch.advantage_BT, objective
        accumulate = partial(accumulate_gradient, *taught, totals=totals, reward_B=batch.reward_B, views=batch.views)
        optimizer.clear()
        gradient = accumulate(rows=rows, gather=job.gather)
        gradient, spent = replace(gradient, num_forwards=gradient.num_forwards + spent), 0
        gradient = gradient if beside is None else gradient.beside(beside(number, rows))
        before_apply()
        applied = optimizer.apply()
        odd = nonfinite_rows(policy, rows, accumulate) if applied.skipped else []
        rollout = rollout if applied.skipped else rollout.aged()
        yield Update(number=number, gradient=gradient, totals=totals, applied=applied, odd_rows=odd)


def _with_still_views(policy: Policy, batch: Batch, objective: Objective) -> Rollout:
    """The rollout with what views say whose weights the updates do not move: they are looked at once."""
    asked = {*map(of_view, objective.views), *objective.values}
    of_views = [value for value in sorted(asked, key=str) if value.view in batch.views]
    still = [value for value in of_views if not batch.views[str(value.view)].view.moves]
    return measured(policy, batch.rollout, still, batch.views)


def _places(group_B: Tensor, chosen_B: Tensor, job: Job) -> Tensor:
    """The place of each row's group among those of the whole job that a planner keeps, so that minibatches are even."""
    known = torch.cat(job.gather(group_B[chosen_B])).unique()
    return torch.searchsorted(known, group_B)
