"""The best checkpoint of a run, by a held-out reward; which one it is follows from the run's ``evaluation.jsonl``.

Steps without a checkpoint do not count: an evaluation that is better than all before saves one. So nothing else has to
be recorded, and a run that goes on from an earlier checkpoint, with the lines up to there, knows what it knew then.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path

from mmgrpo.config import RunConfig
from mmgrpo.config.loading import read_layers
from mmgrpo.config.registry import suggestion
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.checkpoint import checkpoint_steps, fault_of, is_checkpoint, list_checkpoints, place_named
from mmgrpo.runs.resuming import config_of
from mmgrpo.system.files import read_lines

logger = logging.getLogger(__name__)


def require_best(config: RunConfig, names: Sequence[str]) -> None:
    """Raises ConfigError if ``checkpoint.best`` names none of the evaluation's rewards."""
    best = config.checkpoint.best
    if best is not None and best not in names:
        raise ConfigError(f"checkpoint.best: the evaluation has no reward {best!r}{suggestion(best, names)}")


def best_step(folder: Path, reward: str, *, now: int | None = None) -> int | None:
    """The step at which the mean of a held-out reward was highest, of equal ones the first.

    Args:
        folder: the run folder.
        reward: its name in the evaluations.
        now: the step of weights that have no checkpoint yet and could be saved.

    Returns:
        A step that has a checkpoint, or is that of now; None if no such step was evaluated.
    """
    held = {*checkpoint_steps(folder), *(() if now is None else (now,))}
    return next((step for step in _ranked(folder, reward) if step in held), None)


def best_checkpoint(run: Path) -> Path:
    """The best checkpoint of a run by its ``checkpoint.best``; one that is damaged is passed over, and that is said.

    Raises CheckpointError if the run keeps none, has none yet, or a checkpoint was given in place of a run.
    """
    if is_checkpoint(run):
        raise CheckpointError(f"{run} is one checkpoint: the best is one of a run's, give its folder")
    checkpoint = read_layers(config_of(run)).get("checkpoint")  # read, so that nothing of a stranger's is imported
    reward = checkpoint.get("best") if isinstance(checkpoint, dict) else None
    if not isinstance(reward, str):
        raise CheckpointError(f"{run} keeps no best checkpoint: train it with checkpoint.best=REWARD, or name one")
    held = {place_named(one).step: one for one in list_checkpoints(run)}
    for step in _ranked(run, reward):
        if step in held:
            fault = fault_of(held[step])
            if fault is None:
                return held[step]
            logger.warning("%s is damaged (%s); it is passed over for the next best", held[step].name, fault)
    raise CheckpointError(f"{run} has no checkpoint that was judged by {reward}; leave the best out for the newest")


def _ranked(folder: Path, reward: str) -> list[int]:
    """The evaluated steps from the best on; before the first step nothing was trained, and that does not count."""
    found: dict[int, float] = {}
    for row in read_lines(folder / "evaluation.jsonl").rows:
        step, mean = row.get("step"), row.get(f"eval/{reward}/mean")
        if isinstance(step, int) and step > 0 and isinstance(mean, int | float) and math.isfinite(mean):
            found[step] = mean
    return sorted(found, key=lambda step: (-found[step], step))
