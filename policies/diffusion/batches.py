"""How many rows share a run of the pipeline."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from .denoising_rows import DenoisingRow

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Batches:
    """The sizes of runs; rows that are found to depend on their batch run alone from then on.

    Attributes:
        rollout: rows in rollouts.
        update: states in updates.
        alone: whether rows were found to depend on their batch.
    """

    rollout: int
    update: int
    alone: bool = False

    def run_alone(self, why: str) -> None:
        """Every row has a run of the pipeline to itself from here on."""
        logger.warning("%s. From here on every row runs alone, in rollouts and in updates", why)
        self.rollout, self.update, self.alone = 1, 1, True


def chunked(
    rows: Iterable[DenoisingRow], size: int, together: Callable[[DenoisingRow, DenoisingRow], bool]
) -> Iterator[list[DenoisingRow]]:
    """Consecutive rows in runs of at most ``size`` that may share one."""
    chunk: list[DenoisingRow] = []
    for row in rows:
        if chunk and (len(chunk) == size or not together(chunk[0], row)):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk
