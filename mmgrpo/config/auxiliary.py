"""The section ``objective.auxiliary``."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named
from mmgrpo.maths.answer_sources import ANSWER_SOURCES


class AuxiliaryConfig(Named):
    """A supervised loss added to the objective, in the same updates; the loss is that of the warm-up.

    The name is that of a function of examples, with its arguments as under ``update.warmup.examples``; or ``answers``
    or ``prefixes``, examples from the groups of the update.
    """

    label: str = Field(default="supervised", description="name that its loss is logged under")
    batch_size: int | None = Field(
        default=None, ge=1, description="of a function of examples: examples per update, over all processes; null: 64"
    )
    weight: float = Field(
        default=1.0, ge=0, description="weight of the loss that is added to the objective's; 0: it is not computed"
    )

    @model_validator(mode="after")
    def _has_batches(self) -> AuxiliaryConfig:
        if self.name in ANSWER_SOURCES and self.batch_size is not None:
            raise ValueError(f"the examples of {self.name} are those of the update's groups: leave out batch_size")
        return self
