"""From rewards to advantages: of each sample by its group, then of each decision by the estimators and filters.

Axes: B rows of this process, N samples of the job, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmgrpo.algorithm import AdvantageChain, Algorithm
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.explain.advantage_inputs import without_turn_rewards
from mmgrpo.maths.advantages import clamp_advantage
from mmgrpo.maths.changes import advantages_changed, changed_count, changed_fracs
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.maths.feedback import Feedback, JobFeedback
from mmgrpo.maths.group_stats import grouped
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.feedback import feedback_of, has_span_scores
from mmgrpo.training.gradients import with_values
from mmgrpo.training.rollout_rounds import CombinedRewards, Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.views import View, ViewRows, Views
from mmgrpo.types import Rollout, Scores, Source
from mmgrpo.values import from_reference, mask_of_view


@dataclass(frozen=True, slots=True)
class SampleAdvantages:
    """The advantages of the samples of the job.

    Attributes:
        advantage_B: float32; 0 where the sample is not trained on.
        keep_B: bool, whether the sample is trained on and counts: whether any reward applied to it, and with
            ``zero_variance_groups: drop``, whether its group has an advantage; or an estimator reads a reward of its
            parts.
        zero_std_frac: share of the groups with all advantages 0; with estimators,
            those of the decisions after them.
        total_B: float64, the combined rewards, where any applied: those that were compared, or their weighted sum if
            rewards are normalized first.
        scored_B: bool, whether any reward of a weight other than 0 applied to the sample.
    """

    advantage_B: Tensor
    keep_B: Tensor
    zero_std_frac: float
    total_B: Tensor
    scored_B: Tensor


def combined_reward(scores: Scores, group_B: Tensor, chain: AdvantageChain, penalty_B: Tensor | None = None) -> Tensor:
    """The combined reward of each sample within its group, float64.

    Args:
        scores: of complete groups.
        group_B: group of each sample.
        chain: how rewards are combined; where each reward is normalized first, the weighted sum is returned.
        penalty_B: is subtracted.

    Returns:
        (B,) rewards.
    """
    groups = grouped(group_B)
    reward_RPG, valid_RPG = groups.matrix(scores.value_BR.T).double(), groups.valid(scores.valid_BR.T)
    total_B = groups.rows(chain.combine_for_report(reward_RPG, scores.weight_R.double(), valid_RPG))
    return total_B if penalty_B is None else total_B - penalty_B


def combine_rewards(
    scores: Scores, group_B: Tensor, *, reward_functions: Sequence[NamedReward], chain: AdvantageChain, step: int
) -> CombinedRewards:
    """The combined scores of a round at a step, for strategies."""
    counting, _ = shape_scores(scores, reward_functions, step)
    return CombinedRewards(combined_reward(counting, group_B, chain), counting.scored_B)


def group_advantages(
    scores: Scores,
    group_B: Tensor,
    chain: AdvantageChain,
    divergence_B: Tensor | None = None,
    keep_B: Tensor | None = None,
) -> SampleAdvantages:
    """Group-relative advantages of complete groups, of any sizes.

    Args:
        scores: of all processes.
        group_B: group of each sample.
        chain: how rewards are combined and scaled.
        divergence_B: from the reference, summed over each sample's decisions; kl_beta times it is subtracted from the
            combined rewards, after any reward was normalized, so that it keeps its size (RLOO, arXiv:2402.14740).
        keep_B: bool, the samples that groups are compared by; the others earn nothing. None: all.

    Returns:
        The advantages, float32; they are formed in float64, where no finite float32 reward overflows.
    """
    config, groups = chain.config, grouped(group_B)
    scored_B = scores.scored_B if keep_B is None else scores.scored_B & keep_B
    valid_BR = scores.valid_BR if keep_B is None else scores.valid_BR & keep_B[:, None]
    reward_RPG, valid_RPG = groups.matrix(scores.value_BR.T).double(), groups.valid(valid_BR.T)
    weight_R = scores.weight_R.double()
    valid_PG = groups.matrix(scored_B) & groups.present_PG
    penalty_B = torch.zeros(len(group_B), dtype=torch.float64)
    if divergence_B is not None:
        penalty_B = config.kl.beta * divergence_B.double().where(scored_B, 0.0)
    penalty_PG = groups.matrix(penalty_B).where(groups.present_PG, 0.0)
    if chain.scales_rewards:
        part_RPG = valid_RPG & (weight_R != 0)[:, None, None]
        advantage_PG = chain.scale(reward_RPG, weight_R, part_RPG, penalty_PG)
    else:
        reward_PG = chain.combine(reward_RPG, weight_R, valid_RPG) - penalty_PG
        advantage_PG = chain.scale(reward_PG, valid_PG)
    if config.clamp is not None:
        advantage_PG = clamp_advantage(advantage_PG, limit=config.clamp)
    dead_P = ((advantage_PG == 0) | ~groups.present_PG).all(1)
    trains_B = scored_B
    if config.zero_variance_groups == "drop":
        trains_B = trains_B & ~groups.rows(dead_P[:, None].expand_as(advantage_PG))
    return SampleAdvantages(
        groups.rows(advantage_PG).float(),
        trains_B,
        float(dead_P.float().mean()),
        combined_reward(scores, group_B, chain, penalty_B),
        scored_B=scores.scored_B,
    )


def without_truncated(rollout: Rollout, truncated: str) -> tuple[Rollout, Tensor]:
    """Leaves out samples that were cut off by their length limit.

    Args:
        rollout: its mask is True for trained decisions.
        truncated: ``objective.truncated``: keep, zero or drop.

    Returns:
        The rollout without them, and bool (B,): the samples that count as zeros in means over samples although none of
        their decisions is trained on.
    """
    truncated_B = torch.tensor([sample.is_truncated for sample in rollout.samples])
    if truncated == "keep":
        return rollout, torch.zeros_like(truncated_B)
    zero_B = truncated_B & rollout.mask_BT.any(1) if truncated == "zero" else torch.zeros_like(truncated_B)
    return rollout.keep(~truncated_B[:, None]), zero_B


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """The advantage of every decision of this process's rows, and that of every sample of the job.

    Attributes:
        rollout: its mask keeps the decisions that train; it has the values that were measured.
        advantage_BT: float32 advantage of each decision.
        reward_B: float64 combined reward of each row.
        zero_B: bool, rows that count as zeros in means over samples although none of their decisions trains.
        chosen_B: bool, the rows that the strategy keeps; groups without any are no part of a minibatch.
        local_rows: this process's rows among the samples of the job.
        advantage_N: float32 advantage of each sample before any estimator.
        keep_N: bool, the samples that train, as ``SampleAdvantages.keep_B``.
        reward_N: float64 combined reward of each sample.
        scored_N: bool, whether any reward of a weight other than 0 applied to the sample.
        zero_std_frac: fraction of the groups without any advantage other than 0; with estimators, after them.
        divergence_N: divergence of each sample from the reference, where it is subtracted from the rewards.
        views: the rows in the auxiliary forward passes of the run.
        metrics: means over the samples of the values that estimators and filters read.
    """

    rollout: Rollout
    advantage_BT: Tensor
    reward_B: Tensor
    zero_B: Tensor
    chosen_B: Tensor
    local_rows: slice
    advantage_N: Tensor
    keep_N: Tensor
    reward_N: Tensor
    scored_N: Tensor
    zero_std_frac: float
    divergence_N: Tensor | None = None
    views: Mapping[str, ViewRows] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def compute_advantages(
    policy: Policy,
    rollouts: Rollouts,
    rewards: Rewards,
    algorithm: Algorithm,
    *,
    step: int = 0,
    job: Job,
    memory_column: Callable[[str], Tensor] | None = None,
    views: Mapping[str, View] | None = None,
) -> Advantages:
    """Advantages of every decision, from the scores of the samples of all processes.

    Further values of the decisions are measured once, under the behavior policy.

    Args:
        policy: the policy that sampled the rows, with unchanged weights.
        rollouts: this process's rows.
        rewards: on the rows of all processes.
        algorithm: with the chain from rewards to the advantage of each decision, the objective, and the handling of
            samples cut off by their length limit.
        step: of the run, from 0.
        job: the processes.
        memory_column: columns of the memory before the step, of the samples of the job; for estimators that read it.
        views: those of the run.

    Returns:
        The training data.
    """
    chain, rollout, divergence_N = algorithm.advantages, rollouts.rollout, None
    config = chain.config
    if config.kl.divergence is not None:
        divergence = from_reference(config.kl.divergence)
        rollout = with_values(policy, rollout, [divergence])
        divergence_N = torch.cat(job.gather(rollout.values[divergence].sum(1).cpu()))
    compared_N = compared_groups(rewards, rollout, chain, job)
    samples = group_advantages(rewards.counting, compared_N, chain, divergence_N, rewards.keep_N)
    span_scored_N = has_span_scores(rewards.counting, chain.span_rewards)
    if any(part.unscored for part in (*chain.estimators, *algorithm.objective.terms)):
        span_scored_N = torch.ones_like(span_scored_N)
    if any(estimator.partial for estimator in chain.estimators):
        span_scored_N = span_scored_N | rewards.partial_N
    keep_N, local_rows = samples.keep_B | (span_scored_N & rewards.keep_N), rewards.local_rows
    reward_B, scored_B = samples.total_B[local_rows], samples.scored_B[local_rows]
    advantages = Advantages(
        rollout=rollout.keep(keep_N[local_rows][:, None]),
        advantage_BT=samples.advantage_B[local_rows][:, None].expand(rollout.shape),
        reward_B=reward_B,
        zero_B=torch.zeros_like(scored_B),
        chosen_B=rollouts.keep_B,
        local_rows=local_rows,
        advantage_N=samples.advantage_B,
        keep_N=keep_N,
        reward_N=samples.total_B,
        scored_N=samples.scored_B,
        zero_std_frac=samples.zero_std_frac,
        divergence_N=divergence_N,
        views=Views(views or {}, policy, rollout, reward_B=reward_B, scored_B=scored_B, seed=rollouts.seed),
    )
    if config.estimators or config.filters:
        advantages = decision_advantages(
            policy, advantages, rewards, chain, step=step, job=job, memory_column=memory_column
        )
    rollout, zero_B = without_truncated(advantages.rollout, algorithm.config.objective.truncated)
    return replace(advantages, rollout=rollout, zero_B=zero_B)


def decision_advantages(
    policy: Policy,
    advantages: Advantages,
    rewards: Rewards,
    chain: AdvantageChain,
    *,
    step: int,
    job: Job,
    memory_column: Callable[[str], Tensor] | None,
) -> Advantages:
    """The advantage of each decision after all estimators, and the decisions that all filters keep. A collective.

    Args:
        policy: the policy that sampled the rows, with unchanged weights.
        advantages: of the samples, expanded to their decisions.
        rewards: the rewards of the rows of all processes.
        chain: the estimators and filters.
        step: of the run, from 0.
        job: the processes.
        memory_column: columns of the memory before the step, of the job's samples.

    Returns:
        The advantages of the decisions; ``metrics`` has the means of the values that were read and the fraction of the
        decisions that each estimator and filter changed.

    Raises:
        ConfigError: an estimator reads the memory, and there is none; or it reads the rewards of turns, and at the
            first step conversations ended, and no turn has a reward.
    """
    rollout, advantage_BT, views = advantages.rollout, advantages.advantage_BT, advantages.views
    config, estimators, filters = chain.config, chain.estimators, chain.filters
    values = set(chain.values)
    rollout = with_values(policy, rollout, sorted(values, key=str), views)
    values |= {mask_of_view(str(value.view)) for value in values if value.view in views}
    columns = {column.name for mechanism in estimators for column in mechanism.memory}
    if columns and memory_column is None:
        raise ConfigError("an estimator reads the memory, but no memory is passed: pass memory_column")
    feedback = feedback_of(
        policy,
        rollout,
        rewards,
        advantages.reward_B,
        requested=values,
        parts=chain.span_rewards,
        turns=any(mechanism.turns for mechanism in estimators),
        step=step,
        job=job,
        memory_columns={name: memory_column(name) for name in sorted(columns)} if memory_column else {},
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
    zero_std_frac = _zero_frac(rollout, advantage_BT, job) if estimators else advantages.zero_std_frac
    for label, mechanism in zip(labels[len(estimators) :], filters, strict=True):
        keep_BT = mechanism.keep(feedback, advantage_BT)
        keep_BT = keep_BT[:, None] if keep_BT.ndim == 1 else keep_BT
        changes[f"credit/{label}"] = changed_count(~keep_BT, rollout.mask_BT)
        advantage_BT = advantage_BT.where(keep_BT, 0.0)
        rollout = rollout if config.filtered_samples == "mask" else rollout.keep(keep_BT)
    job_changes = job.merge_diagnostics(Diagnostics(change_sums=changes)).change_sums
    metrics = _means(feedback.job) | changed_fracs(job_changes)
    return replace(advantages, rollout=rollout, advantage_BT=advantage_BT, zero_std_frac=zero_std_frac, metrics=metrics)


def compared_groups(rewards: Rewards, rollout: Rollout, chain: AdvantageChain, job: Job) -> Tensor:
    """(N,) integers, the samples of the job that are compared with each other. A collective."""
    if chain.config.off_policy_baseline != "separate":
        return rewards.group_N
    return split_off_policy_groups(rewards.group_N, torch.cat(job.gather(_is_read(rollout))))


def split_off_policy_groups(group_B: Tensor, read_B: Tensor) -> Tensor:
    """The group that each sample is compared with: the off-policy members of a group are a separate group.

    Shapes: integers (B,), bool (B,) -> integers (B,), in no order.
    Source: RePO, arXiv:2506.09340, and its code (SihengLi99/RePO, ``adv_norm_mode`` split).
    """
    return 2 * group_B + read_B


def _is_read(rollout: Rollout) -> Tensor:
    """(B,) bool, the rows that were not sampled at this step."""
    on_policy_B = torch.zeros(len(rollout.samples), dtype=torch.bool)
    return on_policy_B if rollout.source_B is None else rollout.source_B != Source.ON_POLICY


def _require_turn_rewards(feedback: Feedback, readers: Sequence[str], job: Job) -> None:
    turns = feedback.turns
    num_rewards, num_ended = (
        int(turns.rewards.valid_BS.sum()),
        int((feedback.finished_B & (turns.rewards.scope_BT >= 0).any(1)).sum()),
    )
    totals = job.gather((num_rewards, num_ended))
    if sum(ended for _, ended in totals) and not sum(rewards for rewards, _ in totals):
        reason = f"of {sum(ended for _, ended in totals)} conversations that ended in the first step none has any"
        raise ConfigError(without_turn_rewards(f"advantage.estimators: {', '.join(readers)}", reason))


def _means(job: JobFeedback) -> dict[str, float]:
    """Means of the measured values of the decisions, with equal weight per sample."""
    nonempty_N = job.length_N > 0
    return {
        f"decisions/{value.name}_mean": float(mean_N[nonempty_N].mean())
        for value, mean_N in job.value_mean.items()
        if value.view is None and bool(nonempty_N.any())
    }


def _zero_frac(rollout: Rollout, advantage_BT: Tensor, job: Job) -> float:
    """The share of the groups of all processes with the advantage 0 in all trained decisions."""
    teaches_B = ((advantage_BT != 0) & rollout.mask_BT).any(1)
    group_B = rollout.prompt_index_B
    counts = job.gather((len(group_B.unique()), len(group_B[teaches_B].unique())))
    return 1 - sum(teaching for _, teaching in counts) / sum(groups for groups, _ in counts)
