"""The best checkpoint of a run by a held-out reward, computed from the run's ``evaluation.jsonl``.

Steps without a checkpoint do not count: an evaluation that is better than all before it saves one. No other record is
needed, and a run that resumes from an earlier checkpoint, with the lines up to it, gets the same result as then.
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
from mmgrpo.runs.checkpoint import (
    checkpoint_fault,
    checkpoint_steps,
    is_checkpoint,
    list_checkpoints,
    position_from_name,
)
from mmgrpo.runs.resuming import config_file_of
from mmgrpo.system.files import read_lines

logger = logging.getLogger(__name__)


def require_best(config: RunConfig, names: Sequence[str]) -> None:
    """Raises ConfigError if ``checkpoint.best`` is no evaluation reward."""
    best = config.checkpoint.best
    if best is not None and best not in names:
        raise ConfigError(f"checkpoint.best: the evaluation has no reward {best!r}{suggestion(best, names)}")


def best_step(folder: Path, reward: str, *, now: int | None = None) -> int | None:
    """Returns the step with the highest mean of a held-out reward; the first of equal ones.

    Args:
        folder: the run folder.
        reward: name of the evaluation reward.
        now: the current step, whose weights can still be saved.

    Returns:
        A step that has a checkpoint, or the current step; None if none of these was evaluated.
    """
    candidates = {*checkpoint_steps(folder), *(() if now is None else (now,))}
    return next((step for step in _ranked_steps(folder, reward) if step in candidates), None)


def best_checkpoint(run: Path) -> Path:
    """Returns the best checkpoint of a run by its ``checkpoint.best``; skips damaged ones with a warning.

    Raises CheckpointError if the run keeps no best checkpoint or has none yet, or if the path is a checkpoint.
    """
    if is_checkpoint(run):
        raise CheckpointError(f"{run} is a checkpoint; give the run folder that contains it")
    checkpoint = read_layers(config_file_of(run)).get("checkpoint")  # not load_config, which imports untrusted code
    reward = checkpoint.get("best") if isinstance(checkpoint, dict) else None
    if not isinstance(reward, str):
        raise CheckpointError(f"{run} keeps no best checkpoint: train it with checkpoint.best=REWARD, or name one")
    checkpoints = {position_from_name(checkpoint).step: checkpoint for checkpoint in list_checkpoints(run)}
    for step in _ranked_steps(run, reward):
        if step in checkpoints:
            fault = checkpoint_fault(checkpoints[step])
            if fault is None:
                return checkpoints[step]
            logger.warning("%s is damaged (%s); the next best is used", checkpoints[step].name, fault)
    raise CheckpointError(f"{run} has no checkpoint that {reward} evaluated; leave out the best to get the newest")


def _ranked_steps(folder: Path, reward: str) -> list[int]:
    """Returns the evaluated steps, best first; without step 0, before which nothing is trained."""
    mean_of_step: dict[int, float] = {}
    for row in read_lines(folder / "evaluation.jsonl").rows:
        step, mean = row.get("step"), row.get(f"eval/{reward}/mean")
        if isinstance(step, int) and step > 0 and isinstance(mean, int | float) and math.isfinite(mean):
            mean_of_step[step] = mean
    return sorted(mean_of_step, key=lambda step: (-mean_of_step[step], step))
