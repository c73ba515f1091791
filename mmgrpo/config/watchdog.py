"""The section ``evaluation.watchdog``: alerts on reward hacking and other faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from pydantic import Field, field_validator

from mmgrpo.config.registry import suggestion
from mmgrpo.config.sections import Section

AlertKind = Literal["hacking", "diversity", "length", "grid", "dead_groups", "on_policy_gap", "no_effect"]


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of a kind of alert.

    Attributes:
        default: the limit of a run that sets none.
        interval: its values, as an interval: ``(0, 1]`` is above 0 and at most 1.
        meaning: what is compared with it.
    """

    default: float
    interval: str
    meaning: str

    def admits(self, value: float) -> bool:
        """Whether the limit may have a value."""
        low, high = map(float, self.interval[1:-1].split(","))
        is_above = low < value or (low == value and self.interval[0] == "[")
        return is_above and (value < high or (value == high and self.interval[-1] == "]"))


LIMITS: Mapping[str, Limit] = MappingProxyType(
    {
        "hacking": Limit(
            0.1, "(0, inf)", "rise of the training reward and fall of a held-out reward, in standard deviations"
        ),
        "diversity": Limit(0.5, "(0, 1)", "least variety within groups, or entropy, as a share of the first window's"),
        "length": Limit(2.0, "(1, inf)", "factor on the first window's length or count of boxes, up or down"),
        "grid": Limit(0.1, "(0, inf)", "rise of grid_artifacts over the first window"),
        "dead_groups": Limit(0.9, "(0, 1]", "share of groups with equal rewards, which give no gradient"),
        "on_policy_gap": Limit(
            1.0, "(0, inf)", "largest gap, as a multiple of the smallest clip bound (of 0.01 if there is none)"
        ),
        "no_effect": Limit(
            0.0,
            "[0, 1)",
            "share of decisions that a method's reward, an estimator, filter, selection, modulation or term has to "
            "exceed in one step of a window",
        ),
    }
)
"""The limit of each kind of alert."""


def _limits_text() -> str:
    limits = "; ".join(f"{kind} ({limit.default:g}), {limit.meaning}" for kind, limit in LIMITS.items())
    return f"limit of each kind of alert, null: no such alert; kinds and their defaults: {limits}"


class WatchdogConfig(Section):
    """Alerts, each with a suggested fix: in ``alarms.jsonl``, on the console and in the report.

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
    limits: dict[str, float | None] = Field(default_factory=dict, validate_default=True, description=_limits_text())

    @field_validator("limits")
    @classmethod
    def _with_defaults(cls, limits: dict[str, float | None]) -> dict[str, float | None]:
        for kind, value in limits.items():
            if kind not in LIMITS:
                raise ValueError(f"there is no alert {kind!r}{suggestion(kind, LIMITS)}")
            if value is not None and not LIMITS[kind].admits(value):
                raise ValueError(f"the limit of {kind} must be in {LIMITS[kind].interval}, got {value:g}")
        return {kind: limit.default for kind, limit in LIMITS.items()} | limits
