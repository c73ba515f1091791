"""The section ``update.reference``: updates of the reference model."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.sections import Section


class ReferenceEmaConfig(Section):
    """The reference as an average: reference = decay * reference + (1 - decay) * current weights."""

    decay: float = Field(gt=0, lt=1, description="share of the previous reference in the average")
    every: int = Field(default=1, ge=1, description="steps between averages")


class ReferenceConfig(Section):
    """The reference of divergences, where it is not the policy as it was before its first step."""

    reset_every: int | None = Field(
        default=None, ge=1, description="steps between resets to the current weights; null: never"
    )
    ema: ReferenceEmaConfig | None = Field(
        default=None, description="moving average of the weights between resets; null: none"
    )
    reset_optimizer: bool = Field(
        default=False, description="reset the optimizer's moments at a reset of the reference (ProRL)"
    )

    @model_validator(mode="after")
    def _moves(self) -> ReferenceConfig:
        if self.reset_every is None and self.ema is None:
            raise ValueError("a reference that neither is reset nor follows stays as it is: leave the section out")
        if self.reset_optimizer and self.reset_every is None:
            raise ValueError("reset_optimizer goes with a reset: set reset_every")
        return self
