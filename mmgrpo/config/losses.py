"""Losses that are added to the surrogate: the items of ``objective.terms`` and ``objective.auxiliary``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named
from mmgrpo.maths.answer_sources import ANSWER_SOURCES

SourceName = Literal["on_policy", "replay", "demonstration"]


class AddedLossConfig(Named):
    """A loss that is added to that of the surrogate."""

    weight: float = Field(default=1.0, description="factor on the loss; 0: it is not computed")
    label: str | None = Field(
        default=None, description="name that the loss is logged under; null: the name of the function"
    )


class TermConfig(AddedLossConfig):
    """A further term of the loss."""

    sources: tuple[SourceName, ...] | None = Field(
        default=None,
        min_length=1,
        description="rows that the term applies to: on_policy, sampled at this step; replay, of earlier steps; "
        "demonstration, from the data; null: all",
    )


class AuxiliaryConfig(AddedLossConfig):
    """A supervised loss added to the objective, in the same updates; the loss is that of the warm-up.

    The name is that of a function of examples, with its arguments as under ``update.warmup.examples``; or ``answers``
    or ``prefixes``, examples from the groups of the update.
    """

    weight: float = Field(default=1.0, ge=0, description="factor on the loss; 0: it is not computed")
    label: str = Field(default="supervised", description="name that the loss is logged under")
    batch_size: int | None = Field(
        default=None, ge=1, description="of a function of examples: examples per update, over all processes; null: 64"
    )

    @model_validator(mode="after")
    def _has_batches(self) -> AuxiliaryConfig:
        if self.name in ANSWER_SOURCES and self.batch_size is not None:
            raise ValueError(f"the examples of {self.name} are those of the update's groups: leave out batch_size")
        return self
