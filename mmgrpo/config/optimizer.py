"""The block ``optimizer`` of the sections ``update``, ``update.warmup`` and ``advantage.critic``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.sections import Section


class OptimizerConfig(Section):
    """AdamW, the schedule of its learning rate and the bound of the gradient norm."""

    lr: float = Field(default=1e-4, gt=0, description="learning rate")
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    eps: float = Field(default=1e-8, gt=0)
    schedule: Literal["constant", "linear", "cosine"] = Field(
        default="constant", description="schedule of the learning rate, after the ramp"
    )
    lr_warmup_steps: int = Field(default=0, ge=0, description="updates of the linear ramp")
    lr_floor: float = Field(default=0.0, ge=0, le=1, description="linear and cosine end at this fraction of lr")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="null: not clipped")

    def over(self, defaults: OptimizerConfig) -> OptimizerConfig:
        """The settings that are set here, and those of ``defaults`` for the others."""
        settings = {name: getattr(self, name) for name in self.model_fields_set}
        return defaults.model_copy(update=settings)
