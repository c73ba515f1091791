"""Batch sizes of pipeline runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .denoising_rows import DenoisingRow

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Batches:
    """Batch sizes; rows that depend on their batch run alone once that is measured.

    Attributes:
        rollout: rows per run in rollouts.
        update: states per run in updates.
        join_steps: whether steps of the same rows share a run in updates.
        alone: whether rows depend on their batch, so that each runs alone.
    """

    rollout: int
    update: int
    join_steps: bool = False
    alone: bool = False

    def run_alone(self, reason: str) -> None:
        """Runs every row alone from now on; logs ``reason``."""
        logger.warning("%s. From now on every row runs alone, in rollouts and in updates", reason)
        self.rollout, self.update, self.alone = 1, 1, True


def chunked(
    rows: Iterable[DenoisingRow], size: int, can_share_run: Callable[[DenoisingRow, DenoisingRow], bool]
) -> Iterator[list[DenoisingRow]]:
    """Consecutive rows that can share a run, in chunks of at most ``size``."""
    chunk: list[DenoisingRow] = []
    for row in rows:
        if chunk and (len(chunk) == size or not can_share_run(chunk[0], row)):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk
