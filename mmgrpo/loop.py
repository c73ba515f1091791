"""The step of GRPO, as the Trainer runs it: rollout, score, compute advantages, update, update the prompt statistics.

A ``Loop`` holds the state that steps share; ``Loop.at(step, memory)`` is a ``Step`` with one method per phase, in
order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.stream import PromptStream, StepPrompts
from mmgrpo.data.unreadable_rows import prompt_check
from mmgrpo.distributed.job import Job
from mmgrpo.explain.advantage_inputs import require_advantages
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.scoring import NamedReward
from mmgrpo.training.auxiliary import Auxiliaries
from mmgrpo.training.build import build_critic, build_views, optimizer_of, plan_at
from mmgrpo.training.compute_advantages import Advantages, combine_rewards, compute_advantages
from mmgrpo.training.critic import CriticTrainer
from mmgrpo.training.ema import Average
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.prompt_stats import PromptStats, read_prompt_stats, step_prompt_stats, update_prompt_stats
from mmgrpo.training.references import require_movable
from mmgrpo.training.rollout_rounds import OnSamples, Rollouts, UpstreamRollouts, collect_rollouts
from mmgrpo.training.score_rollouts import Rewards, score_rollouts
from mmgrpo.training.step_rewards import StepRewards
from mmgrpo.training.update_policy import UpdateMetrics, UpdatePlan, update_jointly
from mmgrpo.training.views import View
from mmgrpo.types import Prompt


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The state that all steps of a run share; ``owner`` is the loop of the task that owns the policy, None: this
    one."""

    algorithm: Algorithm
    policy: Policy
    scoring: StepRewards
    stream: PromptStream
    job: Job
    average: Average | None
    views: Mapping[str, View]
    optimizer: GuardedOptimizer
    auxiliaries: Auxiliaries
    critic: CriticTrainer | None
    owner: Loop | None = None

    @classmethod
    def of(
        cls, algorithm: Algorithm, policy: Policy, rewards: Sequence[NamedReward], prompts: Sequence[Prompt], *,
        job: Job, device: Any = "cpu", owner: Loop | None = None,
    ) -> Loop:  # fmt: skip
        """Creates the components. Raises ConfigError for a policy that does not support the algorithm."""
        config, parameters = algorithm.config, policy.trainable
        scoring, stream = StepRewards(rewards, algorithm), algorithm.prompt_stream(prompts, prompt_check(policy))
        scoring.move(algorithm.at(0, Memory()))
        job.local_share(range(config.rollout.prompts_per_step), "rollout.prompts_per_step")
        require_movable(policy, config.update.reference)
        require_advantages(algorithm)
        plan_at(algorithm, policy, 0)
        average = owner.average if owner else Average(parameters, config.update.ema) if config.update.ema else None
        return cls(
            algorithm=algorithm, policy=policy, scoring=scoring, stream=stream, job=job, average=average, owner=owner,
            views=build_views(algorithm, policy, device=device, average=average),
            optimizer=owner.optimizer if owner else optimizer_of(algorithm, parameters, job=job, average=average),
            auxiliaries=Auxiliaries(policy, config.objective.auxiliary, seed=config.seed, job=job),
            critic=CriticTrainer(config, build_critic(config, device), job) if config.critic else None,
        )  # fmt: skip

    def at(self, step: int, memory: Memory) -> Step:
        """A step, counted from 0, with schedules and phases applied."""
        algorithm = self.algorithm.at(step, memory)
        self.scoring.move(algorithm)
        if self.owner is None:
            rests = self.critic is not None and self.critic.is_warming_up(step)
            self.optimizer.begin(algorithm.config.update, rests=rests)
        return Step(self, step, memory, algorithm, self.stream.at_step(step, memory))


@final
@dataclass(frozen=True, slots=True)
class Step:
    """One step of a loop: its number from 0, the memory before it, the algorithm at it, and its prompts."""

    loop: Loop
    number: int
    memory: Memory
    algorithm: Algorithm
    prompts: StepPrompts

    def rollout(
        self, on_samples: OnSamples = lambda samples: None, *, upstream: UpstreamRollouts | None = None
    ) -> Rollouts:
        """Samples, or re-scores, the requests of the strategy round by round; the rewards start on the samples."""
        loop, algorithm, templates = self.loop, self.algorithm, upstream.templates if upstream else {}
        chain, functions = algorithm.advantages, loop.scoring.rewards
        with loop.job.gathered_for_rollout(loop.algorithm.config.runtime):
            rollouts = collect_rollouts(
                loop.policy, upstream.strategy if upstream else algorithm.strategy, self.prompts.prompt,
                loop.scoring.scorer, job=loop.job, upstream=upstream, on_samples=on_samples,
                contexts={**algorithm.prompt_templates, **templates},
                setting=algorithm.step_setting(self.number, self.memory, self.prompts.key),
                plan=plan_at(algorithm, loop.policy, self.number),
                reads=algorithm.config.rollout.training_states == "renoised",
                value=partial(combine_rewards, chain=chain, reward_functions=functions, step=self.number),
            )  # fmt: skip
        return loop.critic.valued(rollouts) if loop.critic else rollouts

    def score(self, rollouts: Rollouts) -> Rewards:
        """Waits for the rewards of the samples of all processes."""
        return score_rollouts(rollouts, self.loop.scoring.rewards, step=self.number, job=self.loop.job)

    def compute_advantages(self, rollouts: Rollouts, rewards: Rewards) -> Advantages:
        """The advantage of every decision, and which rows train."""
        return compute_advantages(
            self.loop.policy, rollouts, rewards, self.algorithm.advantages, step=self.number, job=self.loop.job,
            truncated=self.algorithm.config.objective.truncated, views=self.loop.views,
            remembered=partial(read_prompt_stats, self.memory, rewards.root_N, self.prompts.key),
        )  # fmt: skip

    def plan_update(self, advantages: Advantages, before_apply: Callable[[], None] = lambda: None) -> UpdatePlan:
        """The updates of these rows, not yet taken: the objective, auxiliary losses and the critic."""
        loop, config = self.loop, self.loop.algorithm.config
        first_update = self.number * config.update.num_updates
        extra = loop.auxiliaries.extra_gradient(self.algorithm, advantages, first_update)
        extra = loop.critic.extra_gradient(advantages, extra, step=self.number) if loop.critic else extra
        calls = (before_apply, loop.critic.apply) if loop.critic else (before_apply,)
        return UpdatePlan(
            loop.policy, advantages, self.algorithm.objective, job=loop.job, extra_gradient=extra, before_apply=calls,
            weight=config.task.weight if config.task else 1.0,
        )  # fmt: skip

    def update(self, advantages: Advantages) -> Iterator[UpdateMetrics]:
        """Takes the updates: ``update.epochs`` passes over the rows, each in ``update.minibatches``."""
        plan, section = self.plan_update(advantages), self.loop.algorithm.config.update
        yield from (metrics for (metrics,) in update_jointly([plan], self.loop.optimizer, **section.passes))

    def prompt_stats(self, rollouts: Rollouts, rewards: Rewards, advantages: Advantages) -> PromptStats:
        """The statistics of the prompts of the step for the memory, the same on every process."""
        return step_prompt_stats(
            rewards, advantages, self.prompts.key, step=self.number, replay=self.algorithm.strategy.replay,
            requests=rollouts.requests, job=self.loop.job,
        )  # fmt: skip

    def updated_memory(self, stats: PromptStats) -> Memory:
        """The memory after the step."""
        return update_prompt_stats(self.memory, stats, self.loop.stream.learners, replay=self.algorithm.strategy.replay)
