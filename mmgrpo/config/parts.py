"""The single configurations that one is made of: the runs of a series, the tasks of a mixed run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.tasks import OF_RUN, SHARED, TASK_NAME, TaskConfig
from mmgrpo.config.validating import set_value, typed
from mmgrpo.errors import ConfigError

LATER = "It goes on from the weights of the run before. Of the first run of the series:"
"""What a later run says before the note of its series, which may speak of a start that it does not have."""

BESIDE_TASKS = (*OF_RUN, "note", "recipe", "published")
"""Sections that a mixed run has itself."""


def runs_of(config: RunConfig) -> list[RunConfig]:
    """The runs of a series, with what each sets otherwise; of a single run itself.

    Where a run begins is not among it: ``policy.adapter`` is that of the configuration.

    Args:
        config: whose ``runs:`` they are.

    Returns:
        Configurations named by their runs.

    Raises:
        ConfigError: a run sets a key that there is not, or a value that is not allowed; the message names the run.
    """
    found = []
    for number, run in enumerate(config.runs):
        values = config.model_dump(mode="json") | {"runs": (), "name": f"{number + 1}-{run.name}"}
        if number:
            values |= {"warmup": None, "note": config.note and f"{LATER} {config.note}"}
        for key, value in run.set.items():
            set_value(values, key.split("."), value)
        try:
            found.append(typed(values))
        except ConfigError as error:
            raise ConfigError(f"runs, {run.name}: {error}") from None
    return found or [config]


def tasks_of(config: RunConfig) -> dict[str, RunConfig]:
    """The tasks of a mixed run, each as the configuration of a run with what all of them share; none of another run.

    Args:
        config: whose ``tasks:`` they are.

    Returns:
        Configurations by the name of their task, in the order of the tasks.

    Raises:
        ConfigError: a task sets what the run says for all, or is no configuration; the message names the task.
    """
    if config.tasks:
        _require_bare(config)
    found: dict[str, RunConfig] = {}
    shared = config.model_dump(mode="json", include=set(SHARED))
    for name, values in config.tasks.items():
        try:
            found[name] = _task(name, values, shared)
        except ConfigError as error:
            raise ConfigError(f"tasks.{name}: {error}") from None
    return found


def singles_of(config: RunConfig) -> list[RunConfig]:
    """The runs of a series or the tasks of a mixed run; of a single run itself."""
    return list(tasks_of(config).values()) or runs_of(config)


def require_single(config: RunConfig, *, mixed: bool = False) -> None:
    """Raises ConfigError for a series or a mixed run where one is needed; for a task too, unless it is ``mixed``."""
    if config.task is not None and not mixed:
        raise ConfigError(
            f"{config.name} is a task of a mixed run, which goes on as a whole: mmgrpo train --resume with the folder "
            "above; to train it by itself, start a new run from its config.yaml with task=null"
        )
    if config.runs:
        names = ", ".join(run.name for run in config.runs)
        raise ConfigError(f"runs: this is a series ({names}): train it by mmgrpo train, or take one of runs_of(config)")
    if config.tasks:
        raise ConfigError(
            f"tasks: this is a mixed run of {', '.join(config.tasks)}: train it by mmgrpo train or MixedTrainer, and "
            "name one of its tasks where one is meant: the folder of that task, or tasks_of(config)[NAME]"
        )


def _require_bare(config: RunConfig) -> None:
    fields = RunConfig.model_fields.items()
    own = [
        key
        for key, field in fields
        if key not in BESIDE_TASKS and getattr(config, key) != field.get_default(call_default_factory=True)
    ]
    if own or config.runs:
        raise ConfigError(
            f"a run of several tasks has no {', '.join(own) or 'runs'} of its own: set that in each task, "
            f"tasks.NAME.{(own or ['...'])[0]}; what all tasks share is {', '.join(SHARED)}"
        )
    if wrong := [name for name in config.tasks if not re.match(TASK_NAME, name)]:
        raise ConfigError(f"tasks are named by letters, digits, - and _, as folders are; got {', '.join(wrong)}")


def _task(name: str, values: Mapping[str, Any], shared: Mapping[str, Any]) -> RunConfig:
    if wrong := [key for key in values if key in OF_RUN]:
        raise ConfigError(f"{', '.join(wrong)}: of the run, for all of its tasks; set it there and leave it out here")
    task = typed({"task": values.get("task") or {}}).task or TaskConfig()
    own = {**values, **shared, "name": name, "task": task.model_dump(mode="json")}
    own["steps"] = -(-shared["steps"] // task.every)
    return typed(own)
