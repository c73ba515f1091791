"""The block ``optimizer`` of the sections ``update``, ``update.warmup`` and ``advantage.critic``."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Named, Section


class OptimizerConfig(Section):
    """AdamW, the schedule of its learning rate and the bound of the gradient norm."""

    lr: float = Field(default=1e-4, gt=0, description="learning rate")
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(default=0.0, ge=0)
    eps: float = Field(default=1e-8, gt=0)
    schedule: Named = Field(
        default_factory=lambda: Named(name="constant"),
        description="schedule of the learning rate by updates, {name: cosine, warmup_steps: 10, floor: 0.1}: a ramp "
        "over warmup_steps, then constant, or linear or cosine down to the fraction floor of lr",
    )
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="null: not clipped")

    def over(self, defaults: OptimizerConfig) -> OptimizerConfig:
        """The settings that are set here, and those of ``defaults`` for the others."""
        settings = {name: getattr(self, name) for name in self.model_fields_set}
        return defaults.model_copy(update=settings)
