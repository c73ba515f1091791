"""The components that all steps of a run share, each created once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.stream import PromptStream
from mmgrpo.data.unreadable_rows import prompt_check, require_media
from mmgrpo.distributed.job import Job
from mmgrpo.explain.advantage_inputs import require_advantages
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.runs.progress import WarmupStep
from mmgrpo.scoring import NamedReward
from mmgrpo.training.auxiliary import Auxiliaries
from mmgrpo.training.build import build_critic, build_views, optimizer_of, plan_at, require_images
from mmgrpo.training.critic import CriticTrainer
from mmgrpo.training.ema import Average
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.references import ensure_reference, require_movable
from mmgrpo.training.step_rewards import StepRewards
from mmgrpo.training.views import View
from mmgrpo.training.warmup import Warmup, warmup_of
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
        device: Any = "cpu",
        owner: Components | None = None,
    ) -> Components:
        """Creates the components.

        Args:
            algorithm: of the run.
            policy: the policy, on its device.
            rewards: the rewards.
            prompts: all prompts of the run.
            job: the processes.
            device: of further models: the critic, and the policies of views.
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
        step_rewards.move(algorithm.at(0, Memory()))
        job.local_share(range(config.rollout.prompts_per_step), "rollout.prompts_per_step")
        require_movable(policy, config.update.reference)
        require_advantages(algorithm)
        plan_at(algorithm, policy, 0)
        average = owner.average if owner else Average(parameters, config.update.ema) if config.update.ema else None
        return cls(
            algorithm=algorithm,
            policy=policy,
            rewards=step_rewards,
            stream=stream,
            job=job,
            average=average,
            views=build_views(algorithm, policy, device=device, average=average),
            optimizer=owner.optimizer if owner else optimizer_of(algorithm, parameters, job=job, average=average),
            auxiliaries=Auxiliaries(policy, config.objective.auxiliary, seed=config.seed, job=job),
            critic=CriticTrainer(config, build_critic(config, device), job) if config.critic else None,
            warmup=warmup_of(policy, config, job),
            owner=owner,
        )

    def warm_up(self) -> Iterator[WarmupStep]:
        """The supervised steps before the first step of GRPO, one per item, if there are any; then ``start``."""
        if self.warmup:
            yield from self.warmup.run(0, lambda: False)
        self.start()

    def start(self) -> None:
        """Makes the current weights the reference, and the first weights of the average."""
        ensure_reference(self.policy, self.algorithm.at(0, Memory()))
        if self.average:
            self.average.restart()
