"""The section ``auxiliary``."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section


class AuxiliaryConfig(Section):
    """Supervised learning beside the objective, in the same updates; the loss is that of the warm-up."""

    label: str = Field(default="supervised", description="what its loss is logged under")
    examples: Named | None = Field(
        default=None, description="as warmup.examples: every update takes batch_size of them, as a warm-up's would"
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="of examples, per update, over the whole job; null: 64"
    )
    column: str | None = Field(
        default=None,
        description="in place of examples: the answers that the rows of the update's groups bring along; a text for "
        "policies that write, a picture or its frames for those that draw",
    )
    begun: bool = Field(
        default=False,
        description="in place of examples: what the rows of the update were begun with and is given, as by the context "
        "solution_prefix, without an end; as often as rows have it",
    )
    in_parts: bool = Field(
        default=False,
        description="a column's answer is taught once to each part of a group that was drawn in a context of its own: "
        "behind the prompt as that part was shown it, and by its success",
    )
    by_success: Named | None = Field(
        default=None,
        description="weight of a column's answer by the share of its group's drawn samples that are right: {name: "
        "below, rate: 0.25} is 1 under that share and 0 elsewhere; null: 1",
    )
    right: float = Field(default=1.0, description="the reward from which on a sample is right, for by_success")
    weight: float = Field(default=1.0, ge=0, description="of the loss beside the objective's; 0: it costs nothing")

    @property
    def whose_success(self) -> str:
        """Whose success weighs an answer, in words."""
        return "of the part's success" if self.in_parts else "of the group's success"

    @model_validator(mode="after")
    def _one_source(self) -> AuxiliaryConfig:
        if (self.examples is not None) + (self.column is not None) + self.begun != 1:
            raise ValueError("name one source: examples, the column of the answers, or begun: true")
        if self.examples is None and self.batch_size is not None:
            raise ValueError("a column's answers are those of the update's groups: leave out batch_size")
        if self.column is None and (self.by_success is not None or self.in_parts):
            raise ValueError("examples belong to no group: leave out by_success and in_parts, or name a column")
        return self
