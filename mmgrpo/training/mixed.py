"""Several tasks in one run: each with its own policy, prompts, rewards and optimizer, trained in common steps."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from accelerate import Accelerator

from mmgrpo.config import RunConfig
from mmgrpo.config.parts import tasks_of
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.distributed.job import Job
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.explain.explanation import explanation
from mmgrpo.policy import Policy
from mmgrpo.report import write_report
from mmgrpo.runs.checkpoint import (
    RunPosition,
    checkpoint_fault,
    is_checkpoint,
    list_checkpoints,
    position_from_name,
    set_aside,
)
from mmgrpo.runs.folder import CONFIG, RunFolder, claim_folder
from mmgrpo.runs.resuming import allowed_config, config_changes, resolve_config, resume_command
from mmgrpo.runs.sample_logging import log_samples
from mmgrpo.system.files import replace_text
from mmgrpo.system.machine import machine
from mmgrpo.training.build import build_rewards
from mmgrpo.training.run_loop import RunLoop, task_step
from mmgrpo.training.task_chain import require_cross_task_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample, Scores

LOGS = ("metrics.jsonl", "evaluation.jsonl", "alerts.jsonl")
"""Files of the tasks with lines that the file of the run collects."""

WARMED_UP = RunPosition(step=0, warmup_step=sys.maxsize)
"""As far as a run can be before its first step."""

NO_LIVE: Mapping[str, Any] = {}


class MixedTrainer:
    """Trains the tasks of a mixed run together.

    Attributes:
        config: of the run, with its ``tasks``.
        tasks: their trainers by name, in order.
        status: how the run ended; running until then.
    """

    def __init__(
        self,
        config: RunConfig | Mapping[str, Any] | None = None,
        *,
        policies: Mapping[str, Policy] = NO_LIVE,
        rewards: Mapping[str, Any] = NO_LIVE,
        prompts: Mapping[str, Any] = NO_LIVE,
        accelerator: Accelerator | None = None,
        resume: Path | str | None = None,
    ) -> None:
        """Checks everything that can be checked before the first sample.

        Args:
            config: a ``RunConfig`` with ``tasks``, or its values.
            policies: live policies by task, in place of the section of that task.
            rewards: likewise, as ``Trainer`` takes them.
            prompts: likewise.
            accelerator: accelerate's view of the processes; created if None.
            resume: the folder of a mixed run to resume: from the newest complete step of all its tasks.

        Raises:
            ConfigError: there are no tasks, one of them is invalid, or the resumed run had other ones.
            CheckpointError: the resumed folder is not that of a mixed run.
        """
        self.config = resolve_config(config, resume)
        tasks = tasks_of(self.config)
        if not tasks:
            raise ConfigError("a mixed run has tasks: give tasks: {NAME: {...}, ...}, or train one run by a Trainer")
        self.job = Job.of(self.config, accelerator)
        folder = None if resume is None else Path(resume).absolute()
        resumed = _Resumed(0, {})
        if folder is not None:
            self.config = self.job.run_on_main(lambda: allowed_config(folder, self.config)).config
            resumed = self.job.run_on_main(lambda: _resumed(folder, self.config, tasks))
        self.tasks: dict[str, Trainer] = {}
        for name, task in tasks.items():
            self.tasks[name] = Trainer(
                self._policy(name, task, policies),
                rewards.get(name) or build_rewards(task.rewards),
                prompts.get(name) or _prompts_of(name, task),
                task,
                accelerator=self.job.accelerator,
                resume=resumed.paths.get(name),
                before=self.tasks.copy(),
            )
        for name, trainer in self.tasks.items():
            downstream = {other: task.components for other, task in self.tasks.items() if _is_after(task, name)}
            after = {other: components.rewards.scorer.names for other, components in downstream.items()}
            require_cross_task_rewards(name, [reward.function for reward in trainer.rewards], after)
        self.status = "running"
        self._mixed_folder = MixedFolder(self.tasks, self.config, self.job, folder)
        self._run_loop = RunLoop(self.tasks, self.config, self.job, step=resumed.step, mixed_run=self._mixed_folder)

    def _policy(self, name: str, task: RunConfig, live: Mapping[str, Policy]) -> Policy | None:
        """The policy of a task, if it is there by now."""
        owner = task.rollout.task and task.rollout.task.policy_of
        if owner and name in live:
            raise ConfigError(f"policies: {name} trains the policy of {owner}: give that one alone")
        if owner:
            return self.tasks[owner].policy
        return live.get(name)

    @property
    def step(self) -> int:
        """Steps that all tasks have taken."""
        return self._run_loop.step

    @property
    def folder(self) -> RunFolder:
        """The folder around those of the tasks, which a new run has once it trains."""
        return self._mixed_folder.folder

    def train(self) -> Path:
        """Runs to the end, or to the next complete step of all tasks after Ctrl-C or SIGTERM.

        Returns:
            The run folder, with a folder for each task.
        """
        try:
            self._run_loop.train()
        finally:
            self.status = next(iter(self.tasks.values())).status
        return self.folder.path


class _Resumed:
    """The position from which a mixed run resumes: a step, and a checkpoint or the folder of each task that has one."""

    def __init__(self, step: int, paths: Mapping[str, Path]) -> None:
        self.step = step
        self.paths = paths


def _resumed(folder: Path, config: RunConfig, tasks: Mapping[str, RunConfig]) -> _Resumed:
    """Goes back to the newest complete step of all tasks; before the first, each to its position in the warm-up."""
    if is_checkpoint(folder):
        raise CheckpointError(
            f"{folder} is a checkpoint of one task; a mixed run resumes from its folder, the parent folder"
        )
    before = resolve_config(None, folder)
    if list(before.mixed) != list(config.mixed):
        raise ConfigError(
            f"{folder} has the tasks {', '.join(before.mixed) or 'of a single run'}, and cannot resume with "
            f"{', '.join(config.mixed)}"
        )
    checkpoints = {
        name: {position_from_name(saved).step: saved for saved in list_checkpoints(folder / name)} for name in tasks
    }
    last = max(step for name, task in tasks.items() for step in [*(s * _every(task) for s in checkpoints[name]), 0])
    for step in range(last, 0, -1):
        paths = {name: checkpoints[name].get(task_step(step, task)) for name, task in tasks.items()}
        complete = {name: path for name, path in paths.items() if path and checkpoint_fault(path) is None}
        if len(complete) == len(tasks):
            return _Resumed(step, complete)
    for name in tasks:
        if not (folder / name / CONFIG).is_file():  # killed before it had one
            shutil.rmtree(folder / name, ignore_errors=True)
    return _Resumed(0, {name: _start(folder / name) for name in tasks if (folder / name).is_dir()})


def _start(folder: Path) -> Path:
    """The folder of a task with a newest checkpoint of its warm-up: no step was complete for all tasks."""
    set_aside(folder, WARMED_UP)
    return folder


def _is_after(trainer: Trainer, name: str) -> bool:
    return trainer.config.rollout.task is not None and trainer.config.rollout.task.after == name


def _every(task: RunConfig) -> int:
    return task.rollout.task.every if task.rollout.task else 1


def _prompts_of(name: str, task: RunConfig) -> Any:
    if task.prompts is None:
        raise ConfigError(f"tasks.{name} has no prompts: section; set prompts.source to a file or dataset")
    return load_prompts_of(task.prompts, note=task.about.note)


@final
class MixedFolder:
    """The folder around those of the tasks: the configuration, the header, the lines of all tasks and one page."""

    def __init__(self, tasks: Mapping[str, Trainer], config: RunConfig, job: Job, resumed: Path | None) -> None:
        """Makes nothing yet.

        Args:
            tasks: the tasks with folders in it.
            config: of the run.
            job: the processes; the main one writes.
            resumed: the folder of a resumed run; None: a new one.
        """
        self._tasks = tasks
        self._config = config
        self._job = job
        self._resumed = resumed
        self._folder = None if resumed is None else RunFolder(resumed)
        self._has_started = False

    @property
    def folder(self) -> RunFolder:
        """The folder, which a new run has once it trains."""
        if self._folder is None:
            raise ConfigError("a new run gets its folder when it begins: call train() first")
        return self._folder

    def begin(self) -> Path:
        """Creates or reuses the folder; those of the tasks are next."""
        if self._folder is None:
            self._folder = RunFolder(self._job.run_on_main(lambda: claim_folder(self._config)))
        self._has_started = True
        self._job.run_on_main(self._prepared)
        if self._config.runtime.trackers:
            self._job.trackers.start(self._config, self.folder.path)
        return self.folder.path

    def rewrite_logs(self) -> None:
        """Writes the lines of all tasks, once these are at their resumed position, to the files of the run."""
        if self._job.is_main and self._resumed is not None:
            for file in LOGS:
                lines = [(name, line) for name, task in self._tasks.items() for line in task.folder.lines(file)]
                lines.sort(key=lambda entry: self._step(entry[0], entry[1]["step"]))
                if lines or (self.folder.path / file).exists():
                    text = "".join(f"{json.dumps(self._named(*entry))}\n" for entry in lines)
                    replace_text(self.folder.path / file, text)

    def log(self, name: str, file: str, line: Mapping[str, Any]) -> None:
        """A task's line among those of all, under names that begin with the task's; and to the trackers."""
        if file not in LOGS:
            return
        named_line = self._named(name, line)
        if self._job.is_main:
            self.folder.log(file, named_line)
        self._job.trackers.log({key: value for key, value in named_line.items() if "/" in key}, named_line["step"])

    def log_samples(self, name: str, step: int, samples: Sequence[Sample], scores: Scores) -> None:
        """Logs the samples of a task's evaluation to the trackers, under the task's name."""
        log_samples(self._job.trackers, self._step(name, step), samples, scores, task=name)

    def saved(self) -> None:
        """Rewrites the page."""
        if self._job.is_main:
            write_report(self.folder.path)

    def end(self, status: str, failure: BaseException | None) -> list[str]:
        """Writes down how the run ended; the folder of one that failed before it did anything goes."""
        if self._folder is None or not self._job.is_main:
            return []
        if self._resumed is not None and not self._has_started:  # killed after its tasks had finished
            self.rewrite_logs()
            self.folder.mark_finished()
            self.saved()
            return []
        if status == "failed" and self._resumed is None and self.folder.discard():
            return []
        self.folder.close(status, failure)
        self.saved()
        if status == "finished":
            return []
        return [f"{status}; to resume: {resume_command(self.folder.path, self._config, self._job.num_processes)}"]

    def _prepared(self) -> None:
        text = "\n\n".join(explanation(task.config) for task in self._tasks.values())
        machine_info = {"machine": machine(self._job.accelerator.device, self._job.num_processes)}
        if self._resumed is None:
            self.folder.open(self._config, explanation=text, machine=machine_info["machine"])
            return
        before = resolve_config(None, self._resumed)
        changes = {change.key: [change.before, change.after] for change in config_changes(before, self._config)}
        self.folder.reopen(self._config, {"changes": changes, **machine_info}, explanation=text)

    def _step(self, name: str, task_step: int) -> int:
        """The run's step at which a task took its own: the first is the run's first."""
        return task_step and (task_step - 1) * _every(self._tasks[name].config) + 1

    def _named(self, name: str, line: Mapping[str, Any]) -> dict[str, Any]:
        """A line with its numbers under ``TASK/...``, those of an evaluation under ``eval/TASK/...``."""
        return {
            "task": name,
            **{under_task(name, key): value for key, value in line.items()},
            "step": self._step(name, line["step"]),
        }


def under_task(name: str, key: str) -> str:
    """The key of a number among those of all tasks: ``TASK/...``, of an evaluation ``eval/TASK/...``."""
    if "/" not in key:
        return key
    return f"eval/{name}/{key.removeprefix('eval/')}" if key.startswith("eval/") else f"{name}/{key}"
