"""Keys of a configuration that ``schedules`` may change during a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mmgrpo.config.renamed import renamed_key

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
    "advantage.critic": "it is trained throughout the run",
    "rollout.prompts_per_step": "the order of prompts follows from it",
    "rollout.task": "the tasks of a mixed run are combined before the run",
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


def faults(keys: Iterable[str]) -> Iterator[str]:
    """Errors in the keys that change, a sentence each."""
    for key in keys:
        if (new := renamed_key(key)) is not None:
            yield f"unknown key {key!r}; it is now {new}"
        elif (reason := why_fixed(key)) is not None:
            yield f"{key} cannot change during a run: {reason}"


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
