"""Views: the same decisions under other weights, behind another prompt, or as another policy finds them."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section

RESERVED = ("now", "old", "reference", "average")
"""Weights that every run has by these names, which are no names of views."""

MOVING = ("now", "average")
"""Those that change with every update."""


class ViewConfig(Section):
    """A view of the decisions, by the name that terms, estimators and filters read it under."""

    weights: str = Field(
        default="now",
        description="now: of each update; old: as before the step's first update; reference; average: that of "
        "update.ema; or a name that the policy keeps weights under",
    )
    policy: Named | None = Field(
        default=None,
        description="another policy, loaded as policy: is and never trained; null: the one that is trained",
    )
    context: Named | None = Field(
        default=None,
        description="what each member is shown in place of the prompt (rollout.prompt_templates); null: what it was "
        "drawn behind, and to another policy the prompt itself",
    )

    @model_validator(mode="after")
    def _has_one_set_of_weights(self) -> ViewConfig:
        if self.policy is not None and self.weights != "now":
            raise ValueError(f"another policy has weights of its own: leave out weights: {self.weights}, or policy")
        return self
