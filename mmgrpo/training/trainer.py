"""The loop: take prompts, roll out, score, form advantages, update, track."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig, TaskConfig
from mmgrpo.config.parts import require_single
from mmgrpo.distributed.job import Job
from mmgrpo.explain.explanation import explanation
from mmgrpo.explain.idle import idle_mechanisms
from mmgrpo.loop import Step
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.runs.alerts import Alert, Watchdog, first_step_notes, watchdog_inputs
from mmgrpo.runs.best import require_best
from mmgrpo.runs.checkpoint import RunPosition, checkpoint_steps
from mmgrpo.runs.folder import ENGINE_LOG, RunFolder
from mmgrpo.runs.prompt_samples import with_preview
from mmgrpo.runs.resuming import plan_resumption, resolve_config
from mmgrpo.runs.sample_files import identity
from mmgrpo.runs.sample_logging import MAX_LOGGED_SAMPLES
from mmgrpo.training.ahead import Completions, require_ahead, sample_ahead
from mmgrpo.training.arguments import (
    RewardArgument,
    ToolFactory,
    policy_of,
    prompts_of,
    rewards_of,
    rewards_of_run,
    rows_of_objects,
    with_policy,
    with_policy_name,
    with_tools,
)
from mmgrpo.training.build import exchange_plan, require_engine_files
from mmgrpo.training.checkpointed_run import CheckpointedRun
from mmgrpo.training.components import Components
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.evaluation import HeldOut, evaluate, probe_rewards
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.run_loop import ALONE, RunContext, RunLoop, Scored, StepUpdates, naming_phase
from mmgrpo.training.task_chain import (
    TaskLink,
    cross_task_rewards,
    held_out_sampler,
    require_complete_rows,
    require_cross_task_rewards,
)
from mmgrpo.training.update_policy import UpdateMetrics
from mmgrpo.types import Prompt, Scores

if TYPE_CHECKING:
    from datasets import Dataset

WARMUP_LINES = 100
"""Lines of ``warmup.jsonl`` that a long warm-up has; one of fewer updates has a line for each."""


class Trainer:
    """Trains a policy from rewards.

    Attributes:
        policy: the trained policy.
        config: how.
        step: steps begun.
        status: how the run ended; running until then.
    """

    def __init__(
        self,
        policy: Policy | str | Path | None,
        rewards: RewardArgument | Sequence[RewardArgument] | Mapping[str, Callable[..., Any]] | None,
        prompts: str | Path | Dataset | Sequence[Prompt | str | Mapping[str, Any]] | None = None,
        config: RunConfig | Mapping[str, Any] | None = None,
        *,
        tools: Sequence[Callable[..., Any]] | None = None,
        environment_factory: ToolFactory | None = None,
        accelerator: Accelerator | None = None,
        resume: Path | str | None = None,
        before: Mapping[str, Trainer] | None = None,
        evaluation_prompts: str | Path | Dataset | Sequence[Prompt | str | Mapping[str, Any]] | None = None,
    ) -> None:
        """Checks everything that can be checked before the first sample.

        Args:
            policy: the policy, on its device; or the path or hub id of a model or pipeline, which is loaded; None: that
                of the section ``policy`` of the configuration.
            rewards: one or several functions of samples (or in TRL's form) or registered names; a mapping names them;
                None: those of ``environment_factory``, or of the section ``rewards``.
            prompts: the prompts: texts, rows of columns or ``Prompt``s, a dataset, or its source; None: the objects of
                ``environment_factory`` write them, or they are those of the section ``prompts``.
            config: a ``RunConfig`` or its values; ``policy``, ``prompts`` and ``rewards`` sections are not needed for
                what is passed.
            tools: functions that the policy may call, as in TRL.
            environment_factory: makes an object for each sample, whose public methods are tools, as in TRL.
            accelerator: accelerate's view of the processes; created if None.
            resume: a run folder or a checkpoint to resume from.
            before: for a task of a mixed run, which runs its steps, the tasks before it.
            evaluation_prompts: the held-out prompts, in a form of ``prompts``; None: those of ``evaluation.prompts``.
        """
        self.config = with_policy(policy, resolve_config(with_policy_name(config, policy), resume))
        self.config = with_tools(self.config, tools, environment_factory)
        loaded_prompts = prompts_of(rows_of_objects(prompts, self.config, environment_factory), self.config.prompts)
        self.job = Job.of(self.config, accelerator)
        resumption = self.job.run_on_main(lambda: plan_resumption(Path(resume), self.config)) if resume else None
        self.config = resumption.config if resumption else self.config
        require_single(self.config, mixed=before is not None)
        self.algorithm = Algorithm.of(self.config)  # a wrong function or number is an error before any model is loaded
        self.algorithm.at(0, Memory())  # and a wrong value of a schedule
        require_ahead(self.algorithm, is_task=before is not None)
        require_engine_files(self.algorithm)
        run_rewards = rewards_of_run(
            rewards_of(rewards, environment_factory, self.config.rewards), self.config, loaded_prompts
        )
        self.rewards = run_rewards.named
        if before is None:
            require_cross_task_rewards("", [reward.function for reward in self.rewards], {})
        task = self.config.rollout.task or TaskConfig()
        self._leader = before[task.after] if before and task.after else None
        owner = before[task.policy_of].components if before and task.policy_of else None
        with self.job.deferred_placement():
            self.policy = policy = policy_of(policy, self.config, self.job.device)
            if owner is None:
                self.job.distribute(policy)
        leader = self._leader
        self.task_link = None
        if leader is not None:
            require_complete_rows(leader.algorithm)
            self.task_link = TaskLink(
                leader.policy,
                self.algorithm,
                plan=exchange_plan(leader.config),
                average=leader.average,
                before=leader.task_link,
            )
        components = Components.of(self.algorithm, policy, self.rewards, loaded_prompts, job=self.job, owner=owner)
        self.components = components
        self.parameters, self.optimizer, self.average = policy.trainable, components.optimizer, components.average
        self.stream, self.critic, self.warmup = components.stream, components.critic, components.warmup
        self.held_out = HeldOut.of(self.config, self.rewards, policy, evaluation_prompts)
        self.held_out_sampler = held_out_sampler(self.algorithm, self.job, self.task_link)
        require_best(self.config, self.held_out.scorer.names)
        names = components.rewards.scorer.names, self.held_out.scorer.names
        subject = watchdog_inputs(self.config, *names, checkpoints=lambda: checkpoint_steps(self.folder.path))
        self.watchdog = Watchdog(subject) if subject and self.job.is_main else None
        self.status = "running"
        self._ahead_s = 0.0  # seconds that the rollout of the step took in the step before, besides its updates
        self._explanation = explanation(run_rewards.explained(self.config))
        set_seed(self.config.seed)
        self.session = CheckpointedRun(components, self.config, resumption)
        self.step = self.session.start.step

    @property
    def folder(self) -> RunFolder:
        """The run folder, which a new run has once it trains."""
        return self.session.folder

    def train(self) -> Path:
        """Runs to the end, or to the next complete step after Ctrl-C or SIGTERM.

        At any end there is a checkpoint of the last complete step, and the command to resume is printed.

        Returns:
            The run folder.
        """
        RunLoop({ALONE: self}, self.config, self.job, step=self.step).train()
        return self.folder.path

    def begin(self, context: RunContext) -> None:
        """Prepares the folder, starts the engine, passes earlier lines to the watchdog, and tries the rewards."""
        self._context = context
        further = [*(self.critic.parameters if self.critic else ()), *self.components.weight_sets.parameters]
        self.job.broadcast_weights([*self.parameters, *further])
        for note in (*idle_mechanisms(self.algorithm), *self.session.begin(self._explanation, self._context.within)):
            self._context.progress.print_line(note)
        context.resources.enter_context(self.components.engine(self.folder.path / ENGINE_LOG))
        if self.watchdog and self.session.resumption:
            alerts = self.watchdog.replay(self.folder.lines("metrics.jsonl"), self.folder.lines("evaluation.jsonl"))
            logged = {(row["step"], row["kind"]) for row in self.folder.lines("alerts.jsonl")}
            unlogged = [alert for alert in alerts if alert.step == self.step and (alert.step, alert.kind) not in logged]
            self._raise_alerts(unlogged)  # a process may have been killed before it gave them
        if self._warms_up():
            scorers = [self.components.rewards.scorer, *([self.held_out.scorer] if self.config.held_out else [])]
            with naming_phase("the rollout", self.step):
                prompt = self.stream.at_step(0).prompt(0)
                self.job.run_on_all(lambda: None if self.job.rank else probe_rewards(self.policy, prompt, scorers))

    def warm_up(self) -> None:
        """Before the first step: supervised updates, if there are any, and an evaluation."""
        self._warm_up()
        if self.warmup and not self.step and self.warmup.finished_step != self.warmup.config.steps:
            return  # stopped: the parts after the warm-up start once it is finished
        if not self.step:
            self.components.start()
        with naming_phase("the evaluation", self.step):
            self.evaluate()

    def rollout(self, before: Mapping[str, Rollouts]) -> Rollouts:
        """Samples the rollouts of the step; the rewards start on them."""
        clock, upstream = time.perf_counter(), None
        self._step = Step.of(self.components, self.step, self.session.memory)
        if self._leader and self.task_link:
            self._step.prompts = self._leader._step.prompts
            upstream = self.task_link.followed(before, self.job)
        rollout = self._step.algorithm.config.rollout
        size = rollout.prompts_per_step // self.job.size * rollout.group_size
        give_up = self._context.stopping.raise_if_terminated_alone
        rollouts = self._step.rollout(self._context.progress.track("rollout", size, give_up), upstream=upstream)
        self._rollout_s = self._ahead_s + time.perf_counter() - clock
        self._ahead_s = 0.0
        return rollouts

    def score(self, rollouts: Rollouts, after: Mapping[str, Scored]) -> Scored:
        """Waits for the rewards and computes the advantages."""
        clock = time.perf_counter()
        self._context.progress.track("reward")
        self._context.stopping.raise_if_terminated()
        with cross_task_rewards(self.components.rewards.rewards, after):
            rewards = self._step.score(rollouts)
        advantages = self._step.compute_advantages(rollouts, rewards)
        self._step.metrics |= {"time/rollout_s": self._rollout_s, "time/reward_s": time.perf_counter() - clock}
        self._context.stopping.raise_if_terminated()
        return rewards, advantages

    def update(self, rollouts: Rollouts, scored: Scored) -> StepUpdates:
        """Begins the updates of the step."""
        rewards, advantages = scored
        self.step += 1
        self._save_samples(advantages, rewards.scores)
        clock, collect = time.perf_counter(), None
        if self.algorithm.steps_ahead and self.step < self.config.steps:
            collect = sample_ahead(self.components, self.step, self.session.memory)
            self._ahead_s = time.perf_counter() - clock
        self._context.progress.track(f"update 1 of {self.config.update.num_updates}")
        return StepUpdates(
            self._step.plan_update(advantages, self._begin_update),
            on_update=partial(self._log_update, scored),
            on_finish=partial(self._finish_step, rollouts, scored),
            on_step=partial(self._collect_ahead, collect),
        )

    def _log_update(self, scored: Scored, update: UpdateMetrics) -> None:
        if update.applied.skipped:
            self._log_skipped(update, scored)
        self._log("metrics.jsonl", self._step.log_update(update))
        if update.number + 1 < self.config.update.num_updates:
            self._context.progress.track(f"update {update.number + 2} of {self.config.update.num_updates}")

    def _finish_step(self, rollouts: Rollouts, scored: Scored) -> None:
        """Alerts of the step; then the reference and the memory."""
        log = self._step.log
        assert log is not None
        self._context.progress.log_step(log.last)
        if self.step == 1:
            for note in first_step_notes(log.summary, self.config.objective.noise_limit):
                self._context.progress.print_line(note)
        self._raise_alerts(self.watchdog.after_step(log.summary) if self.watchdog else [])
        self._step.move_reference()
        self.session.memory = replace(self._step.updated_memory(rollouts, *scored), ahead={})
        self.session.finished_step = self.step

    def _collect_ahead(self, collect: Callable[[], Completions] | None) -> None:
        """Waits for the samples of the next step; the memory has them, and so the checkpoint of this step."""
        if collect is not None:
            clock = time.perf_counter()
            self._context.progress.track("rollout")
            self.session.memory = replace(self.session.memory, ahead=collect())
            self._ahead_s += time.perf_counter() - clock

    def _begin_update(self) -> None:
        self.session.finished_step = None

    def _raise_alerts(self, alerts: Sequence[Alert]) -> None:
        """Logs alerts; one of a kind in ``watchdog.stop`` ends the run after this step, with a checkpoint."""
        for alert in alerts:
            self._log("alerts.jsonl", alert.as_line())
            self._context.progress.log_alert(alert)
            if self.config.watchdog and alert.kind in self.config.watchdog.stop:
                self._context.stopping.stop_after_alert(alert.kind)

    def _log_skipped(self, update: UpdateMetrics, scored: Scored) -> None:
        """Names and saves the samples, of all processes, whose gradient is not finite."""
        rewards, advantages = scored
        local_rows = [
            (advantages.local_rows.start + row, advantages.rollout.samples[row]) for row in update.nonfinite_rows
        ]
        all_rows = [row for part in self.job.gather(local_rows) for row in part]
        rows, samples = [row for row, _ in all_rows], [sample for _, sample in all_rows]
        if self.job.is_main:
            advantage_B = advantages.advantage_N[rows]
            named = [
                identity(sample) | {"advantage": float(a)}
                for sample, a in zip(samples, advantage_B.tolist(), strict=True)
            ]
            self.folder.log("skipped.jsonl", {"step": self.step, "update": update.number, "samples": named})
            if samples:
                previews = [with_preview(self.policy, sample) for sample in samples]
                self.folder.save_skipped(self.step, update.number, previews, rewards.scores.rows(rows), advantage_B)
        self._context.progress.log_skipped_update(self.step, [f"{sample.group}.{sample.member}" for sample in samples])

    def _save_samples(self, advantages: Advantages, scores: Scores) -> None:
        """Saves the first groups of texts of the step, at the first step and where an evaluation is due."""
        samples, group_size = advantages.rollout.samples, self._step.algorithm.config.rollout.group_size
        num_saved = self.config.rollout.saved_groups * group_size
        is_due = self.step in (1, self.config.steps) or self._evaluation_is_due()
        if num_saved and is_due and self.job.is_main and samples[0].text is not None:
            self.folder.save_rollout(self.step, samples[:num_saved], scores, advantages.advantage_N)

    def _evaluation_is_due(self) -> bool:
        evaluation = self.config.held_out
        return evaluation is not None and (self.step % evaluation.every == 0 or self.step == self.config.steps)

    def _warm_up(self) -> None:
        if self.warmup is None or not self._warms_up():
            return
        clock, saves = time.perf_counter(), self.config.checkpoint.warmup_every
        every, progress = max(self.warmup.config.steps // WARMUP_LINES, 1), self._context.progress
        progress.start_warmup()
        for warmup_step in self.warmup.run(self.session.start.warmup_step, self._context.stopping.is_stopping):
            progress.log_warmup_step(warmup_step)
            if warmup_step.step % every == 0 or warmup_step.step in (1, self.warmup.config.steps):
                took = time.perf_counter() - clock
                self._log(
                    "warmup.jsonl",
                    {"step": warmup_step.step, "loss": warmup_step.loss, "lr": warmup_step.lr, "time_s": took},
                )
            if (saves and warmup_step.step % saves == 0) or warmup_step.step == self.warmup.config.steps:
                self.session.save(RunPosition(step=0, warmup_step=warmup_step.step))

    def _warms_up(self) -> bool:
        return self.warmup is not None and not self.step and self.session.start.warmup_step < self.warmup.config.steps

    def evaluate(self) -> None:
        """Evaluates the averaged weights if there are any, the trained ones otherwise, where an evaluation is due."""
        config = self.config.held_out
        is_due = self._evaluation_is_due() and self.step not in self.session.evaluated
        if config is None or not is_due or self._context.stopping.is_stopping():
            return
        clock = time.perf_counter()
        share = len(self.held_out.prompts[self.job.rank :: self.job.size])
        progress, give_up = self._context.progress, self._context.stopping.raise_if_terminated_alone
        taken = progress.track("evaluation", share * config.samples_per_prompt, give_up)
        averaged = self.average.applied() if self.average else nullcontext()
        with averaged, self.job.gathered_for_rollout(self.config.runtime):
            result = evaluate(
                self.policy,
                self.held_out.prompts,
                self.held_out.scorer,
                config,
                self.held_out_sampler,
                plan=exchange_plan(self.config),
                on_samples=taken,
            )
        self.session.evaluated.add(self.step)
        if result is not None:
            line = {"step": self.step, **result.metrics(), "time/evaluation_s": time.perf_counter() - clock}
            self.folder.save_samples(self.step, *result.preview(config.saved_samples))
            if self.job.trackers.is_active:
                self._context.show(self.step, *result.preview(MAX_LOGGED_SAMPLES))
            self._log("evaluation.jsonl", line)
            progress.log_evaluation(line)
            self.session.report()
            self._raise_alerts(self.watchdog.after_evaluation(line) if self.watchdog else [])
        self.session.keep_best(drops=self._context.within is None)  # of tasks, old ones go once all have theirs

    def _log(self, file: str, line: dict[str, Any]) -> None:
        if self.job.is_main:
            self.folder.log(file, line)
        self._context.log(file, line)
