"""Checkpoints: everything a run needs to go on as if it had never stopped.

All randomness is keyed by (seed, step, ...), so weights, optimiser, schedule and the place in the run are the whole
state. A checkpoint appears under its name only once it is complete.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from mmgrpo.errors import CheckpointError
from mmgrpo.policy import Policy


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the run a checkpoint was taken.

    Attributes:
        step: GRPO steps done.
        warmup_step: warm-up steps done.
    """

    step: int
    warmup_step: int


def save_checkpoint(
    folder: Path,
    place: Place,
    policy: Policy,
    state: Mapping[str, Any],
    *,
    keep: int | None,
    averaged: AbstractContextManager[None] | None = None,
) -> Path:
    """Writes ``folder/checkpoints/step-NNNNNN`` (``warmup-NNNNNN`` before the first step) and drops old ones.

    Args:
        folder: the run folder.
        place: where the run is.
        policy: whose weights are saved, in ``policy/``.
        state: state dicts of everything else, by name.
        keep: how many of the newest to keep; None keeps all.
        averaged: within it the policy holds its averaged weights, which are then saved in ``average/`` too.

    Returns:
        The checkpoint.
    """
    root = folder / "checkpoints"
    name = f"step-{place.step:06d}" if place.step else f"warmup-{place.warmup_step:06d}"
    partial, final = root / f".{name}", root / name
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "policy").mkdir(parents=True)
    policy.save(partial / "policy")
    if averaged is not None:
        (partial / "average").mkdir()
        with averaged:
            policy.save(partial / "average")
    torch.save(dict(state), partial / "training.pt")
    (partial / "state.json").write_text(json.dumps(asdict(place)))
    shutil.rmtree(final, ignore_errors=True)
    partial.rename(final)
    if keep is not None:
        for old in sorted(path for path in root.iterdir() if path.name.startswith("step-"))[:-keep]:
            shutil.rmtree(old)
    return final


def newest_checkpoint(path: Path) -> Path:
    """The checkpoint a path means: itself, or the newest of a run folder. Raises CheckpointError if there is none."""
    if (path / "state.json").is_file():
        return path
    found = [entry for entry in (path / "checkpoints").glob("*") if (entry / "state.json").is_file()]
    if not found:
        raise CheckpointError(
            f"{path} is no checkpoint and holds none; give a run folder or RUN/checkpoints/step-NNNNNN"
        )
    return max(found, key=lambda entry: (read_place(entry).step, read_place(entry).warmup_step))


def checkpoint_steps(run: Path) -> list[int]:
    """The steps of which a run folder has a whole checkpoint, in order."""
    found = (run / "checkpoints").glob("step-*/state.json")
    return sorted(read_place(path.parent).step for path in found)


def weights_of(path: Path) -> Path:
    """The weights to use of a run folder or checkpoint: the averaged ones, as its evaluations do, if it has them."""
    checkpoint = newest_checkpoint(path)
    average = checkpoint / "average"
    return average if average.is_dir() else checkpoint / "policy"


def read_place(checkpoint: Path) -> Place:
    """Where a checkpoint was taken."""
    return Place(**json.loads((checkpoint / "state.json").read_text()))


def load_checkpoint(checkpoint: Path, policy: Policy, device: torch.device | str) -> tuple[Place, dict[str, Any]]:
    """Restores the policy's weights; returns the place and the state dicts of everything else."""
    policy.load(checkpoint / "policy")
    return read_place(checkpoint), torch.load(checkpoint / "training.pt", map_location=device, weights_only=True)
