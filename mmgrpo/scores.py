"""What rewards say of samples, as it crosses modules.

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
    """A part of a sample with what a reward says of it.

    Attributes:
        start: where the part begins: a character of ``Sample.text``, or of a sample without text the number of a
            decision (of a denoising step), from 0.
        end: where it ends, itself no longer in the part.
        value: the number; None where the reward does not apply to the part, NaN or infinity where judging failed.
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
    """A reward's value with what it rests on; a reward may give one in place of a number.

    Attributes:
        value: the number; NaN or infinity where judging failed.
        explanation: what people may want to see of it, small and of what JSON knows; see ``docs/rewards.md`` for the
            keys that the report draws.
        scopes: what it says of parts of the sample, in order, none over another; None: it judges the whole alone.
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
            raise DataError(f"Score.explanation must hold what JSON can: {error}") from error

    def __float__(self) -> float:
        return float(self.value)


PER_SAMPLE = ("failed", "explanations", "scopes", "remembered")
"""The fields of ``Scores`` that hold per reward one entry for each sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the rewards said, reward by reward; a reward that does not apply to a sample is masked, never a number.

    Attributes:
        names: R reward names.
        weight_R: float32 weights.
        value_BR: float32 scores; 0 where ``valid_BR`` is False.
        valid_BR: bool, whether the reward applied and gave a finite number.
        failed: per reward, whether it failed on each sample (raised, took too long, or gave NaN or infinity).
        explanations: per reward that explains itself, one entry per sample; None where it said nothing.
        scopes: per reward that says anything of parts, one entry per sample; None where it said nothing of any.
        remembered: per reward whose results are kept, whether each sample's was known without asking.
        took_s: per reward, seconds that it ran.
    """

    names: tuple[str, ...]
    weight_R: Tensor
    value_BR: Tensor
    valid_BR: Tensor
    failed: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)
    explanations: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    scopes: Mapping[str, Sequence[Sequence[Scope] | None]] = field(default_factory=dict)
    remembered: Mapping[str, Sequence[bool | None]] = field(default_factory=dict)
    took_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        R = len(self.names)
        if self.weight_R.shape != (R,) or self.value_BR.ndim != 2 or self.value_BR.shape[1] != R:
            raise ShapeError(f"{R} rewards need weight_R ({R},) and value_BR (B, {R}), got {_described(self.value_BR)}")
        if self.valid_BR.shape != self.value_BR.shape or self.valid_BR.dtype != torch.bool:
            raise ShapeError(f"valid_BR must be bool of shape {tuple(self.value_BR.shape)}")
        if not torch.isfinite(self.value_BR).all():
            raise ShapeError("value_BR must be finite; mask what does not apply with valid_BR")
        for what in PER_SAMPLE:
            said_of = getattr(self, what)
            wrong = {name: len(said) for name, said in said_of.items() if len(said) != len(self.value_BR)}
            if wrong:
                raise ShapeError(f"{what} must be one per sample, of {len(self.value_BR)}, got {wrong}")

    @classmethod
    def concat(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several calls or processes by the same rewards, one after the other."""
        first = parts[0]
        return cls(
            names=first.names,
            weight_R=first.weight_R,
            value_BR=torch.cat([part.value_BR for part in parts]),
            valid_BR=torch.cat([part.valid_BR for part in parts]),
            took_s={name: max(part.took_s[name] for part in parts) for name in first.took_s},
            **{
                what: _joined(first.names, [(getattr(part, what), len(part.value_BR)) for part in parts])
                for what in PER_SAMPLE
            },
        )

    def rows(self, chosen: Sequence[int]) -> Scores:
        """The scores of some samples, in that order; the seconds stay those of all."""
        return replace(
            self,
            value_BR=self.value_BR[list(chosen)],
            valid_BR=self.valid_BR[list(chosen)],
            **{
                what: {name: [said[row] for row in chosen] for name, said in getattr(self, what).items()}
                for what in PER_SAMPLE
            },
        )

    def updated(self, rows: Sequence[int], newer: Scores) -> Scores:
        """The scores with those of some samples replaced by what the same rewards, or some of them, said later.

        Args:
            rows: of the samples, in the order of the newer scores.
            newer: what was said of them; seconds add up.

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
            took_s={name: seconds + newer.took_s.get(name, 0.0) for name, seconds in self.took_s.items()},
            **{what: self._entries_updated(what, rows, newer) for what in PER_SAMPLE},
        )

    def _entries_updated(self, what: str, rows: Sequence[int], newer: Scores) -> dict[str, Sequence[Any]]:
        before, after = getattr(self, what), getattr(newer, what)
        entries = dict(before)
        for name in newer.names:
            if name in before or name in after:
                said = list(before.get(name, [None] * len(self.value_BR)))
                for row, entry in zip(rows, after.get(name, [None] * len(rows)), strict=True):
                    said[row] = entry
                entries[name] = said
        return entries

    @property
    def failures(self) -> dict[str, int]:
        """Per reward, how many samples it failed on."""
        return {name: sum(map(bool, self.failed.get(name, ()))) for name in self.names}

    @property
    def cached(self) -> dict[str, int]:
        """Per reward whose results are kept, for how many samples it was not asked."""
        return {name: sum(map(bool, known)) for name, known in self.remembered.items()}

    @property
    def scored_B(self) -> Tensor:
        """Whether any reward of a weight other than 0 applied to the sample."""
        return (self.valid_BR & (self.weight_R != 0)).any(1)


def _joined(names: Sequence[str], parts: Sequence[tuple[Mapping[str, Sequence[Any]], int]]) -> dict[str, list[Any]]:
    """What rewards said of each sample of several calls, None where a call's reward said nothing."""
    return {
        name: [one for said, B in parts for one in said.get(name, [None] * B)]
        for name in names
        if any(name in said for said, _ in parts)
    }


def _require_scopes(scopes: Sequence[Scope] | None) -> None:
    if scopes is None:
        return
    if not isinstance(scopes, Sequence) or not all(isinstance(scope, Scope) for scope in scopes):
        raise DataError(f"Score.scopes must be a sequence of Scope, got {scopes!r:.80}")
    for before, after in pairwise(scopes):
        if after.start < before.end:
            raise DataError(
                f"Score.scopes must stand in order, none over another: one ends at {before.end} and the next begins at "
                f"{after.start}; parts that overlap are for two rewards"
            )


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
