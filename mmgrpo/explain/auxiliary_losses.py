"""What is learnt from examples beside the objective, in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.config import RunConfig


def auxiliary_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A line for each item of the section ``auxiliary``."""
    for one in config.auxiliary:
        taught = f"{one.batch_size or 64} examples" if one.column is None else f"its groups' answers ({one.column})"
        taught = "what its rows were begun with" if one.from_prefix else taught
        weighed = (
            "" if one.weight_by_success is None else f", weighed by {one.weight_by_success.name} {one.whose_success}"
        )
        yield "auxiliary", f"{one.label}: in every update {one.weight:g} times the supervised loss of {taught}{weighed}"
