"""A task after another: its prompts contain the samples of the other, which can be rewarded by its results.

Axes: N rows of all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.history import History, RoleTurn
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies.downstream import FOLLOWED, following
from mmgrpo.policy import Policy
from mmgrpo.reward import CrossTaskReward
from mmgrpo.scoring import NamedReward
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.optimizer import Average
from mmgrpo.training.rollout_rounds import Rollouts, UpstreamRollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.types import Plan, Prompt


@final
class TaskLink:
    """Links a task of a mixed run to the task before it, which generates its prompts."""

    def __init__(
        self, leader: Policy, algorithm: Algorithm, average: Average | None = None, before: TaskLink | None = None
    ) -> None:
        """Links a task to the task before it.

        Args:
            leader: the policy that generates the prompts.
            algorithm: of the task that is after it.
            average: of the weights of the leader, if one is kept.
            before: links the leader to a task before it; None: it has separate prompts.
        """
        assert algorithm.config.rollout.task is not None
        assert algorithm.task_template is not None
        self._leader = leader
        self._average, self._before = average, before
        self._config = algorithm.config.rollout.task
        self._name = algorithm.config.about.name
        self._templates = {FOLLOWED: algorithm.task_template}

    def followed(self, before: Mapping[str, Rollouts], job: Job) -> UpstreamRollouts:
        """The rollouts of the task before, as this task reads them, from those by task. A collective."""
        nearest = str(self._config.after)
        rollouts = before[nearest]
        parts = job.gather([sample.identity for sample in rollouts.samples])
        return UpstreamRollouts(
            task=self._name,
            rollouts={nearest: rollouts.rollout, **rollouts.upstream},
            strategy=following([identity for part in parts for identity in part], compare=self._config.compare),
            owner={group: rank for rank, part in enumerate(parts) for group, _ in part},
            root_of=rollouts.root_of,
            templates=self._templates,
        )

    def show(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """Held-out prompts with the samples of the tasks before, without noise; unchanged where there are none."""
        return self._with_samples(prompts, self._histories(prompts))

    def _with_samples(self, prompts: Sequence[Prompt], histories: Sequence[History]) -> list[Prompt]:
        prompt_template = self._templates[FOLLOWED]
        return [
            prompt_template(prompt, 0, history) or prompt for prompt, history in zip(prompts, histories, strict=True)
        ]

    def _histories(self, prompts: Sequence[Prompt]) -> list[History]:
        """The samples of the tasks before for each prompt."""
        plan = Plan(stochastic=(), prompt_ids=tuple(range(len(prompts))))
        earlier = self._before._histories(prompts) if self._before else [History()] * len(prompts)
        leader_prompts = self._before._with_samples(prompts, earlier) if self._before else prompts
        with self._average.applied() if self._average else nullcontext():
            samples = self._leader.rollout(leader_prompts, group_size=1, seed=0, plan=plan).samples
        turns = {sample.group: RoleTurn(str(self._config.after), sample) for sample in samples}
        return [
            History(samples=[turns[group].sample], role=self._name, turns=[*history.turns, turns[group]])
            for group, history in enumerate(earlier)
        ]


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
