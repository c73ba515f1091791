"""The components that all steps of a run share, each created once, and the rewards at a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import final

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.schedules import StepConfig
from mmgrpo.data.stream import PromptStream
from mmgrpo.data.unreadable_rows import prompt_check, require_media
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.explain.advantage_inputs import require_advantages
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.runs.progress import WarmupStep
from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.training.auxiliary import Auxiliaries
from mmgrpo.training.build import (
    build_critic,
    build_rewards,
    build_views,
    engine_of_run,
    optimizer_of,
    plan_at,
    require_engine_support,
    require_images,
    require_weights,
)
from mmgrpo.training.critic import CriticTrainer
from mmgrpo.training.loss_scaler import LossScaler
from mmgrpo.training.optimizer import Average, GuardedOptimizer, ensure_reference, require_movable
from mmgrpo.training.supervision import Warmup, warmup_of
from mmgrpo.training.views import View
from mmgrpo.training.weight_sets import WeightSets
from mmgrpo.types import Prompt


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Components:
    """The state that all steps of a run share.

    Attributes:
        algorithm: of the run.
        policy: the policy that is trained.
        rewards: the rewards, as they count at a step.
        stream: the prompts of each step.
        job: the processes.
        average: the average of the weights; None: none.
        views: auxiliary forward passes, by name.
        optimizer: of the policy.
        auxiliaries: auxiliary losses.
        critic: the critic with its optimizer; None: none.
        warmup: the supervised warm-up; None: none.
        weight_sets: the further weights that are trained.
        owner: of a task that trains the policy of another task, the components of that task; None: this task
            owns the policy.
    """

    algorithm: Algorithm
    policy: Policy
    rewards: StepRewards
    stream: PromptStream
    job: Job
    average: Average | None
    views: Mapping[str, View]
    optimizer: GuardedOptimizer
    auxiliaries: Auxiliaries
    critic: CriticTrainer | None
    warmup: Warmup | None
    weight_sets: WeightSets
    owner: Components | None = None

    @classmethod
    def of(
        cls,
        algorithm: Algorithm,
        policy: Policy,
        rewards: Sequence[NamedReward],
        prompts: Sequence[Prompt],
        *,
        job: Job,
        owner: Components | None = None,
    ) -> Components:
        """Creates the components.

        Args:
            algorithm: of the run.
            policy: the policy, on its device.
            rewards: the rewards.
            prompts: all prompts of the run.
            job: the processes, and the device of further models: the critic, and the policies of views.
            owner: the components of the task that owns the policy; None: of this one.

        Returns:
            The components.

        Raises:
            ConfigError: the policy does not support the algorithm.
            DataError: the policy does not read media that a prompt has.
        """
        config, parameters = algorithm.config, policy.trainable
        if algorithm.task_template is None:
            require_media(prompts, config.prompts, prompt_check(policy))
            require_images(prompts, algorithm)
        step_rewards, stream = StepRewards(rewards, algorithm), algorithm.prompt_stream(prompts, prompt_check(policy))
        step_rewards.apply_schedules(algorithm.at(0, Memory()))
        job.local_share(range(config.rollout.prompts_per_step), "rollout.prompts_per_step")
        require_movable(policy, config.update.reference)
        weight_sets = WeightSets(algorithm, policy, job)
        require_weights(algorithm, policy)
        require_advantages(algorithm)
        plan_at(algorithm, policy, 0)
        require_engine_support(algorithm, policy, job)
        _require_owner(algorithm, owner)
        loss = algorithm.advantages.critic_loss
        average = owner.average if owner else Average(parameters, config.update.ema) if config.update.ema else None
        return cls(
            algorithm=algorithm,
            policy=policy,
            rewards=step_rewards,
            stream=stream,
            job=job,
            average=average,
            views=build_views(algorithm, policy, device=job.device, average=average),
            optimizer=owner.optimizer
            if owner
            else optimizer_of(algorithm, parameters, job=job, average=average, scaler=LossScaler.of(policy)),
            auxiliaries=Auxiliaries(policy, config.objective.auxiliary, seed=config.seed, job=job),
            critic=None if loss is None else CriticTrainer(config, build_critic(config, job.device), loss, job),
            warmup=warmup_of(policy, config, job),
            weight_sets=weight_sets,
            owner=owner,
        )

    def warm_up(self) -> Iterator[WarmupStep]:
        """The supervised steps before the first step of GRPO, one per item, if there are any; then ``start``."""
        if self.warmup:
            yield from self.warmup.run(0, lambda: False)
        self.start()

    def engine(self, log: Path) -> AbstractContextManager[None]:
        """The context of ``rollout.engine``; a task that trains the policy of another task has that task's.

        Args:
            log: file for the output of a server that the run starts.

        Returns:
            The context, as ``engine_of_run``.
        """
        return nullcontext() if self.owner else engine_of_run(self.algorithm, self.policy, self.job, log)

    def start(self) -> None:
        """Makes the current weights the reference, and the first weights of the average and of the weight sets."""
        ensure_reference(self.policy, self.algorithm)
        self.weight_sets.start()
        if self.average:
            self.average.restart()


def _require_owner(algorithm: Algorithm, owner: Components | None) -> None:
    if owner and algorithm.weight_sets:
        raise ConfigError(
            "update.weight_sets: a policy that several tasks train has no further weights: remove them, or policy_of"
        )
    if owner and algorithm.config.rollout.engine != owner.algorithm.config.rollout.engine:
        raise ConfigError(
            "rollout.engine: a task with policy_of has the engine of the policy's owner: set the same one"
        )


@final
class StepRewards:
    """The rewards of a run as they count at a step; without a schedule they are created once.

    Attributes:
        rewards: how each counts.
        scorer: calls them.
    """

    def __init__(self, rewards: Sequence[NamedReward], algorithm: Algorithm) -> None:
        """Takes the rewards as they are at the first step.

        Args:
            rewards: how each counts without any schedule.
            algorithm: of the run.

        Raises:
            ConfigError: a schedule or phase changes the numbers of a reward that does not exist.
        """
        config = algorithm.config
        self._base = list(rewards)
        self._step_config = algorithm.step_config
        _require_rewards(self._base, algorithm)
        self.rewards = self._base
        self.scorer = Scorer(self._base, max_failure_frac=config.runtime.max_reward_failure_frac)

    def apply_schedules(self, algorithm: Algorithm) -> None:
        """Applies the numbers of a step to the rewards. Raises ConfigError for a value that a reward does not take."""
        before, self._step_config = self._step_config, algorithm.step_config
        if self._step_config.rewards != before.rewards:
            self.rewards = [self._reward(number, self._step_config, before) for number in range(len(self._base))]
            self.scorer = self.scorer.renewed(self.rewards)

    def _reward(self, number: int, step_config: StepConfig, before: StepConfig) -> NamedReward:
        """A reward with its settings at the step; the same object while they stay."""
        base = self._base[number]
        numbers, earlier = step_config.rewards.get(base.name, {}), before.rewards.get(base.name, {})
        if numbers == earlier:
            return self.rewards[number]
        counts = {name: value for name, value in numbers.items() if name in ("weight", "clip")}
        settings, settings_before = (
            {name: value for name, value in values.items() if name not in counts} for values in (numbers, earlier)
        )
        if settings and settings != settings_before:
            (configured,) = (reward for reward in step_config.config.rewards if reward.logged_name == base.name)
            base = replace(base, function=build_rewards([configured])[0].function)
        elif settings:
            base = replace(base, function=self.rewards[number].function)
        return replace(base, **counts)


def _require_rewards(rewards: Sequence[NamedReward], algorithm: Algorithm) -> None:
    names, configured = [reward.name for reward in rewards], [reward.logged_name for reward in algorithm.config.rewards]
    for key in (key for key in algorithm.schedules.keys if key.startswith("rewards.")):
        label, _, number = key.removeprefix("rewards.").rpartition(".")
        if label not in names:
            raise ConfigError(f"{key}: there is no reward '{label}', known are {', '.join(names)}")
        if number not in ("weight", "clip") and label not in configured:
            raise ConfigError(f"{key}: the reward is a live object; of one that rewards: names its numbers can move")
