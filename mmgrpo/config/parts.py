"""The single configurations that one is made of: the runs of a series, the tasks of a mixed run."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.sections import at, has
from mmgrpo.config.tasks import OF_LEADER, OF_OWNER, OF_RUN, SHARED, TASK_NAME, TaskConfig
from mmgrpo.config.validating import set_value, typed
from mmgrpo.errors import ConfigError

LATER = "It continues from the weights of the previous run. About the first run of the series:"
"""Prefix to the note of a series for its later runs, since the note may describe the start of the first run."""

ALLOWED_WITH_TASKS = (*SHARED, "about", "tasks")
"""Sections that a mixed run has itself."""


def runs_of(config: RunConfig) -> list[RunConfig]:
    """The runs of a series, each with its changes; of a single run itself.

    The initial weights are not changed: ``policy.adapter`` is that of the configuration.

    Args:
        config: the configuration with a list under ``tasks``.

    Returns:
        Configurations named by their runs.

    Raises:
        ConfigError: a run sets an unknown key, or a value that is not allowed; the message names the run.
    """
    configs = []
    for number, run in enumerate(config.series):
        values = config.model_dump(mode="json") | {"tasks": {}}
        values["about"] |= {"name": f"{number + 1}-{run.name}"}
        if number:
            values["about"] |= {"note": config.about.note and f"{LATER} {config.about.note}"}
            values["update"] |= {"warmup": None}
        for key, value in run.set.items():
            set_value(values, key.split("."), value)
        try:
            configs.append(typed(values))
        except ConfigError as error:
            raise ConfigError(f"tasks, {run.name}: {error}") from None
    return configs or [config]


def tasks_of(config: RunConfig) -> dict[str, RunConfig]:
    """The tasks of a mixed run, each as the configuration of a run with the shared sections; empty for other runs.

    A task that is after another has its prompts, and as many groups as follow from them.

    Args:
        config: the configuration with a mapping under ``tasks``.

    Returns:
        Configurations by the name of their task, in the order of the tasks.

    Raises:
        ConfigError: a task sets a key that the run sets for all tasks, names a task that is not before it, or is no
            configuration; the message names the task.
    """
    if config.mixed:
        _require_bare(config)
    tasks: dict[str, RunConfig] = {}
    shared = config.model_dump(mode="json", include=set(SHARED))
    for name, values in config.mixed.items():
        try:
            tasks[name] = _task(name, values, shared, tasks)
        except ConfigError as error:
            raise ConfigError(f"tasks.{name}: {error}") from None
    _require_weight_peers(tasks)
    best = config.checkpoint.best
    if config.mixed and best is not None and not any(task.checkpoint.best for task in tasks.values()):
        raise ConfigError(f"checkpoint.best: of a mixed run it is TASK/REWARD, got {best!r}; tasks: {', '.join(tasks)}")
    return tasks


def singles_of(config: RunConfig) -> list[RunConfig]:
    """The runs of a series or the tasks of a mixed run; of a single run itself."""
    return list(tasks_of(config).values()) or runs_of(config)


def require_single(config: RunConfig, *, mixed: bool = False) -> None:
    """Raises ConfigError for a series or a mixed run where one is needed; for a task too, unless it is ``mixed``."""
    if config.rollout.task is not None and not mixed:
        raise ConfigError(
            f"{config.about.name} is a task of a mixed run, which resumes as one run: mmgrpo train --resume with the "
            "parent folder; to train only this task, start a new run from its config.yaml with rollout.task=null"
        )
    if config.series:
        names = ", ".join(run.name for run in config.series)
        raise ConfigError(
            f"tasks: this is a series ({names}): train it by mmgrpo train, or take one of runs_of(config)"
        )
    if config.mixed:
        raise ConfigError(
            f"tasks: this is a mixed run of {', '.join(config.mixed)}: train it by mmgrpo train or MixedTrainer, and "
            "name one of its tasks where one is meant: the folder of that task, or tasks_of(config)[NAME]"
        )


def _require_bare(config: RunConfig) -> None:
    fields = RunConfig.model_fields.items()
    misplaced = [
        key
        for key, field in fields
        if key not in ALLOWED_WITH_TASKS and getattr(config, key) != field.get_default(call_default_factory=True)
    ]
    misplaced += ["about.method"] * (config.about.method is not None)
    if misplaced:
        raise ConfigError(
            f"a run of several tasks cannot set {', '.join(misplaced)}: set that in each task, "
            f"tasks.NAME.{misplaced[0]}; all tasks share only {', '.join(SHARED)}"
        )
    if wrong := [name for name in config.mixed if not re.match(TASK_NAME, name)]:
        raise ConfigError(f"tasks are named by letters, digits, - and _, as folders are; got {', '.join(wrong)}")


def _task(
    name: str, values: Mapping[str, Any], shared: Mapping[str, Any], before: Mapping[str, RunConfig]
) -> RunConfig:
    if wrong := [key for key in OF_RUN if has(values, key)]:
        raise ConfigError(f"{', '.join(wrong)}: of the run, for all of its tasks; set it there and leave it out here")
    task = typed({"rollout": {"task": at(values, "rollout.task", None) or {}}}).rollout.task or TaskConfig()
    task_values = {**values, **shared}
    for section, inner in (("about", {"name": name}), ("rollout", {"task": task.model_dump(mode="json")})):
        if isinstance(section_values := values.get(section, {}), Mapping):
            task_values[section] = {**section_values, **inner}
    of_task, _, best = (at(shared, "checkpoint.best", None) or "").partition("/")
    task_values["checkpoint"] = shared["checkpoint"] | {"best": best if of_task == name else None}
    task_values["steps"] = -(-shared["steps"] // task.every)
    if task.policy_of is not None:
        task_values |= _sharing(task, task_values, before)
    if task.after is not None:
        task_values |= _after(task, task_values, before)
    typed_task = typed(task_values)
    if task.policy_of is not None:
        _require_still(typed_task, task.policy_of)
    return typed_task


def _sharing(task: TaskConfig, values: Mapping[str, Any], before: Mapping[str, RunConfig]) -> dict[str, Any]:
    """The values that a task takes from the task that owns its policy."""
    if task.policy_of is None or task.policy_of not in before:
        raise ConfigError(_not_before("policy_of", task.policy_of, before))
    owner = before[task.policy_of]
    role = owner.rollout.task or TaskConfig()
    if role.policy_of is not None:
        raise ConfigError(f"rollout.task.policy_of: {task.policy_of} has its policy of {role.policy_of}; name that")
    if task.every % role.every:
        raise ConfigError(
            f"rollout.task.every: {task.policy_of} takes part in each {role.every}th step and its policy is trained in "
            f"no other: set a multiple of {role.every}, got {task.every}"
        )
    if at(values, "checkpoint.best", None) is not None:
        raise ConfigError(
            f"checkpoint.best: the checkpoints of this task have no weights; name a reward of {task.policy_of}"
        )
    _require_unset(OF_OWNER, values, f"{task.policy_of}, as it trains the same policy")
    if at(values, "advantage.critic.warmup_steps", 0):
        raise ConfigError(
            f"advantage.critic.warmup_steps: the task {task.policy_of} decides when their policy is frozen; leave it "
            "out"
        )
    shared = owner.model_dump(mode="json", include={*OF_OWNER})
    return {**shared, "update": {**shared["update"], "warmup": None}}  # the policy is warmed up once


def _require_still(config: RunConfig, owner: str) -> None:
    if wrong := [key for key in config.schedules if key.startswith("update.")]:
        raise ConfigError(
            f"{', '.join(wrong)}: that follows from {owner}, which trains the same policy; schedule it there"
        )


def _require_weight_peers(tasks: Mapping[str, RunConfig]) -> None:
    roles = {name: config.rollout.task or TaskConfig() for name, config in tasks.items()}
    shared = {role.policy_of or name for name, role in roles.items() if role.policy_of is not None}
    for name, role in roles.items():
        if role.weight != 1 and (role.policy_of or name) not in shared:
            raise ConfigError(
                f"tasks.{name}: rollout.task.weight={role.weight:g} weights the rows of tasks that share a policy, and "
                f"no other task trains this policy: leave it out, or set update.optimizer.lr"
            )


def _require_unset(keys: Sequence[str], values: Mapping[str, Any], other: str) -> None:
    if stated := [key for key in keys if at(values, key, None) is not None]:
        raise ConfigError(f"{', '.join(stated)}: that follows from {other}; leave it out")


def _not_before(key: str, name: str | None, before: Mapping[str, RunConfig]) -> str:
    return f"rollout.task.{key}: {name!r} is no task before it; those are {', '.join(before) or 'none'}"


def _after(task: TaskConfig, values: Mapping[str, Any], before: Mapping[str, RunConfig]) -> dict[str, Any]:
    """The values that a task takes from the task that generates its prompts."""
    if task.after is None or task.after not in before:
        raise ConfigError(_not_before("after", task.after, before))
    other, rollout = before[task.after], values.get("rollout") or {}
    if (other.rollout.task or TaskConfig()).every != task.every:
        raise ConfigError(f"rollout.task.every: {task.after} takes part in other steps; give both the same")
    _require_unset(OF_LEADER, values, f"{task.after}, which it is after")
    size, written = rollout.get("group_size"), other.rollout.group_size
    if task.compare == "prompt" and (size is None or size % written):
        raise ConfigError(
            f"rollout.group_size: the samples after all {written} texts of a prompt are one group "
            f"(rollout.task.compare: prompt): set a multiple of {written}, got {size}"
        )
    groups = other.rollout.prompts_per_step * (written if task.compare == "sample" else 1)
    prompts = other.prompts and other.prompts.model_dump(mode="json")
    return {"prompts": prompts, "rollout": {**rollout, "prompts_per_step": groups}}
