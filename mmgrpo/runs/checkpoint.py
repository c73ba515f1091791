"""Checkpoints: everything a run needs to go on as if it had never stopped.

All randomness is keyed by (seed, step, ...), so weights, optimiser, schedule and the place in the run are the whole
state. A checkpoint appears under its name only once it is complete and on the disk; ``manifest.json`` holds the hash of
each of its files. What lies in parts every process writes as it holds it (``mmgrpo.shards``), and any number of
processes reads.
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
"""The folder of what of the training state lies in parts."""

ASIDE = "aside"


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """Where in the run a checkpoint was taken; later places are larger.

    Attributes:
        step: GRPO steps done.
        warmup_step: warm-up steps done.
    """

    step: int
    warmup_step: int


@dataclass(frozen=True, slots=True)
class SoundCheckpoint:
    """A checkpoint whose files are as they were written.

    Attributes:
        path: the checkpoint.
        damaged: newer ones that were passed over, each with what is wrong with it.
    """

    path: Path
    damaged: tuple[str, ...] = ()

    @property
    def unchecked(self) -> tuple[str, ...]:
        """A warning where it has no manifest, so that nothing shows whether its files are whole; else nothing."""
        if (self.path / MANIFEST).exists():
            return ()
        return (f"{self.path.name} has no {MANIFEST}, so its files cannot be checked: it is read as it is",)


def save_checkpoint(
    folder: Path,
    place: Place,
    policy: Policy | None,
    state: Mapping[str, Any],
    *,
    keep: int | None,
    best: int | None = None,
    averaged: AbstractContextManager[None] | None = None,
    job: Job | None = None,
) -> Path:
    """Writes ``folder/checkpoints/step-NNNNNN`` (``warmup-NNNNNN`` before the first step) and drops old ones.

    Args:
        folder: the run folder.
        place: where the run is.
        policy: whose weights are saved, in ``policy/``; None: of a task that trains the policy of another.
        state: state dicts of everything else, by name.
        keep: how many of the newest to keep; None keeps all.
        best: the step whose checkpoint stays in any case.
        averaged: within it the policy holds its averaged weights, which are then saved in ``average/`` too.
        job: the processes, each of which calls this and writes what it holds of what lies in parts; None: this one
            writes alone.

    Returns:
        The checkpoint.

    Raises:
        OutputError: it cannot be written, because the disk is full for example; those there are stay as they are.
    """
    root = folder / FOLDER
    final = root / (f"step-{place.step:06d}" if place.step else f"warmup-{place.warmup_step:06d}")
    partial = root / f".{final.name}"
    held = (("policy", nullcontext()), ("average", averaged))
    saved = [(name, weights) for name, weights in held if policy is not None and weights is not None]
    leads, process = (True, 0) if job is None else (job.is_main, job.process)
    rest, pieces = split_pieces(state)

    def begin() -> None:
        clear_unfinished(folder)
        partial.mkdir(parents=True)
        for name in (*(name for name, _ in saved), *((PIECES,) if pieces else ())):
            (partial / name).mkdir()

    def write() -> None:
        if pieces and job is not None:
            write_shard(partial / PIECES, pieces, process=process, num_processes=job.num_processes)
        if leads:
            torch.save(rest, partial / TRAINING)
            (partial / STATE).write_text(json.dumps(asdict(place)))

    def hashes() -> dict[str, str]:
        sync_tree(partial, lambda path: _writer(path) == process)
        return dict(_hashes(partial, lambda path: _writer(path) == process))

    def finish() -> None:
        (partial / MANIFEST).write_text(json.dumps({"sha256": found}, indent=1))
        sync(partial / MANIFEST)
        replace_folder(partial, final)
        sync(root)
        drop_old(folder, keep, best)

    def together(do: Callable[[], T]) -> list[T]:
        """On every process; what fails on one is raised on all."""
        return [_writing(final, do)] if job is None else job.run_on_each_process(lambda: _writing(final, do))

    def by_main(do: Callable[[], None]) -> None:
        together(do if leads else lambda: None)

    try:
        by_main(begin)
        for name, weights in saved:
            assert policy is not None
            with weights:
                by_main(lambda name=name: policy.save(partial / name))
        together(write)
        found = {name: sha for each in together(hashes) for name, sha in each.items()}
        by_main(finish)
    except BaseException:
        if leads:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _writing(checkpoint: Path, do: Callable[[], T]) -> T:
    """What a function gives; what the system has against its files is an OutputError."""
    try:
        return do()
    except Exception as error:
        if isinstance(error, MmgrpoError) or not _is_of_the_system(error):
            raise
        raise OutputError(
            f"the checkpoint {checkpoint} cannot be written: {error}{full_disk(checkpoint)}; those there are stay as "
            "they are"
        ) from error


def _writer(path: Path) -> int:
    """The process that writes a file or folder."""
    return writer_of(path.name) or 0


def _is_of_the_system(error: Exception) -> bool:
    """Whether it may be about the disk: torch, safetensors and tokenizers have no OSError for one that is full."""
    return isinstance(error, OSError | RuntimeError | SafetensorError) or "os error" in str(error)


def list_checkpoints(folder: Path) -> list[Path]:
    """The finished checkpoints of a run folder, the newest last."""
    found = [entry for entry in (folder / FOLDER).glob("[!.]*") if (entry / STATE).is_file()]
    return sorted(found, key=lambda entry: (place_named(entry), entry.name))


def drop_old(folder: Path, keep: int | None, best: int | None = None) -> None:
    """Deletes all but the newest ``keep`` checkpoints and that of the step ``best``; a ``keep`` of None keeps all."""
    for old in list_checkpoints(folder)[:-keep] if keep else []:
        if best is None or place_named(old).step != best:
            remove_folder(old)


def clear_unfinished(folder: Path) -> None:
    """Deletes what a process that was killed left half written or half deleted."""
    for entry in (folder / FOLDER).glob(".*"):
        shutil.rmtree(entry, ignore_errors=True)


def set_aside(folder: Path, place: Place) -> list[Path]:
    """Moves the checkpoints after a place to ``checkpoints/aside``: the run will not come by them again.

    Args:
        folder: the run folder.
        place: where the run goes on.

    Returns:
        Where they lie now.
    """
    moved = []
    for entry in list_checkpoints(folder):
        if place_named(entry) > place:
            target = entry.parent / ASIDE / entry.name
            target.parent.mkdir(exist_ok=True)
            replace_folder(entry, target)
            moved.append(target)
    return moved


def place_named(checkpoint: Path) -> Place:
    """The place that a checkpoint's name says."""
    kind, _, number = checkpoint.name.partition("-")
    if kind not in ("step", "warmup") or not number.isdigit():
        return Place(-1, 0)
    return Place(int(number), 0) if kind == "step" else Place(0, int(number))


def is_checkpoint(path: Path) -> bool:
    """Whether a path is a checkpoint and no run folder."""
    return (path / STATE).is_file()


def sound_checkpoint(path: Path) -> SoundCheckpoint:
    """The checkpoint a path means: itself, or the newest of a run folder whose files are as they were written.

    Args:
        path: a checkpoint or a run folder.

    Returns:
        The checkpoint.

    Raises:
        CheckpointError: there is none, or the one that was named is damaged or unfinished.
    """
    if is_checkpoint(path):
        before = [one for one in list_checkpoints(path.parent.parent) if place_named(one) < place_named(path)]
        fault = fault_of(path)
        if fault is not None:
            cure = next((f"the one before it: {one}" for one in reversed(before) if fault_of(one) is None), None)
            raise CheckpointError(f"{path} is damaged: {fault}; give {cure or 'another one, this run has none'}")
        return SoundCheckpoint(path)
    damaged: list[str] = []
    for entry in reversed(list_checkpoints(path)):
        fault = fault_of(entry)
        if fault is None:
            return SoundCheckpoint(entry, tuple(damaged))
        damaged.append(f"{entry.name} is damaged ({fault})")
    if damaged:
        raise CheckpointError(f"no checkpoint of {path} can be used: {'; '.join(damaged)}; start the run again")
    raise CheckpointError(f"{path} is no checkpoint and holds none; give a run folder or RUN/checkpoints/step-NNNNNN")


def fault_of(checkpoint: Path) -> str | None:
    """What is wrong with the files of a checkpoint; None if each is as it was written.

    A checkpoint without a manifest, of an earlier version, passes if it can be read at all.
    """
    if checkpoint.name.startswith("."):
        return "it was never finished"
    try:
        read_place(checkpoint)
        if not (checkpoint / MANIFEST).exists():
            return None
        written: Mapping[str, str] = json.loads((checkpoint / MANIFEST).read_text())["sha256"]
        found = dict(_hashes(checkpoint))
    except (OSError, ValueError, TypeError, KeyError) as error:
        return f"it cannot be read: {error}"
    missing = sorted(set(written) - set(found))
    changed = sorted(name for name in set(written) & set(found) if written[name] != found[name])
    if missing:
        return f"{', '.join(missing)} is missing"
    return f"{', '.join(changed)} is not what was written" if changed else None


def checkpoint_steps(run: Path) -> list[int]:
    """The steps of which a run folder has a whole checkpoint, in order."""
    return [place.step for place in map(place_named, list_checkpoints(run)) if place.step > 0]


def weights_of(path: Path) -> Path:
    """The weights to use of a run folder or checkpoint: the averaged ones, as its evaluations do, if it has them."""
    found = sound_checkpoint(path)
    for fault in found.damaged:
        logger.warning("%s; the weights are those of %s", fault, found.path.name)
    for warning in found.unchecked:
        logger.warning("%s", warning)
    average = found.path / "average"
    return average if average.is_dir() else found.path / "policy"


def read_place(checkpoint: Path) -> Place:
    """Where a checkpoint was taken."""
    return Place(**json.loads((checkpoint / STATE).read_text()))


def load_checkpoint(
    checkpoint: Path, policy: Policy | None, device: torch.device | str
) -> tuple[Place, dict[str, Any]]:
    """Restores the policy's weights, if one is given; returns the place and the state dicts of everything else.

    Tensors that lay in parts are ``Stored``. Raises CheckpointError if it is of another policy, or cannot be read.
    """
    try:
        if policy is not None:
            policy.load(checkpoint / "policy")
        state = torch.load(checkpoint / TRAINING, map_location=device, weights_only=True)
        stored = read_shards(checkpoint / PIECES) if (checkpoint / PIECES).is_dir() else {}
        return read_place(checkpoint), restore_pieces(state, stored)
    except MmgrpoError:
        raise
    except Exception as error:  # whatever torch, safetensors or a foreign policy say of files that are none of theirs
        raise CheckpointError(f"{checkpoint} cannot be read: {type(error).__name__}: {error}") from error


def _hashes(checkpoint: Path, wanted: Callable[[Path], bool] = lambda _: True) -> Iterator[tuple[str, str]]:
    """(path within the checkpoint, sha256) of each wanted file but the manifest; several files are read at once."""
    within = sorted(Path(parent) / name for parent, _, names in os.walk(checkpoint) for name in names)
    paths = [path for path in within if path != checkpoint / MANIFEST and wanted(path)]
    with ThreadPoolExecutor() as pool:
        for path, found in zip(paths, pool.map(_sha256, paths), strict=True):
            yield path.relative_to(checkpoint).as_posix(), found


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
