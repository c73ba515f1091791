"""The section ``objective.views``: forward passes over the same decisions under other weights or another prompt."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section

RESERVED = ("now", "old", "reference", "average")
"""Names of weights that every run has; views must not use them."""

MOVING = ("now", "average")
"""Weights that change with every update."""


class ViewConfig(Section):
    """An auxiliary forward pass over the decisions, with the name that terms, estimators and filters read it by."""

    weights: str = Field(
        default="now",
        description="now: current weights of each update; old: weights before the step's first update; reference; "
        "average: that of update.ema; or the name of weights that the policy keeps",
    )
    policy: Named | None = Field(
        default=None,
        description="another policy, loaded as the section policy describes and never trained; null: the trained "
        "policy",
    )
    prompt_template: Named | None = Field(
        default=None,
        description="prompt template of each member, applied to the prompt of the data whatever template the strategy "
        "sampled it under; null: the prompt that it was sampled from, and for another policy the prompt of the data",
    )

    @model_validator(mode="after")
    def _has_single_weights(self) -> ViewConfig:
        if self.policy is not None and self.weights != "now":
            raise ValueError(f"another policy has separate weights: leave out weights: {self.weights}, or policy")
        return self
