"""A task after another: its prompts contain the samples of the other, which can be rewarded by its results.

Axes: N rows of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies.downstream import following
from mmgrpo.policy import Policy
from mmgrpo.reward import CrossTaskReward
from mmgrpo.samples import TASK_TEMPLATE
from mmgrpo.scoring import NamedReward
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.held_out_sampling import HeldOutSampler
from mmgrpo.training.optimizer import Average
from mmgrpo.training.rollout_rounds import Rollouts, UpstreamRollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.types import Plan, Prompt, Rollout


@final
class TaskLink:
    """Links a task of a mixed run to the task before it, which generates its prompts."""

    def __init__(
        self,
        leader: Policy,
        algorithm: Algorithm,
        *,
        plan: Plan,
        average: Average | None = None,
        before: TaskLink | None = None,
    ) -> None:
        """Links a task to the task before it.

        Args:
            leader: the policy that generates the prompts.
            algorithm: of the task that is after it.
            plan: of the samples of the leader in evaluations.
            average: of the weights of the leader, if one is kept.
            before: links the leader to a task before it; None: it has separate prompts.
        """
        assert algorithm.config.rollout.task is not None
        assert algorithm.task_template is not None
        self._leader = leader
        self._plan = replace(plan, stochastic=())
        self._average, self._before = average, before
        self._config = algorithm.config.rollout.task
        self._name = algorithm.config.about.name
        self._templates = {TASK_TEMPLATE: algorithm.task_template}

    def followed(self, before: Mapping[str, Rollouts], job: Job) -> UpstreamRollouts:
        """The rollouts of the task before, as this task reads them, from those by task. A collective."""
        rollouts = before[str(self._config.after)]
        return self._upstream([rollouts.rollout], rollouts.upstream, job, self._config.compare, rollouts.root_of)

    def held_out(self, prompts: Sequence[Prompt], job: Job) -> UpstreamRollouts:
        """The samples of the tasks before for held-out prompts: one of each prompt, without noise. A collective.

        Args:
            prompts: of the job.
            job: the processes.

        Returns:
            The samples, as this task reads them.
        """
        earlier = partial(self._before.held_out, job=job) if self._before else None
        sampler = HeldOutSampler(job=job, upstream=earlier)
        with self._average.applied() if self._average else nullcontext():
            result = sampler(self._leader, prompts, group_size=1, seed=0, plan=self._plan)
        return self._upstream(result.rollouts, result.upstream, job, "prompt")

    def _upstream(
        self,
        rollouts: Sequence[Rollout],
        earlier: Mapping[str, Rollout],
        job: Job,
        compare: Literal["sample", "prompt"],
        root_of: Mapping[int, int] = MappingProxyType({}),
    ) -> UpstreamRollouts:
        """The rollouts of the task before, at most one on this process, and of those before that."""
        parts = job.gather([sample.identity for rollout in rollouts for sample in rollout.samples])
        return UpstreamRollouts(
            task=self._name,
            rollouts={**{str(self._config.after): rollout for rollout in rollouts}, **earlier},
            strategy=following([identity for part in parts for identity in part], compare=compare),
            owner={group: rank for rank, part in enumerate(parts) for group, _ in part},
            root_of=root_of,
            templates=self._templates,
        )


def require_complete_rows(leader: Algorithm) -> None:
    """Raises ConfigError for a task before another whose rows continue at later steps."""
    if leader.strategy.window is not None:
        raise ConfigError(
            f"rollout.strategy: {leader.config.rollout.strategy.name} leaves rows unfinished at a step, and another "
            "task samples after them: use another strategy"
        )


def held_out_sampler(algorithm: Algorithm, job: Job, link: TaskLink | None = None) -> HeldOutSampler:
    """How the held-out prompts of a run or a task are sampled.

    Args:
        algorithm: of the run or task.
        job: the processes.
        link: to the task before; None: there is none.

    Returns:
        The sampler.
    """
    upstream = partial(link.held_out, job=job) if link else None
    ask, templates = algorithm.strategy.evaluation, algorithm.prompt_templates
    return HeldOutSampler(job=job, ask=ask, prompt_templates=templates, upstream=upstream)


@contextmanager
def cross_task_rewards(
    rewards: Sequence[NamedReward], after: Mapping[str, tuple[Rewards, Advantages]]
) -> Iterator[None]:
    """Within it the rewards that depend on another task have the results of its samples."""
    rewards_of_tasks = [reward.function for reward in rewards if isinstance(reward.function, CrossTaskReward)]
    for reward in rewards_of_tasks:
        reward.receive(downstream_rewards(*after[reward.task], reward.reward))
    try:
        yield
    finally:
        for reward in rewards_of_tasks:
            reward.receive({})


def downstream_rewards(rewards: Rewards, advantages: Advantages, reward: str | None) -> dict[tuple[int, int], float]:
    """The reward of each sample of the task before, by its group and member: the mean over the rows sampled after it.

    Args:
        rewards: of the rows.
        advantages: of the rows.
        reward: the name of a reward; None: the combined reward.

    Returns:
        The means; none where no reward applied.
    """
    value_N, valid_N, scores = advantages.reward_N, advantages.scored_N, rewards.scores
    if reward is not None:
        column = scores.names.index(reward)
        value_N, valid_N = scores.value_BR[:, column], scores.valid_BR[:, column]
    values: dict[tuple[int, int], list[float]] = {}
    for after, value, valid in zip(rewards.after_N, value_N.tolist(), valid_N.tolist(), strict=True):
        for identity in after if valid else ():
            values.setdefault(identity, []).append(value)
    return {identity: sum(group_values) / len(group_values) for identity, group_values in values.items()}


def require_cross_task_rewards(name: str, rewards: Sequence[Any], tasks: Mapping[str, Sequence[str]]) -> None:
    """Checks the tasks that rewards depend on.

    Args:
        name: the task that has the rewards.
        rewards: by their functions.
        tasks: names of the rewards of each task that is after it.

    Raises:
        ConfigError: a reward goes by a task that is not after this one, or by a reward that is not there.
    """
    for reward in rewards:
        if not isinstance(reward, CrossTaskReward):
            continue
        if reward.task not in tasks:
            names = ", ".join(tasks) or "none"
            raise ConfigError(f"of_task: {reward.task!r} is no task after {name or 'this run'}; those are {names}")
        if reward.reward is not None and reward.reward not in tasks[reward.task]:
            names = ", ".join(tasks[reward.task])
            raise ConfigError(f"of_task: {reward.task} has no reward {reward.reward!r}; it has {names}")
