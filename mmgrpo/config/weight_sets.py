"""The items of ``update.weight_sets``: further weights of the policy that are trained in the same run."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_serializer

from mmgrpo.config.losses import TermConfig
from mmgrpo.config.optimizer import OptimizerConfig
from mmgrpo.config.sections import Named, Section


class WeightSetConfig(Section):
    """Weights that start as the reference and are trained before the updates of the policy at each step."""

    terms: tuple[TermConfig, ...] = Field(
        min_length=1, description="the loss, as objective.terms; its mean is that of objective.aggregate"
    )
    optimizer: OptimizerConfig = Field(
        default_factory=OptimizerConfig, description="settings that are not set are those of update.optimizer"
    )
    updates: int = Field(default=1, ge=1, description="updates per step, each on all rows")
    reading: dict[str, Any] = Field(
        default_factory=dict,
        description="with training_states: renoised, settings that override policy.reading; each update has its levels "
        "and noise",
    )
    average: Named | None = Field(
        default=None,
        description="a copy under the name NAME_average, which follows after the updates of a step: copy = d copy + "
        "(1 - d) weights, d a function of the step, {name: linear, start: 0.001, end: 0.3, steps: 299}; null: none",
    )

    @field_serializer("optimizer")
    def _settings(self, optimizer: OptimizerConfig) -> dict[str, Any]:
        return optimizer.model_dump(exclude_unset=True)  # the others follow update.optimizer, in a saved file too
