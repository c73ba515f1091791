"""The section ``evaluation.watchdog``: alerts on reward hacking and other faults."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import Field, model_validator

from mmgrpo.config.sections import Named, Section

AlertKind = Literal["hacking", "diversity", "length", "grid", "dead_groups", "on_policy_gap", "no_effect"]


class AlertConfig(Named):
    """The limit of a kind of alert: {name: length, limit: 3.0}; limit: null, no such alert."""

    name: AlertKind

    @property
    def is_disabled(self) -> bool:
        """Whether there is no such alert."""
        return self.settings.get("limit", 0.0) is None


class WatchdogConfig(Section):
    """Alerts, each with a suggested fix: in ``alerts.jsonl``, on the console and in the report.

    Means over ``window`` points are compared: evaluations for hacking and grid artifacts, steps for the rest.
    """

    alerts: tuple[AlertConfig, ...] = Field(
        default=(), description="alerts with another limit than their default; the others are as they are"
    )
    stop: tuple[AlertKind, ...] = Field(default=(), description="alerts that end the run, with a checkpoint")
    window: int = Field(
        default=6, ge=2, description="points that a mean is taken over; hacking compares its two halves"
    )
    held_out: tuple[str, ...] = Field(
        default=(),
        description="evaluation rewards that must not fall, not trained on; empty: all of those but grid_artifacts",
    )

    @model_validator(mode="after")
    def _names_each_alert_once(self) -> WatchdogConfig:
        names = [alert.name for alert in self.alerts]
        if len(set(names)) < len(names):
            raise ValueError(f"alerts: {', '.join(names)} repeat: name each alert once")
        if disabled := [alert.name for alert in self.alerts if alert.is_disabled and alert.name in self.stop]:
            raise ValueError(f"stop: {', '.join(disabled)} is never raised: set its limit in alerts, or leave it out")
        return self

    @property
    def kinds(self) -> tuple[AlertKind, ...]:
        """The alerts that may be raised."""
        disabled = {alert.name for alert in self.alerts if alert.is_disabled}
        return tuple(kind for kind in get_args(AlertKind) if kind not in disabled)
