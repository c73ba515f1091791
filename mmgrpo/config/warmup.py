"""The section ``warmup``."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Named, Section


class WarmupConfig(Section):
    """Supervised training before GRPO: flow matching for denoisers, cross-entropy for tokens."""

    examples: Named = Field(
        description="{name: rows, source: pictures.jsonl, column: picture}; or name: python:module:function, with its "
        "arguments, which returns mmgrpo.types.Example rows"
    )
    steps: int = Field(ge=1, description="optimizer updates")
    batch_size: int = Field(default=64, ge=1, description="examples per update, over all processes")
    lr: float = Field(default=1e-3, gt=0)
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = Field(default=0.0, ge=0)
    lr_warmup_steps: int = Field(default=50, ge=0, description="updates of the linear ramp")
    lr_floor: float = Field(default=0.05, ge=0, le=1, description="the cosine schedule ends at this fraction of lr")
    max_grad_norm: float = Field(default=1.0, gt=0)
    log_every: int = Field(default=50, ge=1, description="updates between lines of warmup.jsonl")
