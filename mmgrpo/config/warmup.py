"""The section ``update.warmup``."""

from __future__ import annotations

from pydantic import Field, model_validator

from mmgrpo.config.optimizer import OptimizerConfig
from mmgrpo.config.sections import Named, Section

WARMUP_OPTIMIZER = OptimizerConfig.model_validate(
    {
        "lr": 1e-3,
        "betas": [0.9, 0.99],
        "schedule": {"name": "cosine", "warmup_steps": 50, "end": 0.05},
        "max_grad_norm": 1.0,
    }
)
"""The optimizer of a warm-up that sets none."""


class WarmupConfig(Section):
    """Supervised training before GRPO: flow matching for denoisers, cross-entropy for tokens."""

    examples: Named = Field(
        description="{name: rows, source: pictures.jsonl, column: picture}; or name: python:module:function, with its "
        "arguments, which returns mmgrpo.types.Example rows"
    )
    steps: int = Field(ge=1, description="optimizer updates")
    batch_size: int = Field(default=64, ge=1, description="examples per update, over all processes")
    optimizer: OptimizerConfig = Field(
        default=WARMUP_OPTIMIZER, description="settings that are not set have the values of this default"
    )

    @model_validator(mode="after")
    def _with_defaults(self) -> WarmupConfig:
        object.__setattr__(self, "optimizer", self.optimizer.over(WARMUP_OPTIMIZER))
        return self
