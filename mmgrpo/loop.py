"""A step of GRPO as the Trainer takes it: the methods of ``Step.of(components, number, memory)`` in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, final

from mmgrpo.algorithm import Algorithm
from mmgrpo.data.stream import StepPrompts
from mmgrpo.errors import StepError
from mmgrpo.memory import Memory
from mmgrpo.policy import SupportsUnbatchedRows
from mmgrpo.training.build import plan_at
from mmgrpo.training.components import Components
from mmgrpo.training.compute_advantages import Advantages, combine_rewards, compute_advantages
from mmgrpo.training.optimizer import move_reference
from mmgrpo.training.prompt_stats import read_prompt_stats, step_prompt_stats, update_prompt_stats
from mmgrpo.training.rollout_rounds import OnSamples, Rollouts, UpstreamRollouts, collect_rollouts
from mmgrpo.training.score_rollouts import Rewards, score_rollouts
from mmgrpo.training.step_metrics import UNBATCHED_ROWS, StepLog, step_metrics
from mmgrpo.training.update_policy import UpdateMetrics, UpdatePlan, update_jointly


@final
@dataclass(slots=True)
class Step:
    """One step: its number from 0, the memory before it, the algorithm at it, its prompts, its metrics and its log."""

    components: Components
    number: int
    memory: Memory
    algorithm: Algorithm
    prompts: StepPrompts
    metrics: dict[str, Any] = field(default_factory=dict)
    log: StepLog | None = None
    is_updated: bool = False

    @classmethod
    def of(cls, components: Components, number: int, memory: Memory) -> Step:
        """A step, counted from 0, with schedules applied."""
        algorithm = components.algorithm.at(number, memory)
        components.rewards.apply_schedules(algorithm)
        if components.owner is None:  # in a mixed run the owner of the optimizer begins it
            critic_warms_up = components.critic is not None and components.critic.is_warming_up(number)
            components.optimizer.begin(algorithm.config.update, is_frozen=critic_warms_up)
        return cls(components, number, memory, algorithm, components.stream.at_step(number, memory))

    def rollout(self, on_samples: OnSamples = lambda _: None, upstream: UpstreamRollouts | None = None) -> Rollouts:
        """Generates samples, or reads recorded ones, as the strategy requests round by round; scoring starts on them.

        ``on_samples`` gets the samples of each call; ``upstream`` has those of earlier tasks, if the prompts need them.
        """
        components, algorithm, rewards = self.components, self.algorithm, self.components.rewards
        templates = {**algorithm.prompt_templates, **(upstream.templates if upstream else {})}
        combine = partial(combine_rewards, reward_functions=rewards.rewards, chain=algorithm.advantages)
        with components.job.gathered_for_rollout(components.algorithm.config.runtime):
            rollouts = collect_rollouts(
                components.policy,
                upstream.strategy if upstream else algorithm.strategy,
                self.prompts.prompt,
                rewards.scorer,
                setting=algorithm.step_setting(self.number, self.memory, self.prompts.key),
                plan=plan_at(algorithm, components.policy, self.number, self.memory),
                job=components.job,
                value=partial(combine, step=self.number),
                prompt_templates=templates,
                renoise=algorithm.config.rollout.training_states == "renoised",
                on_samples=on_samples,
                upstream=upstream,
            )
        return components.critic.with_values(rollouts) if components.critic else rollouts

    def score(self, rollouts: Rollouts) -> Rewards:
        """Waits for the rewards of the samples of all processes."""
        rewards, is_downstream = self.components.rewards.rewards, self.algorithm.task_template is not None
        return score_rollouts(rollouts, rewards, step=self.number, job=self.components.job, is_downstream=is_downstream)

    def compute_advantages(self, rollouts: Rollouts, rewards: Rewards) -> Advantages:
        """The advantage of every decision, and which rows train; with them the metrics of the step."""
        components, algorithm = self.components, self.algorithm
        advantages = compute_advantages(
            components.policy,
            rollouts,
            rewards,
            algorithm,
            step=self.number,
            job=components.job,
            memory_column=partial(read_prompt_stats, self.memory, rewards.root_N, self.prompts.key),
            views=components.views,
        )
        functions, prompt_of, job = components.rewards.rewards, self.prompts.prompt, components.job
        self.metrics = step_metrics(
            rollouts, rewards, advantages, algorithm=algorithm, prompt_of=prompt_of, reward_functions=functions, job=job
        )
        if components.stream.skips:
            self.metrics["prompts/unreadable"] = self.prompts.num_replaced
        if self.metrics.get(UNBATCHED_ROWS) and isinstance(components.policy, SupportsUnbatchedRows):
            components.policy.disable_row_batching()
        return advantages

    def plan_update(self, advantages: Advantages, before_apply: Callable[[], None] = lambda: None) -> UpdatePlan:
        """The updates of these rows, before the first is taken: the objective, auxiliary losses and the critic."""
        components, critic, config = self.components, self.components.critic, self.components.algorithm.config
        advantages = components.weight_sets.update(self.algorithm, advantages, self.number, self.metrics, before_apply)
        self.log = StepLog(self.number, self.metrics, advantages, components.job)
        first_update = self.number * config.update.num_updates
        extra = components.auxiliaries.extra_gradient(self.algorithm, advantages, first_update)
        return UpdatePlan(
            components.policy,
            advantages,
            self.algorithm.objective,
            job=components.job,
            weight=config.rollout.task.weight if config.rollout.task else 1.0,
            before_apply=(before_apply, critic.apply) if critic else (before_apply,),
            extra_gradient=critic.extra_gradient(advantages, extra, step=self.number) if critic else extra,
        )

    def update(self, advantages: Advantages) -> Iterator[UpdateMetrics]:
        """Takes an update with each item, ``update.epochs`` times ``update.minibatches``; iterate to the end."""
        plan, passes = self.plan_update(advantages), self.components.algorithm.config.update.passes
        for (update,) in update_jointly([plan], self.components.optimizer, **passes):
            self.log_update(update)
            yield update
        self.move_reference()

    def log_update(self, update: UpdateMetrics) -> dict[str, Any]:
        """The metrics of the step and of one of its updates, over all processes. A collective."""
        assert self.log is not None
        return self.log.line(update, self.algorithm.schedules, self.components.critic)

    def move_reference(self) -> None:
        """Moves the reference after the updates, as ``update.reference`` states; the step has no further updates."""
        self.is_updated = True
        if self.components.owner is None:
            reference = self.components.algorithm.config.update.reference
            move_reference(self.components.policy, reference, self.number + 1, self.components.optimizer)

    def updated_memory(self, rollouts: Rollouts, rewards: Rewards, advantages: Advantages) -> Memory:
        """The memory after the updates: prompts, rows to replay, schedules. StepError if updates were not taken."""
        if self.log is None or not self.is_updated:
            raise StepError("the updates of the step are not complete: iterate over step.update(advantages) to its end")
        replay, key, job = self.algorithm.strategy.replay, self.prompts.key, self.components.job
        requests, seed = rollouts.requests, rollouts.seed
        stats = step_prompt_stats(
            rewards, advantages, key, step=self.number, replay=replay, job=job, requests=requests, seed=seed
        )
        memory = update_prompt_stats(self.memory, stats, self.components.stream.learners, replay=replay)
        return self.algorithm.schedules.updated(memory, self.log.last)
