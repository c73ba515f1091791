"""Scores: the results of rewards, as they cross modules.

Axes: B samples, R rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import DataError, ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a sample with its score.

    Attributes:
        start: first character of the part in ``Sample.text``; for a sample without text, its first decision (denoising
            step), from 0.
        end: one past the last character or decision.
        value: the score; None if the reward does not apply to the part, NaN or infinity if scoring failed.
    """

    start: int
    end: int
    value: float | None

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            if type(getattr(self, name)) is not int:
                raise DataError(f"Scope.{name} must be an integer, got {getattr(self, name)!r:.60}")
        if not 0 <= self.start < self.end:
            raise DataError(f"a scope must begin at 0 or later and end after it begins, got {self.start} to {self.end}")


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's value with an explanation; a reward may return one in place of a number.

    Attributes:
        value: the number; NaN or infinity if scoring failed.
        explanation: small, JSON-serializable details for people; ``docs/how-to/reward-explanations.md`` has the keys
            that the report renders.
        scopes: scores of parts of the sample, in order, without overlap; None: only the full sample is scored.
    """

    value: float
    explanation: Mapping[str, Any] = field(default_factory=dict)
    scopes: Sequence[Scope] | None = None

    def __post_init__(self) -> None:
        _require_scopes(self.scopes)
        if not isinstance(self.explanation, Mapping):
            raise DataError(f"Score.explanation must be a mapping, got {type(self.explanation).__name__}")
        try:
            json.dumps(dict(self.explanation), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"Score.explanation must be JSON-serializable: {error}") from error

    def __float__(self) -> float:
        return float(self.value)


PER_SAMPLE = ("failed", "explanations", "scopes", "is_cached")
"""The fields of ``Scores`` that hold, per reward, one entry per sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of a batch, per reward; a reward that does not apply to a sample is masked, never a number.

    Attributes:
        names: R reward names.
        weight_R: float32 weights.
        value_BR: float32 scores; 0 where ``valid_BR`` is False.
        valid_BR: bool, whether the reward applied and gave a finite number.
        failed: per reward, whether it failed on each sample (raised, timed out, or gave NaN or infinity).
        explanations: per reward with explanations, one entry per sample; None: no explanation.
        scopes: per reward that scores parts, one entry per sample; None: no scored parts.
        is_cached: per reward with a cache, whether each sample's score is from the cache.
        duration_s: per reward, its run time in seconds.
    """

    names: tuple[str, ...]
    weight_R: Tensor
    value_BR: Tensor
    valid_BR: Tensor
    failed: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)
    explanations: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    scopes: Mapping[str, Sequence[Sequence[Scope] | None]] = field(default_factory=dict)
    is_cached: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)
    duration_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        R = len(self.names)
        if self.weight_R.shape != (R,) or self.value_BR.ndim != 2 or self.value_BR.shape[1] != R:
            raise ShapeError(f"{R} rewards need weight_R ({R},) and value_BR (B, {R}), got {_described(self.value_BR)}")
        if self.valid_BR.shape != self.value_BR.shape or self.valid_BR.dtype != torch.bool:
            raise ShapeError(f"valid_BR must be bool of shape {tuple(self.value_BR.shape)}")
        if not torch.isfinite(self.value_BR).all():
            raise ShapeError("value_BR must be finite; mask rewards that do not apply with valid_BR")
        for field_name in PER_SAMPLE:
            entries_by_reward = getattr(self, field_name)
            wrong = {
                name: len(entries) for name, entries in entries_by_reward.items() if len(entries) != len(self.value_BR)
            }
            if wrong:
                raise ShapeError(f"{field_name} must be one per sample, of {len(self.value_BR)}, got {wrong}")

    @classmethod
    def concat(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several calls or processes by the same rewards, concatenated along the samples."""
        first = parts[0]
        return cls(
            names=first.names,
            weight_R=first.weight_R,
            value_BR=torch.cat([part.value_BR for part in parts]),
            valid_BR=torch.cat([part.valid_BR for part in parts]),
            duration_s={name: max(part.duration_s[name] for part in parts) for name in first.duration_s},
            **{
                field_name: _concat_entries(
                    first.names, [(getattr(part, field_name), len(part.value_BR)) for part in parts]
                )
                for field_name in PER_SAMPLE
            },
        )

    @classmethod
    def joined(cls, names: Sequence[str], parts: Sequence[Scores]) -> Scores:
        """The scores of the same samples by several sets of rewards.

        Args:
            names: the rewards of all parts, in the order of the result.
            parts: the scores.

        Returns:
            The scores.
        """
        order = [name for part in parts for name in part.names]
        columns = [order.index(name) for name in names]
        return cls(
            names=tuple(names),
            weight_R=torch.cat([part.weight_R for part in parts])[columns],
            value_BR=torch.cat([part.value_BR for part in parts], dim=1)[:, columns],
            valid_BR=torch.cat([part.valid_BR for part in parts], dim=1)[:, columns],
            **{
                field_name: {name: value for part in parts for name, value in getattr(part, field_name).items()}
                for field_name in (*PER_SAMPLE, "duration_s")
            },
        )

    def rows(self, chosen: Sequence[int]) -> Scores:
        """The scores of some samples, in the order of ``chosen``; the seconds remain those of all samples."""
        return replace(
            self,
            value_BR=self.value_BR[list(chosen)],
            valid_BR=self.valid_BR[list(chosen)],
            **{
                field_name: {
                    name: [entries[row] for row in chosen] for name, entries in getattr(self, field_name).items()
                }
                for field_name in PER_SAMPLE
            },
        )

    def updated(self, rows: Sequence[int], newer: Scores) -> Scores:
        """The scores with those of some samples replaced by newer ones of the same rewards, or of some of them.

        Args:
            rows: sample indices, in the order of the newer scores.
            newer: the newer scores; seconds are added.

        Returns:
            The scores.
        """
        value_BR, valid_BR = self.value_BR.clone(), self.valid_BR.clone()
        for column, name in enumerate(newer.names):
            value_BR[list(rows), self.names.index(name)] = newer.value_BR[:, column]
            valid_BR[list(rows), self.names.index(name)] = newer.valid_BR[:, column]
        return replace(
            self,
            value_BR=value_BR,
            valid_BR=valid_BR,
            duration_s={name: seconds + newer.duration_s.get(name, 0.0) for name, seconds in self.duration_s.items()},
            **{field_name: self._entries_updated(field_name, rows, newer) for field_name in PER_SAMPLE},
        )

    def _entries_updated(self, field_name: str, rows: Sequence[int], newer: Scores) -> dict[str, Sequence[Any]]:
        before, after = getattr(self, field_name), getattr(newer, field_name)
        entries = dict(before)
        for name in newer.names:
            if name in before or name in after:
                updated_entries = list(before.get(name, [None] * len(self.value_BR)))
                for row, entry in zip(rows, after.get(name, [None] * len(rows)), strict=True):
                    updated_entries[row] = entry
                entries[name] = updated_entries
        return entries

    @property
    def failures(self) -> dict[str, int]:
        """Per reward, the number of samples it failed on."""
        return {name: sum(map(bool, self.failed.get(name, ()))) for name in self.names}

    @property
    def cached(self) -> dict[str, int]:
        """Per reward with a cache, the number of samples with a score from the cache."""
        return {name: sum(map(bool, hits)) for name, hits in self.is_cached.items()}

    @property
    def custom_metrics(self) -> dict[str, float]:
        """Means of the numbers under ``metrics`` in the explanations, over the samples that have them."""
        notes = [note.get("metrics") for notes in self.explanations.values() for note in notes if note is not None]
        values: dict[str, list[float]] = {}
        for metrics in notes:
            for name, value in metrics.items() if isinstance(metrics, Mapping) else ():
                if isinstance(value, int | float):
                    values.setdefault(f"custom/{name}", []).append(value)
        return {name: sum(numbers) / len(numbers) for name, numbers in values.items()}

    @property
    def scored_B(self) -> Tensor:
        """Whether any reward with a nonzero weight applied to the sample."""
        return (self.valid_BR & (self.weight_R != 0)).any(1)


def _concat_entries(
    names: Sequence[str], parts: Sequence[tuple[Mapping[str, Sequence[Any]], int]]
) -> dict[str, list[Any]]:
    """One entry per sample of several calls, None for calls in which a reward has no entries."""
    return {
        name: [entry for entries, B in parts for entry in entries.get(name, [None] * B)]
        for name in names
        if any(name in entries for entries, _ in parts)
    }


def _require_scopes(scopes: Sequence[Scope] | None) -> None:
    if scopes is None:
        return
    if not isinstance(scopes, Sequence) or not all(isinstance(scope, Scope) for scope in scopes):
        raise DataError(f"Score.scopes must be a sequence of Scope, got {scopes!r:.80}")
    for before, after in pairwise(scopes):
        if after.start < before.end:
            raise DataError(
                f"Score.scopes must be in order and not overlap: one ends at {before.end} and the next begins at "
                f"{after.start}; score overlapping parts by separate rewards"
            )


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
