"""What rewards say of samples, as it crosses modules.

Axes: B samples, R rewards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import DataError, ShapeError


@dataclass(frozen=True, slots=True)
class Score:
    """A reward's value with what it rests on; a reward may give one in place of a number.

    Attributes:
        value: the number; NaN or infinity where judging failed.
        explanation: what people may want to see of it, small and of what JSON knows; see ``docs/rewards.md`` for the
            keys that the report draws.
    """

    value: float
    explanation: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.explanation, Mapping):
            raise DataError(f"Score.explanation must be a mapping, got {type(self.explanation).__name__}")
        try:
            json.dumps(dict(self.explanation), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"Score.explanation must hold what JSON can: {error}") from error

    def __float__(self) -> float:
        return float(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What the rewards said, reward by reward; a reward that does not apply to a sample is masked, never a number.

    Attributes:
        names: R reward names.
        weight_R: float32 weights.
        value_BR: float32 scores; 0 where ``valid_BR`` is False.
        valid_BR: bool, whether the reward applied and gave a finite number.
        failures: per reward, how many samples it failed on (raised, took too long, or gave NaN or infinity).
        explanations: per reward that explains itself, one entry per sample; None where it said nothing.
        cached: per reward whose results are kept, for how many samples it was not asked.
        took_s: per reward, seconds that it ran.
    """

    names: tuple[str, ...]
    weight_R: Tensor
    value_BR: Tensor
    valid_BR: Tensor
    failures: Mapping[str, int] = field(default_factory=dict)
    explanations: Mapping[str, Sequence[Mapping[str, Any] | None]] = field(default_factory=dict)
    cached: Mapping[str, int] = field(default_factory=dict)
    took_s: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        R = len(self.names)
        if self.weight_R.shape != (R,) or self.value_BR.ndim != 2 or self.value_BR.shape[1] != R:
            raise ShapeError(f"{R} rewards need weight_R ({R},) and value_BR (B, {R}), got {_described(self.value_BR)}")
        if self.valid_BR.shape != self.value_BR.shape or self.valid_BR.dtype != torch.bool:
            raise ShapeError(f"valid_BR must be bool of shape {tuple(self.value_BR.shape)}")
        if not torch.isfinite(self.value_BR).all():
            raise ShapeError("value_BR must be finite; mask what does not apply with valid_BR")
        wrong = {name: len(said) for name, said in self.explanations.items() if len(said) != len(self.value_BR)}
        if wrong:
            raise ShapeError(f"explanations must be one per sample, of {len(self.value_BR)}, got {wrong}")

    @classmethod
    def joined(cls, parts: Sequence[Scores]) -> Scores:
        """The scores of several calls or processes by the same rewards, one after the other."""
        first = parts[0]
        return cls(
            names=first.names,
            weight_R=first.weight_R,
            value_BR=torch.cat([part.value_BR for part in parts]),
            valid_BR=torch.cat([part.valid_BR for part in parts]),
            failures={name: sum(part.failures.get(name, 0) for part in parts) for name in first.names},
            explanations={
                name: [said for part in parts for said in part.explanations.get(name, [None] * len(part.value_BR))]
                for name in first.names
                if any(name in part.explanations for part in parts)
            },
            cached={name: sum(part.cached[name] for part in parts) for name in first.cached},
            took_s={name: max(part.took_s[name] for part in parts) for name in first.took_s},
        )

    def rows(self, chosen: Sequence[int]) -> Scores:
        """The scores of some samples, in that order; counts stay those of all."""
        return replace(
            self,
            value_BR=self.value_BR[list(chosen)],
            valid_BR=self.valid_BR[list(chosen)],
            explanations={name: [said[row] for row in chosen] for name, said in self.explanations.items()},
        )

    @property
    def scored_B(self) -> Tensor:
        """Whether any reward of a weight other than 0 applied to the sample."""
        return (self.valid_BR & (self.weight_R != 0)).any(1)


def _described(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"
