"""Keys of a configuration that may change during a run, and the sections that change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from pydantic import Field

from mmgrpo.config.renamed import renamed_key
from mmgrpo.config.sections import Section

MOVABLE = (
    "objective.",
    "advantage.",
    "rollout.",
    "policy.",
    "rewards.",
    "update.optimizer.max_grad_norm",
)
"""Prefixes of the keys that may change from step to step."""

FIXED = {
    "rollout.prompts_per_step": "the order of prompts follows from it",
    "objective.views": "forward passes are planned before the run",
    "objective.truncated": "it fixes which samples count, for the complete run",
    "policy.name": "it defines the trained model",
    "policy.model": "it defines the trained model",
    "policy.revision": "it defines the trained model",
    "policy.adapter": "it defines the initial weights",
    "policy.dtype": "it is the data type of the weights",
    "policy.lora": "it defines the trained model",
    "policy.denoisers": "they define the trained model",
}
"""Keys with these prefixes that are fixed -> the reason."""

REWARD_TRAITS = ("name", "label", "gate", "schedule", "timeout_s", "concurrent", "deterministic")


class PhaseConfig(Section):
    """Values of several keys up to a step."""

    until: int | None = Field(
        default=None, ge=1, description="the first step after the phase, counted from 0; null: the last phase"
    )
    set: dict[str, Any] = Field(description="dotted key -> value, for example {policy.max_new_tokens: 4096}")


def moving_keys(schedules: Mapping[str, Any], phases: tuple[PhaseConfig, ...]) -> dict[str, list[str]]:
    """Every key that changes during the run -> the sections that change it."""
    sections_by_key = {key: ["schedules"] for key in schedules}
    for key in dict.fromkeys(key for phase in phases for key in phase.set):
        sections_by_key.setdefault(key, []).append("phases")
    return sections_by_key


def faults(keys: dict[str, list[str]], phases: tuple[PhaseConfig, ...]) -> Iterator[str]:
    """Errors in the keys that change and in the order of the phases, a sentence each."""
    for key, sections in keys.items():
        if (new := renamed_key(key)) is not None:
            yield f"unknown key {key!r}; it is now {new}"
            continue
        if len(sections) > 1:
            yield f"{key} is changed by {' and by '.join(sections)}; remove all but one"
        if (reason := why_fixed(key)) is not None:
            yield f"{key} cannot change during a run: {reason}"
    ends = [phase.until for phase in phases]
    if None in ends[:-1] or any(
        end is not None and after is not None and end >= after for end, after in pairwise(ends)
    ):
        yield f"phases: until must increase, and only the last phase may omit it, got {ends}"


def why_fixed(key: str) -> str | None:
    """The reason that a key is fixed; None if it may change."""
    if not key.startswith(MOVABLE):
        return f"keys that can begin with {', '.join(MOVABLE)}"
    for fixed, reason in FIXED.items():
        if key == fixed or key.startswith(f"{fixed}."):
            return reason
    _, _, rest = key.partition(".")
    if key.startswith("objective.auxiliary.") and key.rpartition(".")[2] != "weight":
        return "of an auxiliary loss only the weight can, as objective.auxiliary.LABEL.weight"
    if key.startswith("rewards.") and ("." not in rest or rest.rpartition(".")[2] in REWARD_TRAITS):
        return "of a reward only its weight, its clip and the numbers of its function can, as rewards.LABEL.NUMBER"
    return None
