"""The lines of a run folder as the ``log_history`` of transformers' trainers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "policy/loss": "loss",
    "policy/kl_mean": "kl",
    "policy/entropy_mean": "entropy",
    "policy/clip_low_frac": "clip_ratio/low_mean",
    "policy/clip_high_frac": "clip_ratio/high_mean",
    "optimizer/grad_norm": "grad_norm",
    "optimizer/lr": "learning_rate",
    "reward/mean": "reward",
    "groups/zero_std_frac": "frac_reward_zero_std",
    "completions/clipped_frac": "completions/clipped_ratio",
}
"""Metrics by TRL's name, where both mean the same; other metrics have their own name."""


def log_history(
    updates: Sequence[Mapping[str, Any]], evaluations: Sequence[Mapping[str, Any]], num_updates: int, every: int
) -> list[dict[str, float]]:
    """Means over every so many updates, and the evaluations, in the order of their updates.

    Args:
        updates: lines of ``metrics.jsonl``, one per update.
        evaluations: lines of ``evaluation.jsonl``.
        num_updates: updates per step.
        every: updates per entry; 0: no entries of updates.

    Returns:
        The entries; ``step`` counts updates from 1.
    """
    entries: list[dict[str, float]] = []
    for end in range(every, len(updates) + 1, every) if every else ():
        window = updates[end - every : end]
        names = dict.fromkeys(name for line in window for name in line if name not in ("step", "update"))
        values = {name: [line[name] for line in window if isinstance(line.get(name), int | float)] for name in names}
        means = {_name(name): sum(numbers) / len(numbers) for name, numbers in values.items() if numbers}
        entries.append({"step": end, **means})
    entries += [{"step": line["step"] * num_updates, **evaluation_means(line, "eval")} for line in evaluations]
    return sorted(entries, key=lambda entry: entry["step"])


def evaluation_means(metrics: Mapping[str, Any], prefix: str) -> dict[str, float]:
    """The metrics of an evaluation by TRL's names.

    Args:
        metrics: by name in ``evaluation.jsonl``.
        prefix: begins the names.

    Returns:
        The metrics.
    """
    names = {name: name.removeprefix("eval/") for name in metrics if name.startswith("eval/")}
    return {
        f"{prefix}_{_name(short) if short.startswith('custom/') else f'rewards/{short}'}": metrics[name]
        for name, short in names.items()
    }


def _name(name: str) -> str:
    if name in NAMES:
        return NAMES[name]
    return f"rewards/{name[7:]}" if name.startswith("reward/") else name.removeprefix("custom/")
