"""What a step logs of itself: of its samples and their rewards, and of each update."""

from __future__ import annotations

from mmgrpo.config import AdvantageConfig
from mmgrpo.distributed.job import Job
from mmgrpo.maths.changes import changed_fracs
from mmgrpo.runs.sample_files import sample_metrics, sample_stats
from mmgrpo.training.credit import Batch, penalised, reward_metrics
from mmgrpo.training.gather import Experience
from mmgrpo.training.judge import Verdict
from mmgrpo.training.learn import Update

UNBATCHED_ROWS = "rollout/unbatched_rows"


def step_metrics(
    experience: Experience, verdict: Verdict, batch: Batch, config: AdvantageConfig, job: Job
) -> dict[str, float]:
    """What the step's samples and their rewards come to, over the whole job.

    ``rollout/kept_frac`` is the share of all samples asked for, ``rollout/unshown_frac`` that of those whose context
    had nothing to show of the samples before, ``rollout/logprob_mean`` that of the decisions that train, by who drew
    them; everything else is of those that may be trained on.
    """
    scores = verdict.scores
    if batch.divergence_N is not None:
        scores = penalised(scores, batch.divergence_N, config.kl_beta)
    metrics = reward_metrics(scores, batch.credit) | dict(verdict.metrics)
    metrics |= sample_metrics(job.gather(sample_stats(experience.samples)), scores)
    metrics |= {"groups/zero_std_frac": batch.credit.zero_std_frac, **batch.metrics}
    num_asked = sum(len(request.members) for request in experience.requests)
    if experience.num_rounds > 1 or not bool(verdict.keep_N.all()):
        metrics |= {
            "rollout/rounds": float(experience.num_rounds),
            "rollout/groups": float(len({request.prompt for request in experience.requests})),
            "rollout/kept_frac": float(verdict.keep_N.sum()) / num_asked,
        }
    if experience.num_unshown:
        metrics["rollout/unshown_frac"] = experience.num_unshown / num_asked
    kept_BT = batch.rollout.mask_BT & batch.credit.keep_B[batch.mine][:, None]
    sums = job.gather((float(batch.rollout.old_logprob_BT[kept_BT].double().sum()), int(kept_BT.sum())))
    metrics["rollout/logprob_mean"] = sum(each for each, _ in sums) / max(sum(num for _, num in sums), 1)
    num_failed = sum(sample.failure is not None for sample in experience.samples)
    alone, failed = zip(*job.gather((experience.rollout.num_unbatched, num_failed)), strict=True)
    metrics |= {UNBATCHED_ROWS: sum(alone)} if any(alone) else {}
    metrics |= {"rollout/failed_samples": sum(failed)} if any(failed) else {}
    return metrics


def update_metrics(update: Update, job: Job) -> dict[str, float]:
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
