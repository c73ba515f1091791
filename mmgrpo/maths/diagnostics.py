"""Diagnostics of an objective, as sums over terms, slices, micro-batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeVar

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T", "Tensor | float", "ValueSum")


@dataclass(frozen=True, slots=True)
class ValueSum:
    """The number of decisions with a value, and the sum of the values.

    Attributes:
        count: kept decisions with a value.
        total: the sum over them.
    """

    count: Tensor | float
    total: Tensor | float

    def __add__(self, other: ValueSum) -> ValueSum:
        return ValueSum(self.count + other.count, self.total + other.total)

    def as_numbers(self) -> ValueSum:
        """The same as floats; waits for the device."""
        return ValueSum(float(self.count), float(self.total))


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Detached sums over kept decisions, so that terms, slices, micro-batches and ranks add with ``+``.

    Every number is a float64 scalar on the device of the loss, or 0; ``log_ratio_abs_max`` combines by the maximum, the
    rest by the sum. Ratios are summed as r - 1: those of denoising steps differ from 1 by 1e-5, and the spread of
    numbers that close to 1 does not survive the difference of their squares.

    Attributes:
        num_decisions: kept decisions.
        num_weighed: those with a weight and an advantage in the surrogate.
        ratio_excess_sum: sum of r - 1.
        ratio_excess_square_sum: sum of (r - 1)^2.
        clip_low_count: decisions on which the lower bound acted.
        clip_high_count: decisions on which an upper bound acted.
        log_ratio_abs_max: largest absolute log-ratio.
        loss_sums: each term's part of the loss, by its name.
        value_sums: the values that terms read, by the term's name.
        change_sums: how many decisions each mechanism of the objective changed, by the key of its metric.
    """

    num_decisions: Tensor | float = 0.0
    num_weighed: Tensor | float = 0.0
    ratio_excess_sum: Tensor | float = 0.0
    ratio_excess_square_sum: Tensor | float = 0.0
    clip_low_count: Tensor | float = 0.0
    clip_high_count: Tensor | float = 0.0
    log_ratio_abs_max: Tensor | float = 0.0
    loss_sums: Mapping[str, Tensor | float] = field(default_factory=dict)
    value_sums: Mapping[str, ValueSum] = field(default_factory=dict)
    change_sums: Mapping[str, ValueSum] = field(default_factory=dict)

    def __add__(self, other: Diagnostics) -> Diagnostics:
        return Diagnostics(
            **{name: getattr(self, name) + getattr(other, name) for name in _SUMMED},
            log_ratio_abs_max=_larger(self.log_ratio_abs_max, other.log_ratio_abs_max),
            loss_sums=_sum_by_name(self.loss_sums, other.loss_sums, 0.0),
            value_sums=_sum_by_name(self.value_sums, other.value_sums, ValueSum(0.0, 0.0)),
            change_sums=_sum_by_name(self.change_sums, other.change_sums, ValueSum(0.0, 0.0)),
        )

    def as_numbers(self) -> Diagnostics:
        """The same as floats, to hand to other processes or to add on; waits for the device."""
        return Diagnostics(
            **{name: float(getattr(self, name)) for name in (*_SUMMED, "log_ratio_abs_max")},
            loss_sums={name: float(loss) for name, loss in self.loss_sums.items()},
            value_sums={name: v.as_numbers() for name, v in self.value_sums.items()},
            change_sums={name: v.as_numbers() for name, v in self.change_sums.items()},
        )

    def as_metrics(self) -> dict[str, float]:
        """Means and fractions of the sums, by the names of their metrics; waits for the device.

        ``policy/loss`` is the total loss, ``policy/loss/NAME`` a term's part if there are several.
        ``policy/NAME_mean`` is the mean of the value that a term reads, if it reads one. Without decisions the ratio is
        1 and everything else 0.
        """
        sums = self.as_numbers()
        num_decisions = max(float(sums.num_decisions), 1)
        excess_mean = sums.ratio_excess_sum / num_decisions
        variance = sums.ratio_excess_square_sum / num_decisions - excess_mean**2
        metrics = {
            "policy/loss": float(sum(sums.loss_sums.values())),
            "policy/ratio_mean": float(1 + excess_mean),
            "policy/ratio_std": float(max(variance, 0.0) ** 0.5),
            "policy/clip_low_frac": float(sums.clip_low_count / num_decisions),
            "policy/clip_high_frac": float(sums.clip_high_count / num_decisions),
        }
        for name, value_sum in sums.value_sums.items():
            if value_sum.count > 0:
                metrics[f"policy/{name}_mean"] = float(value_sum.total / value_sum.count)
        if len(sums.loss_sums) > 1:
            metrics |= {f"policy/loss/{name}": float(loss) for name, loss in sums.loss_sums.items()}
        return metrics


_BY_NAME = ("loss_sums", "value_sums", "change_sums")
_SUMMED = tuple(f.name for f in fields(Diagnostics) if f.name not in ("log_ratio_abs_max", *_BY_NAME))


def total(tensor: Tensor) -> Tensor:
    """The sum of a tensor as a float64 scalar without grad.

    Shapes: any -> scalar.
    """
    return tensor.detach().sum(dtype=torch.float64)


def of_value(name: str, value_BT: Tensor, keep_BT: Tensor) -> dict[str, ValueSum]:
    """How many decisions are kept, and the sum of their values, under a name.

    Shapes: (B, T), bool (B, T) -> scalars.
    """
    return {name: ValueSum(total(keep_BT), total(value_BT.where(keep_BT, 0.0)))}


def _sum_by_name(left: Mapping[str, T], right: Mapping[str, T], nothing: T) -> dict[str, T]:
    return {name: left.get(name, nothing) + right.get(name, nothing) for name in {**left, **right}}  # pyrefly: ignore[bad-return]


def _larger(left: Tensor | float, right: Tensor | float) -> Tensor | float:
    """The larger of two numbers that are not negative, without waiting for the device."""
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        return torch.maximum(left, right)
    if isinstance(left, torch.Tensor) or isinstance(right, torch.Tensor):
        return left if isinstance(left, torch.Tensor) else right  # the other one is the 0 of no decisions
    return max(left, right)
