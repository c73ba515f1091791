"""The supervised auxiliary losses of a run, in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.config import RunConfig


def auxiliary_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A row per item of the section ``objective.auxiliary``."""
    for loss in config.objective.auxiliary:
        source = f"{loss.batch_size or 64} examples" if loss.column is None else f"its groups' answers ({loss.column})"
        source = "the prefixes of its rows" if loss.from_prefix else source
        by_success = loss.weight_by_success
        weighting = "" if by_success is None else f", weighted by {by_success.name} {loss.whose_success}"
        line = f"{loss.weight:g} times the supervised loss of {source}{weighting}"
        yield "auxiliary", f"{loss.label}: in every update {line}"
