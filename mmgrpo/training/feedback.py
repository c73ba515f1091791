"""The input of estimators and filters from a step's rows and their scores.

Axes: B rows of this process, T decisions.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from torch import Tensor

from mmgrpo.distributed.job import Job
from mmgrpo.maths.feedback import Feedback, SampleColumn, job_feedback
from mmgrpo.maths.feedback import joined as joined_feedback
from mmgrpo.policy import Policy
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.span_scores import span_scores, turn_rewards
from mmgrpo.types import Rollout, Sample
from mmgrpo.values import Value


def feedback_of(
    policy: Policy,
    rollout: Rollout,
    rewards: Rewards,
    reward_B: Tensor,
    *,
    requested: Collection[Value],
    parts: Collection[str] = (),
    turns: bool = False,
    step: int,
    job: Job,
    remembered: Mapping[str, Tensor] | None = None,
) -> Feedback:
    """The input of estimators and filters for this process's rows. One collective, and those that estimators request.

    Args:
        policy: the policy that sampled the rows.
        rollout: its mask keeps the rows that take part; it has the requested values.
        rewards: on the rows of all processes.
        reward_B: the combined reward of each row.
        requested: values of decisions.
        parts: rewards with requested scores of parts.
        turns: whether the turns of conversations are requested.
        step: of the run, from 0.
        job: the processes.
        remembered: columns of the memory, of the samples of all processes.

    Returns:
        The feedback.
    """
    local_rows = rewards.local_rows
    valid_B = rewards.counting.scored_B[local_rows] & rewards.keep_N[local_rows]
    values = {value: rollout.values[value] for value in sorted(requested, key=str)}
    local_feedback = job_feedback(
        reward_B, valid_B, rollout.prompt_index_B, rollout.mask_BT, rollout.old_logprob_BT, values
    )
    scores = rewards.counting
    return Feedback(
        reward_B=reward_B,
        valid_B=valid_B,
        group_B=rollout.prompt_index_B,
        mask_BT=rollout.mask_BT,
        segment_BT=rollout.segment_BT,
        state_BT=rollout.state_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        finished_B=torch.tensor([sample.finished for sample in rollout.samples]),
        job=joined_feedback(job.gather(local_feedback), job.rank),
        std_BT=None if rollout.noise is None else rollout.noise.std_BT,
        token_BT=rollout.token_BT,
        values=values,
        rewards={
            name: SampleColumn(value_B=scores.value_BR[local_rows, r].double(), valid_B=scores.valid_BR[local_rows, r])
            for r, name in enumerate(scores.names)
        },
        columns=_columns(rollout.samples),
        scoped={name: span_scores(policy, rollout, rewards, name) for name in sorted(parts)},
        origin_B=rollout.origin_B,
        sampled_by_BT=rollout.sampled_by_BT,
        after_B=_after(rollout.samples),
        step=step,
        remembered=remembered or {},
        exchanges=turn_rewards(rollout) if turns else None,
        summed=lambda tensor: torch.stack(job.gather(tensor)).sum(0),
    )


def _after(samples: Sequence[Sample]) -> Tensor | None:
    """(B,) the row with the first text in the prompt of each, -1 for none on this process; None if no prompt has such a
    text."""
    if not any(sample.after for sample in samples):
        return None
    row_of = {(sample.group, sample.member): row for row, sample in enumerate(samples)}
    return torch.tensor([row_of.get(sample.after[0], -1) if sample.after else -1 for sample in samples])


def _columns(samples: Sequence[Sample]) -> dict[str, Tensor]:
    """The columns of the data rows that hold a number for every sample."""
    rows = [sample.prompt.columns for sample in samples]
    names = [
        name
        for name in rows[0]
        if all(isinstance(row.get(name), int | float) and not isinstance(row[name], bool) for row in rows)
    ]
    return {name: torch.tensor([float(row[name]) for row in rows], dtype=torch.float64) for name in names}
