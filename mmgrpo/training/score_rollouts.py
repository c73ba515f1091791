"""Scoring: the rewards of the samples of all processes, and their weights at this step.

Axes: B rows of this process, N rows of all processes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.distributed.job import Job
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.types import Scores

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewards:
    """The scores of N samples, those of all processes in rank order.

    Attributes:
        scores: the raw scores.
        counting: as it counts at this step: clipped, gated, weighted.
        group_N: group of each sample.
        root_N: the group with the data row of each: its own, except for samples after the rows of others.
        keep_N: bool, the samples that are trained on and that groups are compared by.
        partial_N: bool, the samples that continue at the next step, which have no reward yet.
        local_rows: this process's rows.
        metrics: the changes of rewards from ``scores`` to ``counting``.
        after_N: in a task after another, the samples of that task that each row was sampled after.
    """

    scores: Scores
    counting: Scores
    group_N: Tensor
    root_N: Tensor
    keep_N: Tensor
    partial_N: Tensor
    local_rows: slice
    metrics: Mapping[str, float]
    after_N: Sequence[Sequence[tuple[int, int]]] = ()


def score_rollouts(
    rollouts: Rollouts, reward_functions: Sequence[NamedReward], *, step: int, job: Job, is_downstream: bool = False
) -> Rewards:
    """Waits for the rewards of every process.

    Args:
        rollouts: the rollouts; their rewards are already running.
        reward_functions: how each counts.
        step: counted from 0.
        job: the processes.
        is_downstream: whether the rows were sampled after those of another task.

    Returns:
        The rewards, the same on all processes except for ``local_rows``.

    Raises:
        RewardError: a reward failed on too many samples of any process.
    """
    scores = Scores.concat(job.run_on_leaders(rollouts.scored.collected))
    partial_B = torch.tensor([sample.is_partial for sample in rollouts.samples], dtype=torch.bool)
    groups, keep, partial = zip(*job.gather((rollouts.rollout.prompt_index_B, rollouts.keep_B, partial_B)), strict=True)
    group_N = torch.cat(groups)
    start = sum(len(group_B) for group_B in groups[: job.rank])
    if step == 0 and job.rank == 0 and not all(bool(partial_B.all()) for partial_B in partial):
        _tell_unapplied(scores)
    counting, metrics = shape_scores(scores, reward_functions, step)
    after_of_ranks = job.gather([sample.after for sample in rollouts.samples]) if is_downstream else []
    return Rewards(
        scores=scores,
        counting=counting,
        group_N=group_N,
        root_N=torch.tensor([rollouts.root_of.get(group, group) for group in group_N.tolist()]),
        keep_N=torch.cat(keep),
        partial_N=torch.cat(partial),
        local_rows=slice(start, start + len(rollouts.keep_B)),
        metrics=metrics,
        after_N=[after for of_rank in after_of_ranks for after in of_rank],
    )


def _tell_unapplied(scores: Scores) -> None:
    """Warns of rewards that scored no sample of the first step: usually their rows lack a reference."""
    for name, valid_B in zip(scores.names, scores.valid_BR.T, strict=True):
        if len(valid_B) and not valid_B.any() and not scores.failures.get(name):
            logger.warning(
                "reward %s applied to none of the %d samples of the first step: see that the rows have the columns "
                "that it reads (mmgrpo rewards NAME), or leave it out",
                name,
                len(valid_B),
            )
