"""From what the rewards said to the advantage of each sample, over the groups of the whole job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from mmgrpo.algorithm import AdvantageChain
from mmgrpo.distributed.job import Job
from mmgrpo.maths.advantages import clamp_advantage
from mmgrpo.maths.group_stats import Groups, grouped
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.decision_advantages import decision_advantages
from mmgrpo.training.gradients import with_values
from mmgrpo.training.rollout_rounds import CombinedRewards, Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.span_scores import has_span_scores
from mmgrpo.training.views import View, ViewRows, Views
from mmgrpo.types import Origin, Rollout, Scores
from mmgrpo.values import from_reference


@dataclass(frozen=True, slots=True)
class SampleAdvantages:
    """What each sample of the job earned.

    Attributes:
        advantage_B: float32; 0 where the sample is not trained on.
        keep_B: bool, whether the sample is trained on and counts: whether any reward applied to it, and with
            ``zero_variance_groups: drop``, whether its group has an advantage; or an estimator reads a reward of its
            parts.
        zero_std_frac: share of the groups that teach nothing, all their advantages being 0; where there are estimators,
            those of the decisions after them.
        total_B: float64, the rewards as one, where any applied: what was compared, or their weighted sum where rewards
            are normalised first.
        scored_B: bool, whether any reward of a weight other than 0 applied to the sample.
    """

    advantage_B: Tensor
    keep_B: Tensor
    zero_std_frac: float
    total_B: Tensor
    scored_B: Tensor


def with_kl_column(scores: Scores, divergence_B: Tensor, kl_beta: float) -> Scores:
    """The scores with a further column ``kl`` to report: the divergence of each scored sample, at the weight -kl_beta.

    Shapes: (B,) divergences summed over the samples' decisions.
    """
    return replace(
        scores,
        names=(*scores.names, "kl"),
        weight_R=torch.cat([scores.weight_R, torch.tensor([-kl_beta])]),
        value_BR=torch.cat([scores.value_BR, divergence_B[:, None].to(scores.value_BR)], dim=1),
        valid_BR=torch.cat([scores.valid_BR, scores.scored_B[:, None]], dim=1),
    )


def combined_reward(scores: Scores, group_B: Tensor, chain: AdvantageChain, penalty_B: Tensor | None = None) -> Tensor:
    """What the rewards of each sample come to within its group, as one float64 number.

    Args:
        scores: of whole groups.
        group_B: group of each sample.
        chain: how rewards are combined; where each reward is normalized first, the plain weighted sum is given.
        penalty_B: what is taken off.

    Returns:
        (B,) rewards.
    """
    groups = grouped(group_B)
    reward_RPG, valid_RPG = _by_group(scores, groups)
    total_B = groups.rows(chain.combine_for_report(reward_RPG, scores.weight_R.double(), valid_RPG))
    return total_B if penalty_B is None else total_B - penalty_B


def combine_rewards(
    scores: Scores, group_B: Tensor, *, reward_functions: Sequence[NamedReward], chain: AdvantageChain, step: int
) -> CombinedRewards:
    """What the scores of a round come to as they count at a step, for strategies."""
    counting = shape_scores(scores, reward_functions, step).scores
    return CombinedRewards(combined_reward(counting, group_B, chain), counting.scored_B)


def group_advantages(
    scores: Scores,
    group_B: Tensor,
    chain: AdvantageChain,
    divergence_B: Tensor | None = None,
    keep_B: Tensor | None = None,
) -> SampleAdvantages:
    """Group-relative advantages of whole groups, of any sizes.

    Args:
        scores: of the whole job.
        group_B: group of each sample.
        chain: how rewards are combined and scaled.
        divergence_B: from the reference, summed over each sample's decisions; kl_beta times it is taken off what the
            rewards combine to, after any reward was normalised, so that it keeps its size (RLOO, arXiv:2402.14740).
        keep_B: bool, the samples that groups are compared by; the others earn nothing. None: all.

    Returns:
        The advantages, float32; they are formed in float64, where no finite float32 reward overflows.
    """
    config, groups = chain.config, grouped(group_B)
    scored_B = scores.scored_B if keep_B is None else scores.scored_B & keep_B
    reward_RPG, valid_RPG = _by_group(scores, groups, keep_B)
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


def _by_group(scores: Scores, groups: Groups, keep_B: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Rewards in float64 and where they apply, (R, P, G) each."""
    valid_BR = scores.valid_BR if keep_B is None else scores.valid_BR & keep_B[:, None]
    valid_RPG = groups.matrix(valid_BR.T) & groups.present_PG
    return groups.matrix(scores.value_BR.T).double(), valid_RPG


def reward_metrics(scores: Scores, credit: SampleAdvantages) -> dict[str, float]:
    """What a run logs of its rewards: what each gave, over the samples it applied to, and what they came to."""
    total = credit.total_B[credit.scored_B]
    metrics = {
        "reward/mean": float(total.mean()) if len(total) else 0.0,
        "reward/std": float(total.std(correction=0)) if len(total) else 0.0,
    }
    for column, name in enumerate(scores.names):
        values = scores.value_BR[scores.valid_BR[:, column], column].double()
        if len(values):
            metrics[f"reward/{name}/mean"] = float(values.mean())
            metrics[f"reward/{name}/std"] = float(values.std(correction=0))
        metrics[f"reward/{name}/applies_frac"] = len(values) / len(scores.value_BR)
        metrics[f"reward/{name}/failed_frac"] = scores.failures.get(name, 0) / len(scores.value_BR)
        if name in scores.cached:
            metrics[f"reward/{name}/cached_frac"] = scores.cached[name] / len(scores.value_BR)
        if name in scores.took_s:
            metrics[f"time/reward/{name}_s"] = scores.took_s[name]
    return metrics


@dataclass(frozen=True, slots=True)
class UntruncatedRows:
    """A rollout without what is not trained on, and what still counts in means over samples.

    Attributes:
        rollout: its mask keeps what is trained on.
        zero_B: bool, samples that count as zeros although nothing of them is trained on.
    """

    rollout: Rollout
    zero_B: Tensor


def without_truncated(rollout: Rollout, truncated: str) -> UntruncatedRows:
    """Leaves out samples cut off by their length limit as ``objective.truncated`` says: keep, zero or drop."""
    truncated_B = torch.tensor([not sample.finished for sample in rollout.samples])
    if truncated == "keep":
        return UntruncatedRows(rollout, torch.zeros_like(truncated_B))
    zero_B = truncated_B & rollout.mask_BT.any(1) if truncated == "zero" else torch.zeros_like(truncated_B)
    return UntruncatedRows(rollout.keep(~truncated_B[:, None]), zero_B)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """What this process's rows of a step can teach.

    Attributes:
        rollout: its mask keeps what is trained on; values that were measured are known to it.
        advantage_BT: float32 advantage of each decision.
        reward_B: float64, what the rewards of each row come to.
        zero_B: bool, rows that count as zeros in means over samples although nothing of them is trained on.
        chosen_B: bool, the rows that the strategy keeps; groups without any are no part of a minibatch.
        divergence_N: of the whole job's samples from the reference, where it was taken off their rewards.
        credit: of the whole job's samples.
        local_rows: this process's rows among them.
        views: the rows as the views of the run see them.
        metrics: means over the job's samples of what estimators and filters read of the decisions.
    """

    rollout: Rollout
    advantage_BT: Tensor
    reward_B: Tensor
    zero_B: Tensor
    chosen_B: Tensor
    credit: SampleAdvantages
    local_rows: slice
    divergence_N: Tensor | None = None
    views: Mapping[str, ViewRows] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


def compute_advantages(
    policy: Policy,
    rollouts: Rollouts,
    rewards: Rewards,
    chain: AdvantageChain,
    *,
    truncated: str = "keep",
    step: int = 0,
    job: Job,
    remembered: Callable[[str], Tensor] | None = None,
    views: Mapping[str, View] | None = None,
) -> Advantages:
    """Advantages of every decision, from what the rewards say of the whole job's samples.

    What this takes of the decisions beside the rollout is measured once, at the weights that sampled.

    Args:
        policy: what drew the rows, its weights still the same.
        rollouts: this process's rows.
        rewards: on the rows of all processes.
        chain: from rewards to the advantage of each decision.
        truncated: what becomes of samples cut off by their length limit: keep, zero or drop, as
            ``objective.truncated`` says.
        step: of the run, from 0.
        job: the processes.
        remembered: columns of the memory before the step, of the samples of the job; for estimators that read it.
        views: those of the run.

    Returns:
        What is learnt from.
    """
    config, rollout, divergence_N = chain.config, rollouts.rollout, None
    if config.kl.divergence is not None:
        divergence = from_reference(config.kl.divergence)
        rollout = with_values(policy, rollout, [divergence])
        divergence_N = torch.cat(job.gather(rollout.values[divergence].sum(1).cpu()))
    compared_N = compared_groups(rewards, rollout, chain, job)
    credit = group_advantages(rewards.counting, compared_N, chain, divergence_N, rewards.keep_N)
    span_scored_N = has_span_scores(rewards.counting, chain.span_rewards)
    if any(estimator.unscored for estimator in chain.estimators):
        span_scored_N = torch.ones_like(span_scored_N)
    credit = replace(credit, keep_B=credit.keep_B | (span_scored_N & rewards.keep_N))
    reward_B, scored_B = credit.total_B[rewards.local_rows], credit.scored_B[rewards.local_rows]
    view_rows = Views(views or {}, policy, rollout, reward_B=reward_B, scored_B=scored_B, seed=rollouts.seed)
    advantage_BT = credit.advantage_B[rewards.local_rows][:, None].expand(rollout.shape)
    rollout = rollout.keep(credit.keep_B[rewards.local_rows][:, None])
    metrics: Mapping[str, float] = {}
    if config.estimators or config.filters:
        shaped_rows = decision_advantages(
            policy,
            rollout,
            advantage_BT,
            rewards,
            chain,
            reward_B=reward_B,
            step=step,
            job=job,
            remembered=remembered,
            views=view_rows,
        )
        rollout, advantage_BT, metrics = shaped_rows.rollout, shaped_rows.advantage_BT, shaped_rows.metrics
        if shaped_rows.zero_std_frac is not None:
            credit = replace(credit, zero_std_frac=shaped_rows.zero_std_frac)
    untruncated = without_truncated(rollout, truncated)
    return Advantages(
        rollout=untruncated.rollout,
        advantage_BT=advantage_BT,
        reward_B=reward_B,
        zero_B=untruncated.zero_B,
        chosen_B=rollouts.keep_B,
        credit=credit,
        local_rows=rewards.local_rows,
        divergence_N=divergence_N,
        views=view_rows,
        metrics=metrics,
    )


def compared_groups(rewards: Rewards, rollout: Rollout, chain: AdvantageChain, job: Job) -> Tensor:
    """(N,) integers, the samples of the job that are compared with each other. A collective."""
    if chain.config.off_policy_baseline != "separate":
        return rewards.group_N
    return split_off_policy_groups(rewards.group_N, torch.cat(job.gather(_is_read(rollout))))


def split_off_policy_groups(group_B: Tensor, read_B: Tensor) -> Tensor:
    """Whom each sample is compared with: the read members of a group are a group of their own.

    Shapes: integers (B,), bool (B,) -> integers (B,), in no order.
    Source: RePO, arXiv:2506.09340, and its code (SihengLi99/RePO, ``adv_norm_mode`` split).
    """
    return 2 * group_B + read_B


def _is_read(rollout: Rollout) -> Tensor:
    """(B,) bool, the rows that were not drawn at this step."""
    on_policy_B = torch.zeros(len(rollout.samples), dtype=torch.bool)
    return on_policy_B if rollout.origin_B is None else rollout.origin_B != Origin.ON_POLICY
