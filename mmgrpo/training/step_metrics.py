"""The metrics of a step: of its samples, rewards and advantages, and of each update.

Axes: B rows of this process, N samples of the job, R rewards, T decisions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import Tensor

from mmgrpo.algorithm import AdvantageChain, Algorithm
from mmgrpo.config import AdvantageConfig
from mmgrpo.config.schedules import RunSchedules
from mmgrpo.distributed.job import Job
from mmgrpo.maths.changes import advantages_changed, changed_fracs
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.runs.alerts import step_summary
from mmgrpo.runs.sample_files import sample_metrics, sample_stats
from mmgrpo.scoring import NamedReward
from mmgrpo.training.compute_advantages import Advantages, compared_groups, group_advantages
from mmgrpo.training.critic import CriticTrainer
from mmgrpo.training.gradients import largest_gap
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.update_policy import UpdateMetrics
from mmgrpo.types import Prompt, Rollout, Scores
from mmgrpo.values import SAMPLER_LOGPROB

UNBATCHED_ROWS = "rollout/unbatched_rows"


def step_metrics(
    rollouts: Rollouts,
    rewards: Rewards,
    advantages: Advantages,
    *,
    algorithm: Algorithm,
    prompt_of: Callable[[int], Prompt],
    reward_functions: Sequence[NamedReward],
    job: Job,
) -> dict[str, float]:
    """The metrics of a step before its updates, over the samples of the job. A collective.

    Args:
        rollouts: this process's.
        rewards: of all processes.
        advantages: this process's.
        algorithm: at the step.
        prompt_of: the prompt of the step by its number.
        reward_functions: of the run.
        job: the processes.

    Returns:
        The metrics, the same on every process.
    """
    return {
        **_rollout_metrics(rollouts, rewards, advantages, algorithm.config.advantage, job),
        **({"rollout/staleness": _staleness(advantages.rollout, job)} if algorithm.steps_ahead else {}),
        **algorithm.step_config.metrics,
        **reward_changes(rewards, advantages, algorithm.advantages, reward_functions=reward_functions, job=job),
        **source_metrics(rewards.scores, rewards.root_N, prompt_of),
    }


def _rollout_metrics(
    rollouts: Rollouts, rewards: Rewards, advantages: Advantages, config: AdvantageConfig, job: Job
) -> dict[str, float]:
    """The metrics of the samples, their rewards and their advantages.

    ``rollout/kept_frac`` is the share of all requested samples, ``rollout/unshown_frac`` that of those whose prompt
    template had nothing to show of the samples before, ``rollout/logprob_mean`` that of the decisions that train, by
    who drew them; everything else is of those that may be trained on.
    """
    scores = rewards.scores
    if advantages.divergence_N is not None:
        scores = with_kl_column(scores, advantages.divergence_N, config.kl.beta)
    metrics = reward_metrics(scores, advantages.reward_N[advantages.scored_N]) | dict(rewards.metrics)
    metrics |= sample_metrics(job.gather(sample_stats(rollouts.samples)), scores)
    metrics |= {"groups/zero_std_frac": advantages.zero_std_frac, **advantages.metrics}
    num_requested = sum(len(request.members) for request in rollouts.requests)
    if rollouts.num_rounds > 1 or not bool(rewards.keep_N.all()):
        metrics |= {
            "rollout/rounds": float(rollouts.num_rounds),
            "rollout/groups": float(len({request.prompt for request in rollouts.requests})),
            "rollout/kept_frac": float(rewards.keep_N.sum()) / num_requested,
        }
    if rollouts.num_unshown:
        metrics["rollout/unshown_frac"] = rollouts.num_unshown / num_requested
    trained_BT = advantages.rollout.mask_BT & advantages.keep_N[advantages.local_rows][:, None]
    sums = job.gather((float(advantages.rollout.old_logprob_BT[trained_BT].double().sum()), int(trained_BT.sum())))
    metrics["rollout/logprob_mean"] = sum(each for each, _ in sums) / max(sum(num for _, num in sums), 1)
    metrics |= _sampler_metrics(advantages.rollout, job)
    num_failed = sum(sample.failure is not None for sample in rollouts.samples)
    num_unbatched, num_failed_of_rank = zip(*job.gather((rollouts.rollout.num_unbatched, num_failed)), strict=True)
    metrics |= {UNBATCHED_ROWS: sum(num_unbatched)} if any(num_unbatched) else {}
    metrics |= {"rollout/failed_samples": sum(num_failed_of_rank)} if any(num_failed_of_rank) else {}
    if any(request.window is not None for request in rollouts.requests):
        num_continued = sum(len(request.partial_rows) for request in rollouts.requests)
        metrics |= {"rollout/partial_rows": int(rewards.partial_N.sum()), "rollout/continued_rows": num_continued}
    return metrics


def _sampler_metrics(rollout: Rollout, job: Job) -> dict[str, float]:
    """Differences between the log-probabilities of the engine that sampled and of the trainer, over all decisions, in
    nats: mean and maximum; none where the trainer sampled. A collective.
    """
    gap_M = torch.zeros(0, dtype=torch.float64)
    if SAMPLER_LOGPROB in rollout.values:
        gap_M = (rollout.old_logprob_BT - rollout.values[SAMPLER_LOGPROB])[rollout.mask_BT].double().abs()
    parts = job.gather((float(gap_M.sum()), len(gap_M), float(gap_M.max()) if len(gap_M) else 0.0))
    total, num, largest = sum(part[0] for part in parts), sum(part[1] for part in parts), max(part[2] for part in parts)
    return {"rollout/engine_mismatch": total / num, "rollout/engine_mismatch_max": largest} if num else {}


def _staleness(rollout: Rollout, job: Job) -> float:
    """Mean number of steps between the weights that sampled a row and the current ones. A collective."""
    age_B = torch.zeros(len(rollout.samples)) if rollout.age_B is None else rollout.age_B
    sums = job.gather((float(age_B.sum()), len(age_B)))
    return sum(total for total, _ in sums) / sum(num for _, num in sums)


def update_metrics(update: UpdateMetrics, job: Job) -> dict[str, float]:
    """The metrics of an update, over all processes."""
    diagnostics, applied = job.merge_diagnostics(update.gradient.diagnostics), update.applied
    return {
        **diagnostics.as_metrics(),
        **changed_fracs(diagnostics.change_sums),
        "policy/trained_frac": float(diagnostics.num_weighed) / max(update.totals.num_decisions, 1),
        "optimizer/lr": applied.lr,
        "optimizer/grad_norm": applied.grad_norm,
        "optimizer/skipped": float(applied.skipped),
        **({} if update.slice_limit is None else {"update/slice_limit": float(update.slice_limit)}),
    }


@final
class StepLog:
    """The lines that a step logs, one per update.

    Attributes:
        metrics: of the step, which each line has.
        last: the last line.
        summary: the last line, with the largest fraction of decisions that each mechanism changed in any update.
    """

    def __init__(self, step: int, metrics: Mapping[str, Any], advantages: Advantages, job: Job) -> None:
        """Starts the clock of the first update.

        Args:
            step: counted from 0.
            metrics: of the step.
            advantages: this process's.
            job: the processes.
        """
        self.metrics = dict(metrics)
        self.last: dict[str, Any] = dict(metrics)
        self.summary: dict[str, Any] = {}
        self._step, self._job = step + 1, job
        self._num_forwards, self._num_samples = advantages.rollout.num_forwards, len(advantages.keep_N)
        self._gap_metric: dict[str, float] = {}
        self._clock = time.perf_counter()

    def line(self, update: UpdateMetrics, schedules: RunSchedules, critic: CriticTrainer | None) -> dict[str, Any]:
        """The line of an update. A collective.

        ``count/forwards_per_sample`` are all forwards of the step so far, including those of samples that only the
        strategy reads, per sample that may be trained on.
        """
        measured = update_metrics(update, self._job)
        self._num_forwards += update.gradient.num_forwards
        if not update.number:
            max_gap = largest_gap(*self._job.gather(update.gradient.max_gap))
            self._gap_metric = {} if max_gap is None else {"policy/on_policy_gap": max_gap}
        now = time.perf_counter()
        self.last = {
            "step": self._step,
            "update": update.number,
            **self.metrics,
            **measured,
            **(critic.metrics if critic else {}),
            **schedules.inactive({**self.metrics, **measured}),
            **self._gap_metric,
            "count/samples": float(self._num_samples),
            "count/forwards_per_sample": sum(self._job.gather(self._num_forwards)) / self._num_samples,
            "time/update_s": now - self._clock,
        }
        self.summary = step_summary(self.summary, self.last)
        self._clock = now
        return self.last


def reward_metrics(scores: Scores, total: Tensor) -> dict[str, float]:
    """Mean and spread of each reward over the samples it applied to, and of the combined rewards ``total``, where there
    are any; the metrics of explanations."""
    metrics = {}
    if len(total):
        metrics = {"reward/mean": float(total.mean()), "reward/std": float(total.std(correction=0))}
    for column, name in enumerate(scores.names):
        values = scores.value_BR[scores.valid_BR[:, column], column].double()
        if len(values):
            metrics[f"reward/{name}/mean"] = float(values.mean())
            metrics[f"reward/{name}/std"] = float(values.std(correction=0))
        metrics[f"reward/{name}/applies_frac"] = len(values) / len(scores.value_BR)
        metrics[f"reward/{name}/failed_frac"] = scores.failures.get(name, 0) / len(scores.value_BR)
        if name in scores.cached:
            metrics[f"reward/{name}/cached_frac"] = scores.cached[name] / len(scores.value_BR)
        if name in scores.duration_s:
            metrics[f"time/reward/{name}_s"] = scores.duration_s[name]
    return metrics | scores.custom_metrics


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


def reward_changes(
    rewards: Rewards,
    advantages: Advantages,
    chain: AdvantageChain,
    *,
    reward_functions: Sequence[NamedReward],
    job: Job,
) -> dict[str, float]:
    """Compares the advantages of samples with those without each reward that a method adds. A collective.

    Args:
        rewards: the rewards of the job's samples.
        advantages: this process's rows, with the advantages of the job's samples before any estimator.
        chain: from rewards to advantages.
        reward_functions: of the run. Those of methods are compared, except at a weight of 0 at this step, and except
            those that an estimator reads by name, which act through it.
        job: the processes.

    Returns:
        ``reward/NAME/changed_frac`` by name.
    """
    read = chain.span_rewards | {
        value for named in chain.config.estimators for value in map(str, named.settings.values())
    }
    names = {reward.name for reward in reward_functions if reward.from_method is not None} - read
    scores, advantage_N, mask_BT = rewards.counting, advantages.advantage_N, advantages.rollout.mask_BT
    columns = [column for column, name in enumerate(scores.names) if name in names and scores.weight_R[column] != 0]
    if not columns:
        return {}
    group_N, size = compared_groups(rewards, advantages.rollout, chain, job), float(advantage_N.abs().max())
    changes: dict[str, ValueSum] = {}
    for column in columns:
        weight_R = scores.weight_R.clone()
        weight_R[column] = 0.0
        others = replace(scores, weight_R=weight_R)
        without_N = group_advantages(others, group_N, chain, advantages.divergence_N, rewards.keep_N).advantage_B
        before_BT, after_BT = (
            each_N[rewards.local_rows, None].expand(mask_BT.shape) for each_N in (without_N, advantage_N)
        )
        changes[f"reward/{scores.names[column]}"] = advantages_changed(before_BT, after_BT, mask_BT.cpu(), size=size)
    return changed_fracs(job.merge_diagnostics(Diagnostics(change_sums=changes)).change_sums)


def source_metrics(scores: Scores, group_B: Tensor, prompt_of: Callable[[int], Prompt]) -> dict[str, float]:
    """The mean of each reward over the samples of each source, as ``reward/NAME/mean@LABEL``.

    Args:
        scores: of all processes.
        group_B: of each sample.
        prompt_of: of a group.

    Returns:
        The means; none of a reward that applied to no sample of a source, and none at all where there is one source.
    """
    metrics = {}
    source_of = {group: prompt_of(group).source for group in group_B.unique().tolist()}
    label_B = [source_of[group] for group in group_B.tolist()]
    for label in dict.fromkeys(source_of.values()):
        if label is None:
            continue
        has_label_B = torch.tensor([source == label for source in label_B])
        for column, name in enumerate(scores.names):
            values = scores.value_BR[scores.valid_BR[:, column] & has_label_B, column].double()
            if len(values):
                metrics[f"reward/{name}/mean@{label}"] = float(values.mean())
    return metrics
