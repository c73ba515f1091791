"""The section ``critic``."""

from __future__ import annotations

from pydantic import Field

from mmgrpo.config.sections import Named, Section


class CriticConfig(Section):
    """A value of states, learnt in the same updates by an optimiser of its own; the estimator gae reads it."""

    policy: Named | None = Field(
        default=None,
        description="the model under it, loaded as policy: is and trained as that says; null: another copy of policy:",
    )
    lr: float = Field(default=1e-5, gt=0, description="its schedule and the rest are those of update")
    max_grad_norm: float | None = Field(default=1.0, gt=0, description="null: not clipped")
    clip: float | None = Field(
        default=0.5,
        gt=0,
        description="an update gains nothing by values further than this from the rollout's; null: no limit",
    )
    gamma: float = Field(default=1.0, gt=0, le=1, description="of what it learns to say, as gae's for the policy")
    decay: float = Field(default=0.95, ge=0, le=1, description="likewise; 1: the reward that came, discounted")
    warmup_steps: int = Field(default=0, ge=0, description="first steps that train the critic and not the policy")
    freeze_after: int | None = Field(
        default=None, ge=1, description="steps after which the critic is frozen; null: never"
    )
