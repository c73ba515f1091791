"""The section ``advantage.critic``."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_serializer, model_validator

from mmgrpo.config.optimizer import OptimizerConfig
from mmgrpo.config.sections import Named, Section

CRITIC_OPTIMIZER = OptimizerConfig(lr=1e-5, max_grad_norm=1.0)
"""Settings of the optimizer of a critic that do not follow ``update.optimizer``."""


class CriticConfig(Section):
    """A value model, trained in the same updates by a separate optimizer; the estimator gae reads its values."""

    policy: Named | None = Field(
        default=None,
        description="model that the critic is built on, loaded and trained as the section policy describes; null: "
        "another copy of policy",
    )
    optimizer: OptimizerConfig = Field(
        default=CRITIC_OPTIMIZER,
        description="lr and max_grad_norm that are not set have the values of this default, the other settings those "
        "of update.optimizer",
    )
    loss: Named = Field(
        default=Named(name="returns"), description="what its values are trained to be, with its settings"
    )
    warmup_steps: int = Field(default=0, ge=0, description="first steps that train the critic and not the policy")
    freeze_after: int | None = Field(
        default=None, ge=1, description="steps after which the critic is frozen; null: never"
    )

    @model_validator(mode="after")
    def _with_defaults(self) -> CriticConfig:
        settings = CRITIC_OPTIMIZER.model_dump(exclude_unset=True) | self.optimizer.model_dump(exclude_unset=True)
        object.__setattr__(self, "optimizer", OptimizerConfig(**settings))
        return self

    @field_serializer("optimizer")
    def _settings(self, optimizer: OptimizerConfig) -> dict[str, Any]:
        return optimizer.model_dump(exclude_unset=True)  # the others follow update.optimizer, in a saved file too
