"""The block ``optimizer`` of the sections ``update``, ``update.warmup`` and ``advantage.critic``."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Named


class OptimizerConfig(Named):
    """An optimizer with its settings, the schedule of its learning rate and the bound of the gradient norm."""

    name: str = Field(
        default="adamw",
        description="adamw, with betas, eps and weight_decay; adamw_8bit, adafactor or muon, with their settings; "
        "or python:module:function, which returns a function of (parameters, learning rate)",
    )
    lr: float = Field(default=1e-4, gt=0, description="learning rate")
    schedule: Named = Field(
        default_factory=lambda: Named(name="constant"),
        description="factor on lr as a function of the optimizer update, counted from 0, {name: cosine, warmup_steps: "
        "10, end: 0.1}; start is 1, end 0, and the change ends with the run, unless it sets start, end or steps",
    )
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="null: not clipped")

    def over(self, defaults: OptimizerConfig) -> OptimizerConfig:
        """The settings that are set here, and those of ``defaults`` for the others; of another optimizer, its own."""
        is_other = "name" in self.model_fields_set and self.name != defaults.name
        followed = defaults.without_numbers() if is_other else defaults
        return OptimizerConfig(**followed.model_dump() | self.model_dump(exclude_unset=True))

    def without_numbers(self) -> OptimizerConfig:
        """Without the settings of the function."""
        return OptimizerConfig(**{name: getattr(self, name) for name in OptimizerConfig.model_fields})
