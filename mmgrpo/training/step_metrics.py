"""What a step logs of itself: of its samples and their rewards, and of each update."""

from __future__ import annotations

from mmgrpo.config import AdvantageConfig
from mmgrpo.distributed.job import Job
from mmgrpo.maths.changes import changed_fracs
from mmgrpo.runs.sample_files import sample_metrics, sample_stats
from mmgrpo.training.compute_advantages import Advantages, reward_metrics, with_kl_column
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.update_policy import UpdateMetrics

UNBATCHED_ROWS = "rollout/unbatched_rows"


def step_metrics(
    rollouts: Rollouts, rewards: Rewards, advantages: Advantages, config: AdvantageConfig, job: Job
) -> dict[str, float]:
    """What the step's samples and their rewards come to, over the whole job.

    ``rollout/kept_frac`` is the share of all samples asked for, ``rollout/unshown_frac`` that of those whose context
    had nothing to show of the samples before, ``rollout/logprob_mean`` that of the decisions that train, by who drew
    them; everything else is of those that may be trained on.
    """
    scores = rewards.scores
    if advantages.divergence_N is not None:
        scores = with_kl_column(scores, advantages.divergence_N, config.kl.beta)
    metrics = reward_metrics(scores, advantages.credit) | dict(rewards.metrics)
    metrics |= sample_metrics(job.gather(sample_stats(rollouts.samples)), scores)
    metrics |= {"groups/zero_std_frac": advantages.credit.zero_std_frac, **advantages.metrics}
    num_requested = sum(len(request.members) for request in rollouts.requests)
    if rollouts.num_rounds > 1 or not bool(rewards.keep_N.all()):
        metrics |= {
            "rollout/rounds": float(rollouts.num_rounds),
            "rollout/groups": float(len({request.prompt for request in rollouts.requests})),
            "rollout/kept_frac": float(rewards.keep_N.sum()) / num_requested,
        }
    if rollouts.num_unshown:
        metrics["rollout/unshown_frac"] = rollouts.num_unshown / num_requested
    trained_BT = advantages.rollout.mask_BT & advantages.credit.keep_B[advantages.local_rows][:, None]
    sums = job.gather((float(advantages.rollout.old_logprob_BT[trained_BT].double().sum()), int(trained_BT.sum())))
    metrics["rollout/logprob_mean"] = sum(each for each, _ in sums) / max(sum(num for _, num in sums), 1)
    num_failed = sum(sample.failure is not None for sample in rollouts.samples)
    num_unbatched, num_failed_of_rank = zip(*job.gather((rollouts.rollout.num_unbatched, num_failed)), strict=True)
    metrics |= {UNBATCHED_ROWS: sum(num_unbatched)} if any(num_unbatched) else {}
    metrics |= {"rollout/failed_samples": sum(num_failed_of_rank)} if any(num_failed_of_rank) else {}
    return metrics


def update_metrics(update: UpdateMetrics, job: Job) -> dict[str, float]:
    """What an update did, over the whole job."""
    diagnostics, applied = job.merge_diagnostics(update.gradient.diagnostics), update.applied
    return {
        **diagnostics.as_metrics(),
        **changed_fracs(diagnostics.change_sums),
        "policy/trained_frac": float(diagnostics.num_weighed) / max(update.totals.num_decisions, 1),
        "optimizer/lr": applied.lr,
        "optimizer/grad_norm": applied.grad_norm,
        "optimizer/skipped": float(applied.skipped),
    }
