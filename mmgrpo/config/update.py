"""The section ``update``: optimizer updates from the rows of a step."""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_serializer, model_validator

from mmgrpo.config.losses import TermConfig
from mmgrpo.config.optimizer import OptimizerConfig
from mmgrpo.config.references import ReferenceConfig
from mmgrpo.config.sections import Named, Section
from mmgrpo.config.views import RESERVED
from mmgrpo.config.warmup import WarmupConfig


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


def average_name(weight_set: str) -> str:
    """The name of the copy that follows a weight set."""
    return f"{weight_set}_average"


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
    warmup: WarmupConfig | None = Field(
        default=None, description="supervised training of the policy before the first step; null: none"
    )
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
    weight_sets: dict[str, WeightSetConfig] = Field(
        default_factory=dict,
        description="further weights of the policy by name, trained in order before its updates; terms read them as "
        "they read the reference",
    )

    @model_validator(mode="after")
    def _require_weight_sets(self) -> UpdateConfig:
        averages = [average_name(name) for name, section in self.weight_sets.items() if section.average]
        if reserved := sorted({*RESERVED, *averages} & self.weight_sets.keys()):
            raise ValueError(
                f"weight_sets must not have the names of other weights of the run, got {', '.join(reserved)}"
            )
        return self

    @property
    def num_updates(self) -> int:
        """Optimizer updates of a step."""
        return self.epochs * self.minibatches

    @property
    def passes(self) -> dict[str, Any]:
        """The arguments of ``update_policy`` for passes and minibatches."""
        return {"epochs": self.epochs, "minibatches": self.minibatches, "cycle_masks": self.cycle_masks}
