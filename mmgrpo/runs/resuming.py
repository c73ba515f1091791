"""Resuming a run: the checkpoint, the configuration, and the record of changes."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import LAUNCHED, load_config, read_layers, validated
from mmgrpo.config.parts import singles_of
from mmgrpo.config.registry import settings_type
from mmgrpo.config.sections import at, updated
from mmgrpo.config.tasks import TASK_NAME
from mmgrpo.distributed.sharding import launch_flags
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.checkpoint import (
    FOLDER,
    RunPosition,
    find_intact_checkpoint,
    is_checkpoint,
    list_checkpoints,
    weights_folder,
)
from mmgrpo.runs.folder import CONFIG, has_ended
from mmgrpo.system.files import read_lines

START = RunPosition(step=0, warmup_step=0)
LOCATION_KEYS = ("about.name", "output")
"""Keys that set the run folder, which exists already."""

UNRECORDED_KEYS = ("about",)
"""Keys without effect on the run; their changes are not recorded."""

FIXED = {
    "seed": "every random number follows from it",
    "policy": "the weights and samples so far belong to the previous one",
    "update.optimizer.name": "the moments so far belong to the previous one",
    "update.warmup": "it belongs to the start of a run",
    "update.ema": "an average needs every step of the run",
    "rollout.task": "its steps so far alternate with those of the other tasks",
}
"""Keys that cannot change when a run resumes, with the reason."""

OPTIONAL_IN_OLD_RUNS = ("policy", "policy.model")
"""Keys that earlier versions did not record for a Trainer with a path; they may be set if they are null."""

CHANGEABLE = ("update.ema.",)
"""Prefixes of keys in those sections that may change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """A value that changes when a run resumes.

    Attributes:
        key: dotted key.
        before: previous value; None also for an absent key.
        after: new value.
    """

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.after!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How a run resumes.

    Attributes:
        folder: the run folder.
        checkpoint: the checkpoint to resume from; None: the run has none yet, and restarts.
        config: the new configuration.
        changes: its differences from the previous one.
        notes: messages for the user about the checkpoints.
    """

    folder: Path
    checkpoint: Path | None
    config: RunConfig
    changes: tuple[ConfigChange, ...]
    notes: tuple[str, ...]

    def as_record(self, position: RunPosition) -> dict[str, Any]:
        """Returns its entry in ``run.json``."""
        return {
            "step": position.step,
            "warmup_step": position.warmup_step,
            "changes": {change.key: [change.before, change.after] for change in self.changes},
        }


def run_folder_of(path: Path) -> Path:
    """Returns the run folder of a checkpoint, or the run folder itself."""
    path = path.absolute()
    if not is_checkpoint(path):
        return path
    parents = path.parents[1:3]  # a checkpoint that was set aside is one folder deeper
    return next((folder for folder in parents if (folder / CONFIG).is_file()), path.parent.parent)


def config_file_of(path: Path) -> Path:
    """Returns the configuration file of a run or checkpoint. Raises CheckpointError if there is no such run."""
    file = run_folder_of(path) / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{path} is neither a run folder nor a checkpoint of one: {file} is missing")
    return file


def policy_weights_folder(path: Path) -> Path:
    """Returns the folder of the weights to use of a run or checkpoint, as ``weights_folder``; for a task that trains
    another task's policy, the weights of that task's run.

    Raises CheckpointError if there are none, or if the path is a checkpoint without weights.
    """
    checkpoint = find_intact_checkpoint(path).path
    if (checkpoint / "policy").is_dir():
        return weights_folder(path)
    values = read_layers(config_file_of(checkpoint))  # not load_config, which imports untrusted code
    policy_of = at(values, "rollout.task.policy_of", None)
    if not isinstance(policy_of, str) or not re.match(TASK_NAME, policy_of):
        raise CheckpointError(f"{checkpoint} has no weights; give another checkpoint, or start the run again")
    owner = run_folder_of(checkpoint).parent / policy_of
    if is_checkpoint(path):
        raise CheckpointError(
            f"{path} has no weights: it trains the policy of {policy_of}; give a checkpoint of {owner}"
        )
    return weights_folder(owner)


def resolve_config(config: RunConfig | Mapping[str, Any] | None, resume: Path | str | None) -> RunConfig:
    """Returns a typed configuration: from a configuration, its values, or for None that of the run to resume."""
    if isinstance(config, RunConfig):
        return config
    return load_config(config_file_of(Path(resume))) if config is None and resume else validated(config or {})


def plan_resumption(path: Path, config: RunConfig) -> Resumption:
    """Finds the checkpoint to resume from, and the changes of the configuration.

    Args:
        path: a run folder or a checkpoint.
        config: the new configuration; its ``about.name`` and ``output`` are ignored.

    Returns:
        How the run resumes.

    Raises:
        CheckpointError: there is no run or no intact checkpoint, or the checkpoints that the run wrote are missing.
        ConfigError: the configuration changes a value that must stay.
    """
    folder = run_folder_of(path)
    allowed = allowed_config(path, config)
    notes: list[str] = []
    if not list_checkpoints(folder) and path.absolute() == folder and (folder / CONFIG).is_file():
        checkpoint = None
        num_steps = _require_no_lost_checkpoints(folder)
        repeated = f"; the {num_steps} logged step(s) are repeated" if num_steps else ""
        notes.append(f"there is no checkpoint yet: starting again{repeated}")
    else:
        intact = find_intact_checkpoint(path.absolute())
        checkpoint = intact.path
        notes += [*intact.damaged, *intact.unverified]
    return Resumption(
        folder=folder,
        checkpoint=checkpoint,
        config=allowed.config,
        changes=allowed.changes,
        notes=tuple(notes),
    )


def _require_no_lost_checkpoints(folder: Path) -> int:
    """Returns the number of steps that a run without a checkpoint has logged.

    Raises CheckpointError if it trained past the step of its first checkpoint, so that its checkpoints are missing.
    """
    config = load_config(folder / CONFIG)
    steps, warmup_steps = (_last_step(folder / name) for name in ("metrics.jsonl", "warmup.jsonl"))
    every, warmup_every = config.checkpoint.every, config.checkpoint.warmup_every
    warms_up = config.update.warmup is not None
    past_step = steps > 0 and (has_ended(folder) or warms_up or (every is not None and steps > every))
    past_warmup = warms_up and warmup_every is not None and warmup_steps > warmup_every
    if past_step or past_warmup:
        trained = f"{steps} step(s)" if steps else f"{warmup_steps} warm-up step(s)"
        raise CheckpointError(
            f"{folder} has trained {trained}, and its checkpoints are missing: there is nothing to resume from. Put "
            f"them back into {folder / FOLDER}, or start a new run: mmgrpo train {shlex.quote(str(folder / CONFIG))}"
        )
    return steps


def _last_step(file: Path) -> int:
    return max((row["step"] for row in read_lines(file).rows if isinstance(row.get("step"), int)), default=0)


@dataclass(frozen=True, slots=True)
class AllowedConfig:
    """A configuration under which a run can resume, and its differences from the previous one."""

    config: RunConfig
    changes: tuple[ConfigChange, ...]


def allowed_config(path: Path, config: RunConfig) -> AllowedConfig:
    """Returns a resumed run's configuration. Raises ConfigError if it changes a value that must stay."""
    run = run_folder_of(path)
    if not (run / CONFIG).is_file():
        return AllowedConfig(config, ())
    before = load_config(config_file_of(path))
    after = config
    for key, value in zip(LOCATION_KEYS, (before.about.name, before.output), strict=True):
        after = updated(after, key, value)
    changes = tuple(config_changes(before, after))
    invalid = [f"{change} ({reason})" for change in changes if (reason := _rejection(change, before)) is not None]
    if invalid:
        raise ConfigError(
            f"{run} cannot resume with {'; '.join(invalid)}. Keep the values of the run's config.yaml, as "
            f"mmgrpo train --resume {run} alone does, or start a new run"
        )
    return AllowedConfig(after, changes)


def config_changes(before: RunConfig, after: RunConfig) -> Iterator[ConfigChange]:
    """Yields every value in which two configurations differ, except ``UNRECORDED_KEYS``."""
    for change in _differences("", before.model_dump(mode="json"), after.model_dump(mode="json")):
        if change.key.partition(".")[0] not in UNRECORDED_KEYS:
            yield change


def _differences(path: str, before: Any, after: Any) -> Iterator[ConfigChange]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(f"{path}.{key}" if path else key, before.get(key), after.get(key))
    elif before != after:
        yield ConfigChange(key=path, before=before, after=after)


def _rejection(change: ConfigChange, before: RunConfig) -> str | None:
    """Returns why a change is not allowed; None if it is."""
    if change.key in OPTIONAL_IN_OLD_RUNS and change.before is None:
        return None
    for key, reason in FIXED.items():
        if (change.key == key or change.key.startswith(f"{key}.")) and not _is_changeable(change.key, before):
            return reason
    return None


def _is_changeable(key: str, before: RunConfig) -> bool:
    section, _, setting = key.partition(".")
    if section != "policy" or before.policy is None:
        return key.startswith(CHANGEABLE)
    return setting.partition(".")[0] in getattr(settings_type(before.policy.name), "resumable", ())


def evaluated_steps(folder: Path, position: RunPosition) -> set[int]:
    """Returns the evaluated steps up to a position."""
    rows = read_lines(folder / "evaluation.jsonl").rows
    return {row["step"] for row in rows if isinstance(row.get("step"), int) and row["step"] <= position.step}


def resume_command(folder: Path, config: RunConfig, num_processes: int) -> str:
    """Returns the command, or the Python call, that resumes a run."""
    if any(run.policy is None or run.prompts is None or not run.rewards for run in singles_of(config)):
        return f'{"MixedTrainer" if config.mixed else "Trainer"}(..., resume="{folder}")'
    command = f"mmgrpo train --resume {shlex.quote(str(folder))}"
    if num_processes > 1 and LAUNCHED in os.environ:
        command += f" {os.environ[LAUNCHED]}"
    elif num_processes > 1:
        launch = f"accelerate launch --num_processes {num_processes}{launch_flags()} -m mmgrpo.cli"
        command = f"{launch} {command.removeprefix('mmgrpo ')}"
    return command
