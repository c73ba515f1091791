"""The section ``objective.auxiliary``."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section


class AuxiliaryConfig(Section):
    """A supervised loss added to the objective, in the same updates; the loss is that of the warm-up."""

    label: str = Field(default="supervised", description="name that its loss is logged under")
    examples: Named | None = Field(
        default=None,
        description="as update.warmup.examples: every update takes batch_size of them, as a warm-up's would",
    )
    batch_size: int | None = Field(default=None, ge=1, description="examples per update, over all processes; null: 64")
    column: str | None = Field(
        default=None,
        description="in place of examples: the column with the answers of the rows of the update's groups; a text for "
        "policies that generate text, an image or its frames for those that generate images",
    )
    from_prefix: bool = Field(
        default=False,
        description="in place of examples: the forced prefix of the rows of the update, for example that of the prompt "
        "template solution_prefix, without an end token; once for each row that has one",
    )
    per_prompt_template: bool = Field(
        default=False,
        description="a column's answer is learned once for each prompt template that a group was sampled under: after "
        "the prompt of that template, weighted by the success of those samples",
    )
    weight_by_success: Named | None = Field(
        default=None,
        description="weight of a column's answer by the share of its group's on-policy samples that are right: {name: "
        "below, rate: 0.25} is 1 under that share and 0 elsewhere; null: 1",
    )
    right: float = Field(default=1.0, description="the least reward of a right sample, for weight_by_success")
    weight: float = Field(
        default=1.0, ge=0, description="weight of the loss that is added to the objective's; 0: it is not computed"
    )

    @property
    def whose_success(self) -> str:
        """The success rate that weighs an answer, in words."""
        return "of the part's success" if self.per_prompt_template else "of the group's success"

    @model_validator(mode="after")
    def _has_single_source(self) -> AuxiliaryConfig:
        if (self.examples is not None) + (self.column is not None) + self.from_prefix != 1:
            raise ValueError("name one source: examples, the column of the answers, or from_prefix: true")
        if self.examples is None and self.batch_size is not None:
            raise ValueError("a column's answers are those of the update's groups: leave out batch_size")
        if self.column is None and (self.weight_by_success is not None or self.per_prompt_template):
            raise ValueError(
                "examples belong to no group: leave out weight_by_success and per_prompt_template, or name a column"
            )
        return self
