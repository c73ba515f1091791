"""One sitting of a run: from its start, or from a checkpoint, to its end, however that comes."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from mmgrpo.config import RunConfig
from mmgrpo.distributed.job import Job
from mmgrpo.errors import CheckpointError, ConfigError, MmgrpoError
from mmgrpo.layouts import layout_of
from mmgrpo.memory import Memory
from mmgrpo.policy import Policy
from mmgrpo.report import write_report
from mmgrpo.runs.best import best_step
from mmgrpo.runs.checkpoint import (
    RunPosition,
    delete_old_checkpoints,
    delete_unfinished,
    load_checkpoint,
    save_checkpoint,
    set_aside,
)
from mmgrpo.runs.folder import RunFolder, claim_folder
from mmgrpo.runs.resuming import START, Resumption, evaluated_steps, resume_command
from mmgrpo.system.machine import machine
from mmgrpo.training.components import Components
from mmgrpo.training.critic import CriticTrainer
from mmgrpo.training.optimizer import Average, GuardedOptimizer
from mmgrpo.training.supervision import Warmup
from mmgrpo.training.weight_sets import WeightSets

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TrainedState:
    """Everything that training changes.

    Attributes:
        policy: the policy.
        optimizer: of its weights, with its schedule.
        average: of the weights, if one is kept.
        warmup: the supervised stage, if there is one.
        critic: the critic of the run, if there is one.
        weight_sets: the further weights that are trained, if any.
        owns: whether checkpoints hold the weights; otherwise those of the task do whose policy it is.
    """

    policy: Policy
    optimizer: GuardedOptimizer
    average: Average | None
    warmup: Warmup | None
    critic: CriticTrainer | None = None
    weight_sets: WeightSets | None = None
    owns: bool = True

    @classmethod
    def of(cls, components: Components) -> TrainedState:
        """The state of the components of a run."""
        owns, average, critic = components.owner is None, components.average, components.critic
        weight_sets = components.weight_sets if components.weight_sets.parameters else None
        return cls(components.policy, components.optimizer, average, components.warmup, critic, weight_sets, owns)

    def save(
        self,
        folder: Path,
        position: RunPosition,
        keep: int | None,
        memory: Memory,
        job: Job,
        *,
        best: int | None = None,
    ) -> None:
        """Writes a checkpoint of weights that are those of the place.

        All processes call it if the weights are sharded, the main one otherwise. Raises NonFiniteError for infinite
        ones.
        """
        state = {"memory": memory.state_dict()}
        if self.owns:
            self.optimizer.require_finite_weights()
            state = self.optimizer.state_dict() | state
        average = self.average if self.owns and position.step else None  # before that it is the weights themselves
        if average:
            state["average"] = average.state_dict()
        if self.warmup and not position.step:
            state["warmup"] = self.warmup.state_dict()
        if self.critic:
            state["critic"] = self.critic.state_dict()
        if self.weight_sets:
            state["weight_sets"] = self.weight_sets.state_dict()
        averaged = average.applied() if average else None
        policy, checkpoint_job = self.policy if self.owns else None, job if job.is_sharded else None
        save_checkpoint(folder, position, policy, state, keep=keep, best=best, averaged=averaged, job=checkpoint_job)

    def restore(self, checkpoint: Path, *, updates_per_step: int | None, memory: Memory) -> tuple[RunPosition, Memory]:
        """Restores the state of a checkpoint.

        Args:
            checkpoint: of the same run.
            updates_per_step: how many updates a step has from here on; None: as many as before.
            memory: the empty one, which a checkpoint without any leaves as it is.

        Returns:
            The position of the run, and its memory.

        Raises:
            CheckpointError: it is of another policy or cannot be read.
        """
        parameter = self.policy.trainable[0]
        device = parameter.device if layout_of(parameter) is None else "cpu"  # complete, and so not with its shard
        position, state = load_checkpoint(checkpoint, self.policy if self.owns else None, device)
        num_updates = None if updates_per_step is None else position.step * updates_per_step
        try:
            if self.owns:
                self.optimizer.load_state_dict(state, num_updates=num_updates)
            if self.owns and self.average and position.step:
                self.average.load_state_dict(state["average"])
            if self.warmup and "warmup" in state:
                self.warmup.load_state_dict(state["warmup"])
            if self.critic:
                self.critic.load_state_dict(state["critic"], num_updates=num_updates)
            if self.weight_sets:
                self.weight_sets.load_state_dict(state["weight_sets"])
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{checkpoint} is of a run of another kind: {error}") from error
        return position, memory.restored(state.get("memory"))


@final
class CheckpointedRun:
    """The folder of a running run, and its files on the disk.

    Attributes:
        resumption: how it resumes; None for a new run.
        start: where it began this time.
        evaluated: the steps that were evaluated.
        memory: the memory after the last complete step; the trainer replaces it at each step.
        finished_step: the complete step of the weights, set by the trainer; None within its updates.
    """

    def __init__(
        self,
        components: Components,
        config: RunConfig,
        resumption: Resumption | None,
    ) -> None:
        """Restores the checkpoint of a resumed run; writes no file yet.

        Args:
            components: saved and restored; the memory of a new run is that of their prompt stream.
            config: the run's, from here on.
            resumption: how the run resumes; None for a new one.
        """
        self._trained = trained = TrainedState.of(components)
        self._config = config
        self._job = job = components.job
        self._folder = None if resumption is None else RunFolder(resumption.folder)
        self._saved: RunPosition | None = None
        self.resumption = resumption
        self.start = START
        self.evaluated: set[int] = set()
        self.memory = components.stream.memory
        if resumption is not None and resumption.checkpoint is not None:
            update = config.update
            regrouped = any(change.key in ("update.epochs", "update.minibatches") for change in resumption.changes)
            self.start, self.memory = trained.restore(
                resumption.checkpoint,
                updates_per_step=update.epochs * update.minibatches if regrouped else None,
                memory=self.memory,
            )
            self._saved = self.start
        if resumption is not None and (self.start.step or self._warmed(self.start)):
            self.evaluated = job.run_on_main(lambda: evaluated_steps(resumption.folder, self.start))
        self.finished_step: int | None = self.start.step
        if trained.warmup:
            trained.warmup.finished_step = self.start.warmup_step

    @property
    def folder(self) -> RunFolder:
        """The run folder, which a new run has once it trains."""
        if self._folder is None:
            raise ConfigError("a new run gets its folder when it begins: call train() first")
        return self._folder

    @property
    def position(self) -> RunPosition | None:
        """Where the weights are; None in the midst of updates."""
        warmup_step = self._trained.warmup.finished_step if self._trained.warmup else 0
        if self.finished_step is None or warmup_step is None:
            return None
        return RunPosition(step=self.finished_step, warmup_step=warmup_step)

    def is_over(self) -> bool:
        """Whether a resumed run is finished already; its folder records it then."""
        if self.resumption is None or not self.is_done(self.start):
            return False
        if self._job.is_main:
            self._tidy()
            for note in self._rewound():
                logger.warning("%s", note)
            self.folder.mark_finished()
            self.report()
        return True

    def is_done(self, position: RunPosition | None) -> bool:
        """Whether all there is to do was done at a place, its evaluation included."""
        if position is None or position.step < self._config.steps or not (position.step or self._warmed(position)):
            return False
        return self._config.held_out is None or position.step > self._config.steps or position.step in self.evaluated

    def begin(self, explanation: str, within: Path | None = None) -> list[str]:
        """Creates the folder of a new run, or prepares that of a resumed one.

        Args:
            explanation: the output of ``mmgrpo explain`` for the configuration.
            within: the folder of the mixed run that this is a task of, which has the trackers; None: it is none.

        Returns:
            Messages for the user, a line each.
        """
        if self._folder is None:
            config = self._config if within is None else self._config.model_copy(update={"output": str(within)})
            self._config, self._folder = config, RunFolder(self._job.run_on_main(lambda: claim_folder(config)))
        notes = self._job.run_on_main(lambda: self._prepared(explanation))
        if self._config.runtime.trackers and within is None:
            self._job.trackers.start(self._config, self.folder.path)
        return notes

    def save(self, position: RunPosition, *, drops: bool = True) -> None:
        """Writes a checkpoint, if this place has none yet; the other processes wait.

        Args:
            position: where the weights are.
            drops: whether old ones go then; otherwise they stay until ``delete_old_checkpoints``.
        """
        if position != self._saved and self._writes:
            self._write(position, self._config.checkpoint.keep if drops else None)
        self._saved = position
        self._job.barrier()

    def delete_old_checkpoints(self) -> None:
        """Deletes all checkpoints but the newest that are kept."""
        if self._job.is_main:
            delete_old_checkpoints(self.folder.path, self._config.checkpoint.keep, self._best())

    def keep_best(self, *, drops: bool = True) -> None:
        """Writes a checkpoint after an evaluation, if it is the best so far by ``checkpoint.best``.

        Args:
            drops: whether the best before goes then, if it is none of the newest.
        """
        position, reward = self.position, self._config.checkpoint.best
        if reward is None or position is None or position.step == 0:
            return
        if self._job.run_on_main(lambda: best_step(self.folder.path, reward, now=position.step)) == position.step:
            self.save(position, drops=False)
            if drops:
                self.delete_old_checkpoints()

    def rescue(self, position: RunPosition | None, *, drops: bool = True, together: bool = False) -> None:
        """Saves the last complete step before an early end, only on the main process: the others may be gone.

        Sharded weights are saved if all processes end for the same reason, since then all are alive.
        """
        if position is None or position in (self._saved, START) or not self._writes or self._folder is None:
            return
        if self._job.is_sharded and not together:
            logger.warning("the weights are sharded and a process is gone: the newest checkpoint remains")
            return
        try:
            self._write(position, self._config.checkpoint.keep if drops else None)
            self._saved = position
        except MmgrpoError as error:
            logger.warning("%s", error)

    def report(self) -> None:
        """Writes ``report.html`` of the folder's current files; errors are printed and end no run."""
        try:
            write_report(self.folder.path)
        except Exception as error:  # of a page that may not be read, in a run of days
            logger.warning("no report was written: %s: %s", type(error).__name__, error)

    def end(self, status: str, failure: BaseException | None = None) -> list[str]:
        """Writes down how the run ended; the folder of one that failed before it did anything goes.

        Args:
            status: how.
            failure: its exception.

        Returns:
            Messages for the user, a line each.
        """
        if self._folder is None or not self._job.is_main:
            return []
        try:
            if status == "failed" and self.resumption is None and self._saved is None and self._folder.discard():
                return []
            self._folder.close(status, failure)
            self.report()
        except OSError as error:
            logger.warning("%s", error)
        if status == "finished":
            return []
        where = _named(self._saved or START)
        how = resume_command(self._folder.path, self._config, self._job.num_processes)
        return [f"{status}; to resume from {where}: {how}"]

    def _machine(self) -> dict[str, Any]:
        sharded = {"sharding": self._job.sharding.engine} if self._job.sharding else {}
        return machine(self._job.accelerator.device, self._job.num_processes) | sharded

    def _write(self, position: RunPosition, keep: int | None) -> None:
        if self._job.is_main:
            self.folder.sync()
        best = self._best() if self._job.is_main else None
        self._trained.save(self.folder.path, position, keep, self.memory, self._job, best=best)

    @property
    def _writes(self) -> bool:
        """Whether this process has a part in a checkpoint."""
        return self._job.is_main or self._job.is_sharded

    def _best(self) -> int | None:
        reward = self._config.checkpoint.best
        return None if reward is None else best_step(self.folder.path, reward)

    def _tidy(self) -> None:
        """Finishes the deletions of a killed process."""
        delete_unfinished(self.folder.path)
        delete_old_checkpoints(self.folder.path, self._config.checkpoint.keep, self._best())

    def _rewound(self) -> list[str]:
        """Drops the lines after the resumed position, and unreadable ones; returns messages about the latter."""
        steps = self.start.step if self.start.step or self._warmed(self.start) else -1
        limits = dict.fromkeys(("metrics.jsonl", "alerts.jsonl", "skipped.jsonl", "evaluation.jsonl"), steps)
        return self.folder.rewind(limits | {"warmup.jsonl": self.start.warmup_step})

    def _prepared(self, explanation: str) -> list[str]:
        if self.resumption is None:
            self.folder.open(self._config, explanation=explanation, machine=self._machine())
            return [f"run folder: {self.folder.path}"]
        path = self.folder.path
        notes = [f"run folder: {path}, resuming from {_named(self.start)}", *self.resumption.notes]
        notes += [f"{moved.name} is after the resumed step and is now {moved}" for moved in set_aside(path, self.start)]
        self._tidy()
        notes += self._rewound()
        record = self.resumption.as_record(self.start) | {"machine": self._machine()}
        self.folder.reopen(self._config, record, explanation=explanation)
        return notes + [f"changed from here on: {change}" for change in self.resumption.changes]

    def _warmed(self, position: RunPosition) -> bool:
        return self._config.update.warmup is None or position.warmup_step >= self._config.update.warmup.steps


def _named(position: RunPosition) -> str:
    if position == START:
        return "the beginning"
    return f"step {position.step}" if position.step else f"step {position.warmup_step} of the warm-up"
