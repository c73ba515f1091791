"""From the advantage of each sample to that of each decision: the estimators, then the filters, in their order.

Axes: B rows of this process, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from mmgrpo.algorithm import AdvantageChain
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.explain.advantage_inputs import without_turn_rewards
from mmgrpo.maths.changes import advantages_changed, changed_count, changed_fracs
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.maths.feedback import Feedback, JobFeedback
from mmgrpo.policy import Policy
from mmgrpo.training.feedback import feedback_of
from mmgrpo.training.gradients import with_values
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.views import ViewRows
from mmgrpo.types import Rollout
from mmgrpo.values import seen_in


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionAdvantages:
    """The advantages after the estimators, and the decisions that the filters keep.

    Attributes:
        rollout: its mask keeps what is trained on.
        advantage_BT: float32 advantage of each decision.
        zero_std_frac: share of the job's groups whose trained decisions all have the advantage 0 after the estimators;
            None without estimators.
        metrics: means of the values that were read, and the share of the decisions that each mechanism changed.
    """

    rollout: Rollout
    advantage_BT: Tensor
    zero_std_frac: float | None
    metrics: Mapping[str, float]


def decision_advantages(
    policy: Policy,
    rollout: Rollout,
    advantage_BT: Tensor,
    rewards: Rewards,
    chain: AdvantageChain,
    *,
    reward_B: Tensor,
    step: int,
    job: Job,
    remembered: Callable[[str], Tensor] | None,
    views: Mapping[str, ViewRows],
) -> DecisionAdvantages:
    """The advantage of each decision after all estimators, and the rows that all filters keep. A collective.

    Args:
        policy: what sampled the rows, its weights still the same.
        rollout: this process's rows.
        advantage_BT: float32, the advantage of each row at all of its decisions.
        rewards: the rewards of the rows of all processes.
        chain: the estimators and filters.
        reward_B: combined reward of each row.
        step: of the run, from 0.
        job: the processes.
        remembered: columns of the memory before the step, of the job's samples.
        views: auxiliary forward passes.

    Returns:
        The credit of each decision.

    Raises:
        ConfigError: an estimator reads the memory, and there is none; or it reads the rewards of turns, and at the
            first step there are exchanges that came to their end, and no turn has one.
    """
    config, estimators, filters = chain.config, chain.estimators, chain.filters
    values = set(chain.values)
    rollout = with_values(policy, rollout, sorted(values, key=str), views)
    values |= {seen_in(str(value.view)) for value in values if value.view in views}
    columns = {column.name for mechanism in estimators for column in mechanism.memory}
    if columns and remembered is None:
        raise ConfigError("an estimator reads the memory, and estimate() was not given what is remembered")
    feedback = feedback_of(
        policy,
        rollout,
        rewards,
        reward_B,
        requested=values,
        parts=chain.span_rewards,
        turns=any(mechanism.turns for mechanism in estimators),
        step=step,
        job=job,
        remembered={name: remembered(name) for name in sorted(columns)} if remembered else {},
    )
    readers = [
        named.name for named, mechanism in zip(config.estimators, estimators, strict=True) if mechanism.turn_rewards
    ]
    if readers and step == 0:
        _require_turn_rewards(feedback, readers, job)
    labels = chain.labels
    changes: dict[str, ValueSum] = {}
    for label, estimator in zip(labels, estimators, strict=False):
        before_BT, advantage_BT = advantage_BT, estimator.assign(feedback, advantage_BT).float()
        changes[f"credit/{label}"] = advantages_changed(before_BT, advantage_BT, rollout.mask_BT)
    zero_std_frac = _zero_frac(rollout, advantage_BT, job) if estimators else None
    for label, mechanism in zip(labels[len(estimators) :], filters, strict=True):
        keep_BT = mechanism.keep(feedback, advantage_BT)
        keep_BT = keep_BT[:, None] if keep_BT.ndim == 1 else keep_BT
        changes[f"credit/{label}"] = changed_count(~keep_BT, rollout.mask_BT)
        advantage_BT = advantage_BT.where(keep_BT, 0.0)
        rollout = rollout if config.filtered_samples == "mask" else rollout.keep(keep_BT)
    job_changes = job.merge_diagnostics(Diagnostics(change_sums=changes)).change_sums
    metrics = _means(feedback.job) | changed_fracs(job_changes)
    return DecisionAdvantages(rollout=rollout, advantage_BT=advantage_BT, zero_std_frac=zero_std_frac, metrics=metrics)


def _require_turn_rewards(feedback: Feedback, readers: Sequence[str], job: Job) -> None:
    turns = feedback.turns
    num_rewards, num_ended = (
        int(turns.given.valid_BS.sum()),
        int((feedback.finished_B & (turns.given.scope_BT >= 0).any(1)).sum()),
    )
    totals = job.gather((num_rewards, num_ended))
    if sum(ended for _, ended in totals) and not sum(rewards for rewards, _ in totals):
        reason = (
            f"of {sum(ended for _, ended in totals)} exchanges that came to their end in the first step none has any"
        )
        raise ConfigError(without_turn_rewards(f"advantage.estimators: {', '.join(readers)}", reason))


def _means(job: JobFeedback) -> dict[str, float]:
    """What was measured of the decisions, each sample counting alike."""
    known_N = job.length_N > 0
    return {
        f"decisions/{value.name}_mean": float(mean_N[known_N].mean())
        for value, mean_N in job.value_mean.items()
        if value.view is None and bool(known_N.any())
    }


def _zero_frac(rollout: Rollout, advantage_BT: Tensor, job: Job) -> float:
    """The share of the whole job's groups whose trained decisions all have the advantage 0."""
    teaches_B = ((advantage_BT != 0) & rollout.mask_BT).any(1)
    group_B = rollout.prompt_index_B
    counts = job.gather((len(group_B.unique()), len(group_B[teaches_B].unique())))
    return 1 - sum(teaching for _, teaching in counts) / sum(groups for groups, _ in counts)
