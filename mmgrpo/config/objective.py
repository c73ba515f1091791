"""The section ``objective``."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from mmgrpo.config.kl import KLConfig
from mmgrpo.config.losses import AuxiliaryConfig, TermConfig
from mmgrpo.config.sections import Named, Section
from mmgrpo.config.views import RESERVED, ViewConfig

Level = Literal["token", "step", "segment", "sequence", "sequence_token", "trajectory"]

PER_DECISION = (None, "token", "step")
"""Levels at which every decision has a separate ratio."""


def level_name(level: str | None) -> str:
    """The name in ``RATIO_LEVELS`` of a level of the configuration."""
    return "token" if level in PER_DECISION or level is None else level


NOISE_SHARE = 0.1
"""Share of the clip range that numerical noise may use."""

NOISE_WITHOUT_CLIP = 1e-2
"""A ratio wrong by 1 % scales its gradient by 1 %."""


class OffPolicyConfig(Section):
    """The surrogate of off-policy rows: replay and demonstrations."""

    surrogate: Named = Field(description="as objective.surrogate")
    ratio_level: Level | None = Field(default=None, description="as objective.ratio_level")
    weight: float = Field(default=1.0, ge=0, description="factor on their loss; 0: it is not computed")


class LossKLConfig(KLConfig):
    """The divergence from the reference that is added to the loss."""

    ratio_level: Level | None = Field(
        default=None,
        description="level of the ratio that multiplies the divergence, with gradient; token (or step) makes k1, k2 "
        "and k3 unbiased off policy; null: no ratio",
    )


class ObjectiveConfig(Section):
    """The loss: see mmgrpo.maths.objectives."""

    surrogate: Named | None = Field(
        default_factory=lambda: Named.model_validate({"name": "clipped", "low": 0.2, "high": 0.2}),
        description="loss of a decision, as a function of its ratio and advantage; null: only the terms",
    )
    off_policy: OffPolicyConfig | None = Field(
        default=None, description="surrogate of off-policy rows; null: that of on-policy rows"
    )
    terms: tuple[TermConfig, ...] = Field(
        default=(), description="further terms of the loss, added to the surrogate or replacing it"
    )
    modulations: tuple[Named, ...] = Field(
        default=(), description="bounds, weight and divergence that differ from decision to decision, in order"
    )
    ratio_level: Level | None = Field(
        default=None,
        description="decisions that a ratio is taken over: null, each decision, for policies of any kind; token, the "
        "same for policies that generate tokens; step, for denoising policies; segment and sequence, geometric means; "
        "sequence_token, the value of sequence with the gradient of each decision; trajectory, the product",
    )
    bound: Named | None = Field(
        default=None, description="bound of each decision's log-ratio, before the level averages"
    )
    selections: tuple[Named, ...] = Field(
        default=(),
        description="decisions that count in the surrogate; the others have weight 0, and the denominators of the "
        "means do not change",
    )
    truncated: Literal["keep", "zero", "drop"] = Field(
        default="keep",
        description="samples cut off by their length limit: keep trains on them; zero leaves their decisions out, "
        "and the means over samples count them as zeros (TRL); drop leaves them out of every mean",
    )
    normalize_ratio: bool = Field(
        default=False, description="Gaussian log-ratios are centered and divided by their scale first (GRPO-Guard)"
    )
    aggregate: Named = Field(
        default_factory=lambda: Named(name="sequence_mean"), description="weight of a decision in the loss of an update"
    )
    step_weight: Named | None = Field(default=None, description="further weight of a denoising step's surrogate")
    kl: LossKLConfig = Field(default_factory=LossKLConfig)
    entropy_bonus: float = Field(
        default=0.0,
        description="weight of the entropy, a mean by the aggregate over all trained decisions, with or "
        "without selections; not for denoising policies",
    )

    auxiliary: tuple[AuxiliaryConfig, ...] = Field(
        default=(), description="supervised losses added to the same updates; none: no such loss"
    )
    views: dict[str, ViewConfig] = Field(
        default_factory=dict,
        description="named auxiliary forward passes over the decisions, under other weights or another prompt",
    )

    @model_validator(mode="after")
    def _names_are_unique(self) -> ObjectiveConfig:
        labels = [loss.label for loss in self.auxiliary]
        if len(set(labels)) < len(labels):
            raise ValueError(f"auxiliary losses are logged by label, and {labels} repeat: give each a different one")
        if reserved := [name for name in self.views if name in RESERVED]:
            raise ValueError(f"views must not have the names of the run's own weights, got {', '.join(reserved)}")
        return self

    @property
    def ratio_levels(self) -> dict[str, Level]:
        """The levels that are set, by their key."""
        levels: dict[str, Level | None] = {
            "objective.ratio_level": self.ratio_level,
            "objective.off_policy.ratio_level": self.off_policy.ratio_level if self.off_policy else None,
            "objective.kl.ratio_level": self.kl.ratio_level,
        }
        return {key: level for key, level in levels.items() if level is not None}

    @property
    def clip_bound(self) -> float | None:
        """The smallest bound on |ratio - 1| in the surrogate; None if it has none."""
        numbers = {} if self.surrogate is None else self.surrogate.settings
        bounds = [numbers[name] for name in ("low", "high") if numbers.get(name) is not None]
        return min(bounds) if bounds else None

    @property
    def noise_limit(self) -> float:
        """The largest log-ratio before any update that may come from numerical noise."""
        return NOISE_WITHOUT_CLIP if self.clip_bound is None else NOISE_SHARE * self.clip_bound
