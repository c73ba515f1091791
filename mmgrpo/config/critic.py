"""The section ``critic``."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Named, Section


class CriticConfig(Section):
    """A value model, trained in the same updates by a separate optimizer; the estimator gae reads its values."""

    policy: Named | None = Field(
        default=None,
        description="model that the critic is built on, loaded and trained as the section policy describes; null: "
        "another copy of policy",
    )
    lr: float = Field(
        default=1e-5, gt=0, description="learning rate; schedule and other optimizer settings are those of update"
    )
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="null: not clipped")
    clip: float | None = Field(
        default=0.5,
        gt=0,
        description="clip range of the value loss around the rollout's values; null: not clipped",
    )
    gamma: float = Field(
        default=1.0, gt=0, le=1, description="discount of the critic's target, as gae's for the policy"
    )
    decay: float = Field(
        default=0.95, ge=0, le=1, description="lambda of the critic's target; 1: the discounted return"
    )
    warmup_steps: int = Field(default=0, ge=0, description="first steps that train the critic and not the policy")
    freeze_after: int | None = Field(
        default=None, ge=1, description="steps after which the critic is frozen; null: never"
    )
