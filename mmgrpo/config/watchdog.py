"""The section ``evaluation.watchdog``: alerts on reward hacking and other faults."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from mmgrpo.config.sections import Section

AlertKind = Literal["hacking", "diversity", "length", "grid", "dead_groups", "on_policy_gap", "no_effect"]


class AlertLimitsConfig(Section):
    """The limit of each kind of alert; null: no such alert."""

    hacking: float | None = Field(
        default=0.1,
        gt=0,
        description="rise of the training reward and fall of a held-out reward, in standard deviations",
    )
    diversity: float | None = Field(
        default=0.5, gt=0, lt=1, description="least variety within groups, or entropy, as a share of the first window's"
    )
    length: float | None = Field(
        default=2.0, gt=1, description="factor on the first window's length or count of boxes, up or down"
    )
    grid: float | None = Field(default=0.1, gt=0, description="rise of grid_artifacts over the first window")
    dead_groups: float | None = Field(
        default=0.9, gt=0, le=1, description="share of groups with equal rewards, which give no gradient"
    )
    on_policy_gap: float | None = Field(
        default=1.0,
        gt=0,
        description="largest gap, as a multiple of the smallest clip bound (of 0.01 if there is none)",
    )
    no_effect: float | None = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of decisions that a method's reward, an estimator, filter, selection, modulation or term "
        "has to exceed in one step of a window",
    )


class WatchdogConfig(Section):
    """Alerts, each with a suggested fix: in ``alerts.jsonl``, on the console and in the report.

    Means over ``window`` points are compared: evaluations for hacking and grid artifacts, steps for the rest.
    """

    stop: tuple[AlertKind, ...] = Field(default=(), description="alerts that end the run, with a checkpoint")
    window: int = Field(
        default=6, ge=2, description="points that a mean is taken over; hacking compares its two halves"
    )
    interval: int = Field(default=10, ge=1, description="steps before an alert of the same kind is raised again")
    held_out: tuple[str, ...] = Field(
        default=(),
        description="evaluation rewards that must not fall, not trained on; empty: all of those but grid_artifacts",
    )
    limits: AlertLimitsConfig = Field(default_factory=AlertLimitsConfig)
