"""Going on with a run: from which checkpoint, under which configuration, and what of it is said and recorded."""

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
from mmgrpo.config.tasks import TASK_NAME
from mmgrpo.distributed.sharding import launch_flags
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.checkpoint import FOLDER, Place, is_checkpoint, list_checkpoints, sound_checkpoint, weights_of
from mmgrpo.runs.folder import CONFIG, has_ended
from mmgrpo.system.files import read_lines

START = Place(step=0, warmup_step=0)
OWN = ("name", "output")
"""What says where the folder is; it is there already."""

SILENT = ("note", "method", "recipe", "published")
"""What is read by people only."""

FIXED = {
    "seed": "every random number follows from it",
    "policy": "the weights and the samples so far are of the one before",
    "warmup": "it belongs to the start of a run",
    "update.ema": "an average goes through the whole run or through none of it",
    "task": "its steps so far were taken beside those of the others",
}
"""Sections that a run keeps, and why."""

UNRECORDED = ("policy", "policy.model")
"""Values that runs of a Trainer with a path did not record once; where there are none, they may be set."""

FREE = ("warmup.log_every", "update.ema.")
"""What of them may change, by how its key begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A value that a resumed run has otherwise than before.

    Attributes:
        key: its dotted key.
        before: the value so far; None also where there was none.
        after: the value from here on.
    """

    key: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.key}: {self.before!r} -> {self.after!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumption:
    """How a run goes on.

    Attributes:
        folder: the run folder.
        checkpoint: what it goes on from; None: it has none yet, and begins again.
        config: the configuration from here on.
        changes: where that differs from before.
        notes: what a person should be told of the checkpoints.
    """

    folder: Path
    checkpoint: Path | None
    config: RunConfig
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    def as_record(self, place: Place) -> dict[str, Any]:
        """What ``run.json`` keeps of it."""
        return {
            "step": place.step,
            "warmup_step": place.warmup_step,
            "changes": {change.key: [change.before, change.after] for change in self.changes},
        }


def run_of(path: Path) -> Path:
    """The run folder of a run folder or checkpoint."""
    path = path.absolute()
    if not is_checkpoint(path):
        return path
    above = path.parents[1:3]  # a checkpoint that was set aside lies one folder deeper
    return next((folder for folder in above if (folder / CONFIG).is_file()), path.parent.parent)


def config_of(path: Path) -> Path:
    """The configuration file of the run that a path belongs to. Raises CheckpointError if there is no such run."""
    file = run_of(path) / CONFIG
    if not file.is_file():
        raise CheckpointError(f"{path} is no run folder and no checkpoint of one: {file} is missing")
    return file


def weights_at(path: Path) -> Path:
    """The weights to use of a run folder or checkpoint, as ``weights_of``; of a task without any those that it trains.

    Raises CheckpointError if there are none, or a checkpoint without any is named.
    """
    found = sound_checkpoint(path).path
    if (found / "policy").is_dir():
        return weights_of(path)
    task = read_layers(config_of(found)).get("task")  # read, so that nothing of a stranger's is imported
    policy_of = task.get("policy_of") if isinstance(task, dict) else None
    if not isinstance(policy_of, str) or not re.match(TASK_NAME, policy_of):
        raise CheckpointError(f"{found} holds no weights; give another checkpoint, or start the run again")
    owner = run_of(found).parent / policy_of
    if is_checkpoint(path):
        raise CheckpointError(f"{path} holds no weights: they are those of {policy_of}; give a checkpoint of {owner}")
    return weights_of(owner)


def config_given(config: RunConfig | Mapping[str, Any] | None, resume: Path | str | None) -> RunConfig:
    """The configuration that is meant: a typed one, its values, or for none that of the run which goes on."""
    if isinstance(config, RunConfig):
        return config
    return load_config(config_of(Path(resume))) if config is None and resume else validated(config or {})


def plan_resumption(path: Path, config: RunConfig) -> Resumption:
    """Finds the checkpoint to go on from, and what its run would have otherwise.

    Args:
        path: a run folder or a checkpoint.
        config: the configuration to go on under; its ``name`` and ``output`` are not looked at.

    Returns:
        How the run goes on.

    Raises:
        CheckpointError: there is no run or no sound checkpoint, or those that the run wrote are gone.
        ConfigError: the configuration changes what a run must keep.
    """
    folder = run_of(path)
    wanted = allowed_config(path, config)
    notes: list[str] = []
    begun = list_checkpoints(folder)
    if not begun and path.absolute() == folder and (folder / CONFIG).is_file():
        checkpoint = None
        num_steps = _require_nothing_lost(folder)
        again = f"; the {num_steps} logged step(s) are taken again" if num_steps else ""
        notes.append(f"there is no checkpoint yet: beginning again{again}")
    else:
        found = sound_checkpoint(path.absolute())
        checkpoint = found.path
        notes += [*found.damaged, *found.unchecked]
    return Resumption(
        folder=folder,
        checkpoint=checkpoint,
        config=wanted.config,
        changes=wanted.changes,
        notes=tuple(notes),
    )


def _require_nothing_lost(folder: Path) -> int:
    """Steps that a run without a checkpoint has logged.

    Raises CheckpointError if it trained past the first place where it writes one, so that its checkpoints are gone.
    """
    config = load_config(folder / CONFIG)
    steps, warmup_steps = (_last_step(folder / name) for name in ("metrics.jsonl", "warmup.jsonl"))
    every, warmup_every = config.checkpoint.every, config.checkpoint.warmup_every
    past_step = steps > 0 and (has_ended(folder) or config.warmup is not None or (every is not None and steps > every))
    past_warmup = config.warmup is not None and warmup_every is not None and warmup_steps > warmup_every
    if past_step or past_warmup:
        trained = f"{steps} step(s)" if steps else f"{warmup_steps} warm-up step(s)"
        raise CheckpointError(
            f"{folder} has trained {trained}, and its checkpoints are gone: there is nothing to resume from. Put them "
            f"back into {folder / FOLDER}, or start a new run: mmgrpo train {shlex.quote(str(folder / CONFIG))}"
        )
    return steps


def _last_step(file: Path) -> int:
    return max((row["step"] for row in read_lines(file).rows if isinstance(row.get("step"), int)), default=0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A configuration that a run may go on under, and where it differs from before."""

    config: RunConfig
    changes: tuple[Change, ...]


def allowed_config(path: Path, config: RunConfig) -> Wanted:
    """The configuration that a run goes on under if this one is asked for. Raises ConfigError if it cannot."""
    if not (run_of(path) / CONFIG).is_file():
        return Wanted(config, ())
    before = load_config(config_of(path))
    wanted = config.model_copy(update={key: getattr(before, key) for key in OWN})
    changes = tuple(changed(before, wanted))
    refused = [f"{change} ({reason})" for change in changes if (reason := _refusal(change, before)) is not None]
    if refused:
        raise ConfigError(
            f"{run_of(path)} cannot go on with {'; '.join(refused)}. Leave that as the run's config.yaml has it, as "
            f"mmgrpo train --resume {run_of(path)} alone does, or start a new run"
        )
    return Wanted(wanted, changes)


def changed(before: RunConfig, after: RunConfig) -> Iterator[Change]:
    """Every value in which two configurations differ, but for what people read only."""
    for change in _differences("", before.model_dump(mode="json"), after.model_dump(mode="json")):
        if change.key.partition(".")[0] not in SILENT:
            yield change


def _differences(where: str, before: Any, after: Any) -> Iterator[Change]:
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _differences(f"{where}.{key}" if where else key, before.get(key), after.get(key))
    elif before != after:
        yield Change(key=where, before=before, after=after)


def _refusal(change: Change, before: RunConfig) -> str | None:
    """Why a run cannot go on with a change; None if it can."""
    if change.key in UNRECORDED and change.before is None:
        return None
    for key, reason in FIXED.items():
        if (change.key == key or change.key.startswith(f"{key}.")) and not _is_free(change.key, before):
            return reason
    return None


def _is_free(key: str, before: RunConfig) -> bool:
    section, _, setting = key.partition(".")
    if section != "policy" or before.policy is None:
        return key.startswith(FREE)
    return setting.partition(".")[0] in getattr(settings_type(before.policy.name), "resumable", ())


def evaluated_steps(folder: Path, place: Place) -> set[int]:
    """The steps up to a place that were evaluated."""
    rows = read_lines(folder / "evaluation.jsonl").rows
    return {row["step"] for row in rows if isinstance(row.get("step"), int) and row["step"] <= place.step}


def how_to_resume(folder: Path, config: RunConfig, num_processes: int) -> str:
    """What to type, or to write, to go on with a run."""
    if any(one.policy is None or one.prompts is None or not one.rewards for one in singles_of(config)):
        return f'{"MixedTrainer" if config.tasks else "Trainer"}(..., resume="{folder}")'
    command = f"mmgrpo train --resume {shlex.quote(str(folder))}"
    if num_processes > 1 and LAUNCHED in os.environ:
        command += f" {os.environ[LAUNCHED]}"
    elif num_processes > 1:
        launch = f"accelerate launch --num_processes {num_processes}{launch_flags()} -m mmgrpo.cli"
        command = f"{launch} {command.removeprefix('mmgrpo ')}"
    return command
