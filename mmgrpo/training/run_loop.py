"""The loop of a run: the steps of its tasks, and a checkpoint of a complete step however the run ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, final

from mmgrpo.config import RunConfig, TaskConfig
from mmgrpo.distributed.heartbeat import Heartbeat
from mmgrpo.distributed.job import Job
from mmgrpo.errors import MmgrpoError, OutOfMemoryError, ProcessLostError
from mmgrpo.runs.folder import RunFolder
from mmgrpo.runs.progress import RunProgress
from mmgrpo.runs.sample_logging import log_samples
from mmgrpo.runs.stopping import StopRequests, Terminated
from mmgrpo.system.model_residence import offload_models
from mmgrpo.system.out_of_memory import free_memory_of, is_out_of_memory
from mmgrpo.system.site_pages import page_url
from mmgrpo.training.checkpointed_run import CheckpointedRun
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.update_policy import UpdateMetrics, UpdatePlan, update_jointly
from mmgrpo.types import Sample, Scores

Scored = tuple[Rewards, Advantages]
"""The rewards of a task's samples and the advantages computed from them."""

ALONE = ""
"""The name of the task of a run that has no others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """The state that the tasks of a run share; a single run has it alone.

    Attributes:
        progress: the progress of the task.
        stopping: the requested stop, of all tasks.
        log: takes the lines of a task, by file, in addition to the task's folder.
        show: takes the samples of an evaluation, and their scores, at a step of the task.
        resources: contexts that end with the run, such as that of an inference server.
        within: the parent of the task's folder; None: that of its configuration.
    """

    progress: RunProgress
    stopping: StopRequests
    log: Callable[[str, Mapping[str, Any]], None]
    show: Callable[[int, Sequence[Sample], Scores], None]
    resources: ExitStack
    within: Path | None = None


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """The updates of a task at a step.

    Attributes:
        plan: the updates.
        on_update: called after every update.
        on_finish: called after the last update.
        on_step: called once the run counts the step as taken, before its checkpoint.
    """

    plan: UpdatePlan
    on_update: Callable[[UpdateMetrics], None]
    on_finish: Callable[[], None]
    on_step: Callable[[], None]


class Task(Protocol):
    """A task that is trained step by step; a ``Trainer`` is one.

    Until the first update of a step the weights are those of the step before.

    Attributes:
        config: of the task.
        status: how the run ended; running until then.
        session: its run folder and checkpoints.
        optimizer: of its policy.
    """

    config: RunConfig
    status: str
    session: CheckpointedRun
    optimizer: GuardedOptimizer

    def begin(self, context: RunContext) -> None:
        """Prepares the run folder and tries the rewards."""

    def warm_up(self) -> None:
        """The supervised warm-up and the evaluation before the first step."""

    def rollout(self, before: Mapping[str, Rollouts]) -> Rollouts:
        """Samples the rollouts of the step, with those of the tasks before it."""
        ...

    def score(self, rollouts: Rollouts, after: Mapping[str, Scored]) -> Scored:
        """Waits for the rewards and computes the advantages, with those of the tasks after it."""
        ...

    def update(self, rollouts: Rollouts, scored: Scored) -> StepUpdates:
        """Begins the updates of the step."""
        ...

    def evaluate(self) -> None:
        """Evaluates the weights on held-out prompts, where an evaluation is due."""


class MixedRun(Protocol):
    """The folder of a mixed run around those of its tasks."""

    def begin(self) -> Path:
        """Prepares the folder before those of the tasks; returns it."""
        ...

    def rewrite_logs(self) -> None:
        """Writes the lines of all tasks, once these are at their resumed position, to the files of the run."""

    def log(self, name: str, file: str, line: Mapping[str, Any]) -> None:
        """Takes the lines of a task."""

    def log_samples(self, name: str, step: int, samples: Sequence[Sample], scores: Scores) -> None:
        """Takes the samples of an evaluation of a task."""

    def saved(self) -> None:
        """All tasks have a checkpoint of the same step."""

    def end(self, status: str, failure: BaseException | None) -> list[str]:
        """Records the end of the run; returns messages for the user."""
        ...


@final
class RunLoop:
    """Takes the steps of one task, or of several: all roll out, all are scored, all update.

    Tasks roll out and update in their order, those of one policy in the same updates, and are scored in the reverse
    order: a task may have the samples of an earlier task in its prompts, and be rewarded by those of a later one.

    A step that is abandoned before the first update leaves all weights at the step before.

    Attributes:
        step: steps that all tasks have taken.
    """

    def __init__(
        self,
        tasks: Mapping[str, Task],
        config: RunConfig,
        job: Job,
        *,
        step: int = 0,
        mixed_run: MixedRun | None = None,
    ) -> None:
        """Begins nothing yet.

        Args:
            tasks: by name, in their order; one that is alone is ``ALONE``.
            config: of the run.
            job: the processes.
            step: steps that were taken before.
            mixed_run: the folder of the run around several tasks; None: a single task.
        """
        self.step = step
        self._tasks = dict(tasks)
        self._config = config
        self._job = job
        self._mixed_run = mixed_run
        self._stopping = StopRequests(job)
        self._heartbeat = Heartbeat(job, timeout_s=config.runtime.heartbeat_timeout_s)
        self._progress = self._create_progress()

    def train(self) -> str:
        """Runs to the end, or to the next complete step after Ctrl-C or SIGTERM.

        Returns:
            How it ended.
        """
        sessions = [task.session for task in self._tasks.values()]
        status, failure = "failed", None
        listening = self._stopping.handle_signals(), self._heartbeat.running(self._abandon)
        with ExitStack() as resources, listening[0], listening[1], next(iter(self._progress.values())) as progress:
            if all(session.is_over() for session in sessions):
                if self._mixed_run:
                    self._mixed_run.end("finished", None)
                progress.print_line(f"nothing to do: {self._where()} is at step {self.step} of {self._config.steps}")
                self._end("finished")
                return "finished"
            try:
                self._begin(resources)
                with naming_phase("the warm-up", self.step):
                    for task in self._tasks.values():
                        task.warm_up()
                while self.step < self._config.steps and not self._stopping.is_stopping():
                    self._train_step()
                self._save()
                done = all(task.session.is_done(task.session.position) for task in self._tasks.values())
                status = self._stopping.alert_status or ("finished" if done else self._stopping.status)
            except (Terminated, KeyboardInterrupt) as interruption:
                status = self._stopping.status
                if isinstance(interruption, KeyboardInterrupt):
                    raise
                self._rescue(together=True)
            except BaseException as error:
                together = error is self._job.shared_error
                failure = error if together else self._heartbeat.root_cause(error)
                self._rescue(together=together)
                if failure is error:
                    raise
                raise failure from error
            finally:
                for line in [*self._job.trackers.finish(), *self._closed(status, failure)]:
                    progress.print_line(line)
        return status

    def _begin(self, resources: ExitStack) -> None:
        within = self._mixed_run.begin() if self._mixed_run else None
        for name, task in self._tasks.items():
            log = partial(self._mixed_run.log, name) if self._mixed_run else self._log
            show = (
                partial(self._mixed_run.log_samples, name)
                if self._mixed_run
                else partial(log_samples, self._job.trackers)
            )
            task.begin(
                RunContext(
                    progress=self._progress[name],
                    stopping=self._stopping,
                    log=log,
                    show=show,
                    resources=resources,
                    within=within,
                )
            )
        if self._mixed_run:
            self._mixed_run.rewrite_logs()

    def _train_step(self) -> None:
        """One step of GRPO of every task that takes part in it."""
        tasks = {name: task for name, task in self._tasks.items() if self.step % _role(task).every == 0}
        rollouts: dict[str, Rollouts] = {}
        self._offload_rewards()
        with naming_phase("the rollout", self.step + 1):
            for name, task in tasks.items():
                rollouts[name] = task.rollout(rollouts)
        scored: dict[str, Scored] = {}
        with naming_phase("judging", self.step + 1):
            for name, task in reversed(tasks.items()):
                scored[name] = task.score(rollouts[name], scored)
        self._offload_rewards()
        step_updates: list[StepUpdates] = []
        with naming_phase("the update", self.step + 1):
            for owner, task in tasks.items():
                if not _role(task).policy_of:
                    names = [name for name in self._training(owner) if name in tasks]
                    step_updates += self._update(names, rollouts, scored)
        self.step += 1
        for updates in step_updates:
            updates.on_step()
        every = self._config.checkpoint.every
        if (every and self.step % every == 0) or self.step == self._config.steps:
            self._save()
        with naming_phase("the evaluation", self.step):
            for task in tasks.values():
                task.evaluate()

    def _offload_rewards(self) -> None:
        if self._config.runtime.offload_rewards:
            offload_models()

    def _update(
        self, names: Sequence[str], rollouts: Mapping[str, Rollouts], scored: Mapping[str, Scored]
    ) -> Sequence[StepUpdates]:
        """Takes the updates of the tasks that train one policy, its owner first; returns them."""
        owner = self._tasks[names[0]]
        step_updates = [self._tasks[name].update(rollouts[name], scored[name]) for name in names]
        plans = [updates.plan for updates in step_updates]
        for all_metrics in update_jointly(plans, owner.optimizer, **owner.config.update.passes):
            for updates, metrics in zip(step_updates, all_metrics, strict=True):
                updates.on_update(metrics)
        for updates in step_updates:
            updates.on_finish()
        return step_updates

    def _training(self, owner: str) -> list[str]:
        """The tasks that train a task's policy: itself, and those that have theirs of it."""
        return [owner, *(name for name, task in self._tasks.items() if _role(task).policy_of == owner)]

    def _save(self) -> None:
        """A checkpoint of every task; old ones are deleted once all have theirs, so that one step is always
        complete."""
        for task in self._tasks.values():
            assert task.session.position is not None
            task.session.save(task.session.position, drops=self._mixed_run is None)
        if self._mixed_run:
            for task in self._tasks.values():
                task.session.delete_old_checkpoints()
            self._mixed_run.saved()

    def _rescue(self, *, together: bool) -> None:
        """Saves the last complete step before an early end: all tasks at the same step, or none."""
        positions = [(task, task.session.position) for task in self._tasks.values()]
        if all(position and position.step == task_step(self.step, task.config) for task, position in positions):
            for task, position in positions:
                task.session.rescue(position, drops=self._mixed_run is None, together=together)

    def _closed(self, status: str, failure: BaseException | None) -> list[str]:
        self._end(status)
        if failure is not None and self._heartbeat.replaces_main():
            self._record(failure)
        lines = [line for task in self._tasks.values() for line in task.session.end(status, failure)]
        return self._mixed_run.end(status, failure) if self._mixed_run else lines

    def _abandon(self, failure: ProcessLostError) -> None:
        """Ends the run on another thread than its own, which waits for a process that is gone."""
        self._rescue(together=False)
        self._closed("failed", failure)

    def _end(self, status: str) -> None:
        for task in self._tasks.values():
            task.status = status

    def _record(self, failure: BaseException) -> None:
        """Records how the run ended when the main process is gone."""
        folders = [task.session.folder for task in self._tasks.values()]
        for folder in [*folders, *([RunFolder(folders[0].path.parent)] if self._mixed_run else [])]:
            if folder.header().get("status") == "running":
                folder.close("failed", failure)

    def _where(self) -> Path:
        folder = next(iter(self._tasks.values())).session.folder.path
        return folder.parent if self._mixed_run else folder

    def _log(self, file: str, line: Mapping[str, Any]) -> None:
        self._job.trackers.log({key: value for key, value in line.items() if "/" in key}, line["step"])

    def _create_progress(self) -> dict[str, RunProgress]:
        """The progress of each task: one console, with bars or lines that name them."""
        progress_of_task: dict[str, RunProgress] = {}
        for name, task in self._tasks.items():
            progress_of_task[name] = RunProgress(
                task.config,
                quiet=not self._job.is_main,
                start=task.session.start,
                num_processes=self._job.size,
                name=name,
                parent=next(iter(progress_of_task.values()), None),
            )
        return progress_of_task


def task_step(step: int, config: RunConfig) -> int:
    """How many steps a task has taken when the run has taken so many."""
    return -(-step // (config.rollout.task or TaskConfig()).every)


def _role(task: Task) -> TaskConfig:
    return task.config.rollout.task or TaskConfig()


_ROLLOUT = "lower policy.rollout_batch, or set runtime.gather_for_rollout: false where the model is sharded"
_UPDATE = (
    "lower policy.update_batch (images and videos) or policy.update_tokens (texts), or set "
    "policy.gradient_checkpointing: true; runtime.offload_rewards: true moves models of rewards to the CPU"
)
REMEDIES = {
    "the warm-up": _UPDATE,
    "the rollout": _ROLLOUT,
    "judging": "lower policy.rollout_batch, or run the rewards on another machine (mmgrpo serve-rewards)",
    "the update": _UPDATE,
    "the evaluation": f"{_ROLLOUT}, or run the rewards on another machine (mmgrpo serve-rewards)",
}
"""Suggestions to save memory, by the phase of a step."""


@contextmanager
def naming_phase(phase: str, step: int) -> Iterator[None]:
    """If memory runs out within it, its tensors are freed, so that the last complete step can still be saved.

    Args:
        phase: one of ``REMEDIES``.
        step: that was being taken.

    Raises:
        OutOfMemoryError: memory ran out; the message names the phase and the setting to lower.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, MmgrpoError) or not is_out_of_memory(error):
            raise
        free_memory_of(error)
        message = str(error).strip().partition("\n")[0] or type(error).__name__
        raise OutOfMemoryError(
            f"out of memory in {phase} at step {step}: {REMEDIES[phase]}; this changes nothing "
            f"that is learned, and can be set when a run resumes ({page_url('how-to/symptoms')}). "
            f"The message: {message:.300}"
        ) from error
