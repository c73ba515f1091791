"""The share of the decisions whose advantage differs because of a reward that a method adds.

Axes: B rows of this process, N samples of the job, R rewards, T decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mmgrpo.algorithm import AdvantageChain
from mmgrpo.distributed.job import Job
from mmgrpo.maths.changes import advantages_changed, changed_fracs
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.scoring import NamedReward
from mmgrpo.training.credit import Batch, compared_groups, form_credit
from mmgrpo.training.judge import Verdict


def reward_changes(
    verdict: Verdict, batch: Batch, advantages: AdvantageChain, *, rewards: Sequence[NamedReward], job: Job
) -> dict[str, float]:
    """Compares the advantages of samples with those without each reward that a method adds. A collective.

    Args:
        verdict: the rewards of the job's samples.
        batch: this process's rows, with the advantages of the job's samples before any estimator.
        advantages: from rewards to advantages.
        rewards: of the run. Those of methods are compared, except at a weight of 0 at this step, and except those that
            an estimator reads by name, which act through it.
        job: the processes.

    Returns:
        ``reward/NAME/changed_frac`` by name.
    """
    read = advantages.span_rewards | {
        value for named in advantages.config.estimators for value in map(str, named.numbers.values())
    }
    names = {reward.name for reward in rewards if reward.from_method is not None} - read
    scores, advantage_N, mask_BT = verdict.counting, batch.credit.advantage_B, batch.rollout.mask_BT
    columns = [column for column, name in enumerate(scores.names) if name in names and scores.weight_R[column] != 0]
    if not columns:
        return {}
    group_N, size = compared_groups(verdict, batch.rollout, advantages, job), float(advantage_N.abs().max())
    changes: dict[str, ValueSum] = {}
    for column in columns:
        weight_R = scores.weight_R.clone()
        weight_R[column] = 0.0
        others = replace(scores, weight_R=weight_R)
        without_N = form_credit(others, group_N, advantages, batch.divergence_N, verdict.keep_N).advantage_B
        before_BT, after_BT = (each_N[verdict.mine, None].expand(mask_BT.shape) for each_N in (without_N, advantage_N))
        changes[f"reward/{scores.names[column]}"] = advantages_changed(before_BT, after_BT, mask_BT.cpu(), size=size)
    return changed_fracs(job.merge_diagnostics(Diagnostics(change_sums=changes)).change_sums)
