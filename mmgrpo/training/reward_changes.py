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
from mmgrpo.training.compute_advantages import Advantages, compared_groups, group_advantages
from mmgrpo.training.score_rollouts import Rewards


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
        value for named in chain.config.estimators for value in map(str, named.numbers.values())
    }
    names = {reward.name for reward in reward_functions if reward.from_method is not None} - read
    scores, advantage_N, mask_BT = rewards.counting, advantages.credit.advantage_B, advantages.rollout.mask_BT
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
