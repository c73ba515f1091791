"""A step in its phases, so that one loop takes the steps of a run alone or of several tasks together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mmgrpo.config import RunConfig
from mmgrpo.data.stream import StepPrompts
from mmgrpo.runs.progress import RunProgress
from mmgrpo.runs.stopping import StopRequests
from mmgrpo.training.checkpointed_run import CheckpointedRun
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.optimizer import GuardedOptimizer
from mmgrpo.training.prompt_stats import PromptStats
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.score_rollouts import Rewards
from mmgrpo.training.update_policy import UpdateMetrics, UpdatePlan, update_jointly
from mmgrpo.types import Sample, Scores


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What the tasks of a run share; a run alone has it to itself.

    Attributes:
        progress: says how far the task is.
        stopping: what was asked for, of all tasks.
        log: takes what a task writes down, by file, beside the task's own folder.
        show: takes what an evaluation drew, and what was said of it, at a step of the task.
        within: the folder that the task's own lies in; None: where its configuration says.
    """

    progress: RunProgress
    stopping: StopRequests
    log: Callable[[str, Mapping[str, Any]], None]
    show: Callable[[int, Sequence[Sample], Scores], None]
    within: Path | None = None


@dataclass(frozen=True, slots=True)
class TaskRollouts:
    """What a task has drawn at a step.

    Attributes:
        prompts: of the step.
        rollouts: what came of them on this process; the rewards are at work on it.
        took_s: seconds.
    """

    prompts: StepPrompts
    rollouts: Rollouts
    took_s: float


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a task's rewards said at a step, and what it learns from.

    Attributes:
        rollouts: what was drawn.
        rewards: on the samples of all processes.
        advantages: an advantage for every decision.
        prompt_stats: what will be remembered.
        metrics: to be logged with the updates.
        after_N: of a task that is after another, the samples there that each of the job's rows was drawn after.
    """

    rollouts: Rollouts
    rewards: Rewards
    advantages: Advantages
    prompt_stats: PromptStats
    metrics: Mapping[str, float]
    after_N: Sequence[Sequence[tuple[int, int]]] = ()


@dataclass(frozen=True, slots=True)
class StepUpdates:
    """What a task's rows teach in the updates of a step, and what it does of them.

    Attributes:
        plan: the updates.
        on_update: called after every update.
        on_finish: called after the last update.
    """

    plan: UpdatePlan
    on_update: Callable[[UpdateMetrics], None]
    on_finish: Callable[[], None]


class Task(Protocol):
    """What is trained by steps, each in the phases gather, judge and learn; a ``Trainer`` is one.

    Until updates are taken of what it teaches the weights are those of the step before.

    Attributes:
        config: how.
        status: how the run ended; running until then.
        session: its folder, what of it is on the disk, and where its weights are.
        optimizer: of its weights.
    """

    config: RunConfig
    status: str
    session: CheckpointedRun
    optimizer: GuardedOptimizer

    def begin(self, context: RunContext) -> None:
        """Puts its folder in order, and tries its rewards."""

    def warm_up(self) -> None:
        """What comes before the first step."""

    def rollout(self, before: Mapping[str, TaskRollouts]) -> TaskRollouts:
        """Draws, knowing what the tasks before it have drawn."""
        ...

    def score(self, task_rollouts: TaskRollouts, after: Mapping[str, StepResult]) -> StepResult:
        """Waits for the rewards, which may go by what the tasks after it have earned."""
        ...

    def update(self, result: StepResult) -> StepUpdates:
        """Begins the step's updates."""
        ...

    def evaluate(self) -> None:
        """Judges the weights on held-out prompts, where that is due."""


def take_updates(tasks: Sequence[tuple[Task, StepResult]]) -> None:
    """The updates of a step.

    Args:
        tasks: that train one policy, the one that it is of first, with what each has to learn from.
    """
    owner, _ = tasks[0]
    update, step_updates = owner.config.update, [task.update(result) for task, result in tasks]
    for updates in update_jointly(
        [task_updates.plan for task_updates in step_updates], owner.optimizer, **update.passes
    ):
        for task_updates, metrics in zip(step_updates, updates, strict=True):
            task_updates.on_update(metrics)
        owner.optimizer.require_progress()
    for task_updates in step_updates:
        task_updates.on_finish()
