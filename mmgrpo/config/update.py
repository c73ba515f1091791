"""The section ``update``: optimizer updates from the rows of a step."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from mmgrpo.config.references import ReferenceConfig
from mmgrpo.config.sections import Named, Section


class EmaConfig(Section):
    """Exponential moving average of the trained weights, as flow_grpo takes it; evaluations use it."""

    decay: float = Field(
        default=0.9,
        gt=0,
        lt=1,
        description="share of the previous average; after update n at most (1 + n) / (10 + n)",
    )
    every: int = Field(default=1, ge=1, description="optimizer updates between averages: after update every - 1, ...")
    times: int = Field(
        default=1,
        ge=1,
        description="number of times that the same weights are averaged in at each; flow_grpo's scripts do it once a "
        "micro-batch",
    )


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


class UpdateConfig(Section):
    """Optimizer updates from a rollout: ``epochs`` passes over it, each in ``minibatches`` of complete groups."""

    epochs: int = Field(default=1, ge=1, description="passes over a rollout")
    minibatches: int = Field(default=1, ge=1, description="updates per pass; at most prompts_per_step")
    cycle_masks: bool = Field(
        default=False,
        description="pass n trains only the segments of number n (n + epochs too, and so on), counted from 0; with "
        "re-masked decisions, one masking per pass; false: all segments of a row in each pass",
    )
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    ema: EmaConfig | None = None
    reference: ReferenceConfig | None = Field(
        default=None, description="how the reference model is updated; null: it stays the policy before its first step"
    )
    hooks: tuple[Named, ...] = Field(
        default=(),
        description="hooks around each optimizer step, in order: {name: slow_fast, inner, alpha, slow} interpolates "
        "or extrapolates along the path of `inner` updates before `slow` more; {name: mask, share, seed} "
        "trains a share of the weights",
    )

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.epochs * self.minibatches

    @property
    def passes(self) -> dict[str, Any]:
        """The arguments of ``update_policy`` for passes and minibatches."""
        return {"epochs": self.epochs, "minibatches": self.minibatches, "cycle_masks": self.cycle_masks}
