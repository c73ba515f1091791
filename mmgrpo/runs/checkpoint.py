"""Checkpoints: everything that a run needs to resume as if it had never stopped.

All randomness is keyed by (seed, step, ...), so weights, optimizer, schedule and the position in the run are the
complete state. A checkpoint gets its final name once it is complete and on disk; ``manifest.json`` holds the hash of
each of its files. Each process writes its shards (``mmgrpo.shards``), and any number of processes can read them.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError

from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import restore_pieces, split_pieces
from mmgrpo.errors import CheckpointError, MmgrpoError, OutputError
from mmgrpo.policy import Policy
from mmgrpo.shards import read_shards, write_shard, writer_of
from mmgrpo.system.files import full_disk, remove_folder, replace_folder, sync, sync_tree

logger = logging.getLogger(__name__)

T = TypeVar("T")
FOLDER, MANIFEST, STATE, TRAINING = "checkpoints", "manifest.json", "state.json", "training.pt"
PIECES = "training"
"""Folder of the sharded tensors of the training state."""

ASIDE = "aside"


@dataclass(frozen=True, slots=True, order=True)
class RunPosition:
    """Position in a run; positions are ordered.

    Attributes:
        step: completed GRPO steps.
        warmup_step: completed warm-up steps.
    """

    step: int
    warmup_step: int


@dataclass(frozen=True, slots=True)
class IntactCheckpoint:
    """A checkpoint whose files are unchanged since they were written.

    Attributes:
        path: the checkpoint.
        damaged: messages about newer checkpoints that are damaged.
    """

    path: Path
    damaged: tuple[str, ...] = ()

    @property
    def unverified(self) -> tuple[str, ...]:
        """A warning if it has no manifest, so that its files cannot be verified; else empty."""
        if (self.path / MANIFEST).exists():
            return ()
        return (f"{self.path.name} has no {MANIFEST}, so its files cannot be checked: it is used unverified",)


def save_checkpoint(
    folder: Path,
    position: RunPosition,
    policy: Policy | None,
    state: Mapping[str, Any],
    *,
    keep: int | None,
    best: int | None = None,
    averaged: AbstractContextManager[None] | None = None,
    job: Job | None = None,
) -> Path:
    """Writes ``folder/checkpoints/step-NNNNNN`` (``warmup-NNNNNN`` before the first step) and deletes old ones.

    Args:
        folder: the run folder.
        position: current position of the run.
        policy: the policy whose weights are saved in ``policy/``; None for a task that trains another task's policy.
        state: state dicts of everything else, by name.
        keep: number of newest checkpoints to keep; None keeps all.
        best: step of a checkpoint that is always kept.
        averaged: context in which the policy holds its averaged weights, which are then also saved in ``average/``.
        job: the processes, each of which calls this and writes its shards; None: only this process writes.

    Returns:
        The checkpoint.

    Raises:
        OutputError: it cannot be written, for example because the disk is full; existing checkpoints stay.
    """
    root = folder / FOLDER
    final = root / (f"step-{position.step:06d}" if position.step else f"warmup-{position.warmup_step:06d}")
    partial = root / f".{final.name}"
    contexts = (("policy", nullcontext()), ("average", averaged))
    saved = [(name, weights) for name, weights in contexts if policy is not None and weights is not None]
    is_main, process = (True, 0) if job is None else (job.is_main, job.process)
    rest, pieces = split_pieces(state)

    def begin() -> None:
        delete_unfinished(folder)
        partial.mkdir(parents=True)
        for name in (*(name for name, _ in saved), *((PIECES,) if pieces else ())):
            (partial / name).mkdir()

    def write() -> None:
        if pieces and job is not None:
            write_shard(partial / PIECES, pieces, process=process, num_processes=job.num_processes)
        if is_main:
            torch.save(rest, partial / TRAINING)
            (partial / STATE).write_text(json.dumps(asdict(position)))

    def hashes() -> dict[str, str]:
        sync_tree(partial, lambda path: _writer(path) == process)
        return dict(_hashes(partial, lambda path: _writer(path) == process))

    def finish() -> None:
        (partial / MANIFEST).write_text(json.dumps({"sha256": sha256_of_file}, indent=1))
        sync(partial / MANIFEST)
        replace_folder(partial, final)
        sync(root)
        delete_old_checkpoints(folder, keep, best)

    def on_all(write: Callable[[], T]) -> list[T]:
        """Calls a function on every process; an error of one is raised on all."""
        if job is None:
            return [_with_output_errors(final, write)]
        return job.run_on_each_process(lambda: _with_output_errors(final, write))

    def on_main(write: Callable[[], None]) -> None:
        on_all(write if is_main else lambda: None)

    try:
        on_main(begin)
        for name, weights in saved:
            assert policy is not None
            with weights:
                on_main(lambda name=name: policy.save(partial / name))
        on_all(write)
        sha256_of_file = {name: sha256 for part in on_all(hashes) for name, sha256 in part.items()}
        on_main(finish)
    except BaseException:
        if is_main:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _with_output_errors(checkpoint: Path, write: Callable[[], T]) -> T:
    """Returns the function's result; converts errors of the file system to OutputError."""
    try:
        return write()
    except Exception as error:
        if isinstance(error, MmgrpoError) or not _may_be_file_system_error(error):
            raise
        raise OutputError(
            f"the checkpoint {checkpoint} cannot be written: {error}{full_disk(checkpoint)}; existing checkpoints stay"
        ) from error


def _writer(path: Path) -> int:
    """Returns the process that writes a file or folder."""
    return writer_of(path.name) or 0


def _may_be_file_system_error(error: Exception) -> bool:
    """Whether the disk may be the cause: torch, safetensors and tokenizers raise no OSError for a full disk."""
    return isinstance(error, OSError | RuntimeError | SafetensorError) or "os error" in str(error)


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the complete checkpoints of a run folder, the newest last."""
    checkpoints = [entry for entry in (folder / FOLDER).glob("[!.]*") if (entry / STATE).is_file()]
    return sorted(checkpoints, key=lambda entry: (position_from_name(entry), entry.name))


def delete_old_checkpoints(folder: Path, keep: int | None, best: int | None = None) -> None:
    """Deletes all but the newest ``keep`` checkpoints and that of step ``best``; None keeps all."""
    for old in list_checkpoints(folder)[:-keep] if keep else []:
        if best is None or position_from_name(old).step != best:
            remove_folder(old)


def delete_unfinished(folder: Path) -> None:
    """Deletes checkpoints that a killed process left partly written or partly deleted."""
    for entry in (folder / FOLDER).glob(".*"):
        shutil.rmtree(entry, ignore_errors=True)


def set_aside(folder: Path, position: RunPosition) -> list[Path]:
    """Moves the checkpoints after a position to ``checkpoints/aside``: the resumed run diverges from them.

    Args:
        folder: the run folder.
        position: where the run resumes.

    Returns:
        Their new paths.
    """
    moved = []
    for entry in list_checkpoints(folder):
        if position_from_name(entry) > position:
            target = entry.parent / ASIDE / entry.name
            target.parent.mkdir(exist_ok=True)
            replace_folder(entry, target)
            moved.append(target)
    return moved


def position_from_name(checkpoint: Path) -> RunPosition:
    """Returns the position in a checkpoint's name."""
    kind, _, number = checkpoint.name.partition("-")
    if kind not in ("step", "warmup") or not number.isdigit():
        return RunPosition(-1, 0)
    return RunPosition(int(number), 0) if kind == "step" else RunPosition(0, int(number))


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint, and not a run folder."""
    return (path / STATE).is_file()


def find_intact_checkpoint(path: Path) -> IntactCheckpoint:
    """Returns the checkpoint itself, or the newest intact one of a run folder.

    Args:
        path: a checkpoint or a run folder.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: there is none, or the checkpoint at the path is damaged or incomplete.
    """
    if is_checkpoint(path):
        position, checkpoints = position_from_name(path), list_checkpoints(path.parent.parent)
        earlier = [checkpoint for checkpoint in checkpoints if position_from_name(checkpoint) < position]
        fault = checkpoint_fault(path)
        if fault is not None:
            intact = (checkpoint for checkpoint in reversed(earlier) if checkpoint_fault(checkpoint) is None)
            fix = next((f"give the one before it: {checkpoint}" for checkpoint in intact), "this run has no other")
            raise CheckpointError(f"{path} is damaged: {fault}; {fix}")
        return IntactCheckpoint(path)
    damaged: list[str] = []
    for entry in reversed(list_checkpoints(path)):
        fault = checkpoint_fault(entry)
        if fault is None:
            return IntactCheckpoint(entry, tuple(damaged))
        damaged.append(f"{entry.name} is damaged ({fault})")
    if damaged:
        raise CheckpointError(f"no checkpoint of {path} can be used: {'; '.join(damaged)}; start the run again")
    raise CheckpointError(
        f"{path} is no checkpoint and contains none; give a run folder or RUN/checkpoints/step-NNNNNN"
    )


def checkpoint_fault(checkpoint: Path) -> str | None:
    """Returns a message about damaged files of a checkpoint; None if every file is unchanged.

    A checkpoint without a manifest, from an earlier version, passes if it can be read.
    """
    if checkpoint.name.startswith("."):
        return "it is incomplete"
    try:
        read_position(checkpoint)
        if not (checkpoint / MANIFEST).exists():
            return None
        written: Mapping[str, str] = json.loads((checkpoint / MANIFEST).read_text())["sha256"]
        actual = dict(_hashes(checkpoint))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"it cannot be read: {error}"
    missing = sorted(set(written) - set(actual))
    changed = sorted(name for name in set(written) & set(actual) if written[name] != actual[name])
    if missing:
        return f"{', '.join(missing)} is missing"
    return f"{', '.join(changed)} has changed since it was written" if changed else None


def checkpoint_steps(run: Path) -> list[int]:
    """Returns the steps for which a run folder has a complete checkpoint, in order."""
    return [position.step for position in map(position_from_name, list_checkpoints(run)) if position.step > 0]


def weights_folder(path: Path) -> Path:
    """Returns the folder of the weights to use of a run or checkpoint: averaged ones, which evaluations use, if any."""
    checkpoint = find_intact_checkpoint(path)
    for message in checkpoint.damaged:
        logger.warning("%s; using the weights of %s", message, checkpoint.path.name)
    for warning in checkpoint.unverified:
        logger.warning("%s", warning)
    average = checkpoint.path / "average"
    return average if average.is_dir() else checkpoint.path / "policy"


def read_position(checkpoint: Path) -> RunPosition:
    """Returns the position stored in a checkpoint."""
    return RunPosition(**json.loads((checkpoint / STATE).read_text()))


def load_checkpoint(
    checkpoint: Path, policy: Policy | None, device: torch.device | str
) -> tuple[RunPosition, dict[str, Any]]:
    """Restores the policy's weights, unless it is None; returns the position and the other state dicts.

    Sharded tensors are returned as ``Stored``. Raises CheckpointError if it belongs to another policy or is unreadable.
    """
    try:
        if policy is not None:
            policy.load(checkpoint / "policy")
        state = torch.load(checkpoint / TRAINING, map_location=device, weights_only=True)
        stored = read_shards(checkpoint / PIECES) if (checkpoint / PIECES).is_dir() else {}
        return read_position(checkpoint), restore_pieces(state, stored)
    except MmgrpoError:
        raise
    except Exception as error:  # errors of torch, safetensors and custom policies have no common class
        raise CheckpointError(f"{checkpoint} cannot be read: {type(error).__name__}: {error}") from error


def _hashes(checkpoint: Path, include: Callable[[Path], bool] = lambda _: True) -> Iterator[tuple[str, str]]:
    """Yields (relative path, sha256) of each matching file except the manifest; reads several files at once."""
    within = sorted(Path(parent) / name for parent, _, names in os.walk(checkpoint) for name in names)
    paths = [path for path in within if path != checkpoint / MANIFEST and include(path)]
    with ThreadPoolExecutor() as pool:
        for path, sha256 in zip(paths, pool.map(_sha256, paths), strict=True):
            yield path.relative_to(checkpoint).as_posix(), sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
