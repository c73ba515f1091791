"""The supervised auxiliary losses of a run, in words."""

from __future__ import annotations

from collections.abc import Iterator

from mmgrpo.algorithm import answer_source_of, success_weight_of
from mmgrpo.config import RunConfig


def auxiliary_rows(config: RunConfig) -> Iterator[tuple[str, str]]:
    """A row per item of the section ``objective.auxiliary``."""
    for loss in config.objective.auxiliary:
        answers = answer_source_of(loss)
        if answers is None:
            source = f"{loss.batch_size or 64} examples"
        else:
            source = f"its groups' answers ({answers.column})" if answers.column else "the prefixes of its rows"
        line = f"{loss.weight:g} times the supervised loss of {source}"
        if answers is not None and (weight := success_weight_of(loss)) is not None:
            line += f", weighted by {weight.name} {answers.whose_success}"
        yield "auxiliary", f"{loss.label}: in every update {line}"
