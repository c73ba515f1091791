"""Aggregates: the weight of each decision in the loss of an update.

The loss is sum(weight_BT * loss_BT), and the weights are exact over the batch of all processes: micro-batches, slices
of columns and ranks only add up, and the split of the batch changes nothing. A rank's gradients are therefore to be
summed over ranks, not averaged.

Every aggregate is called as (mask_BT, totals) with complete rows of the mask; the weights may then be sliced. A masked
decision weighs 0, and a sample without a kept decision is in no mean.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.maths.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

AGGREGATES: Registry[Callable[..., Tensor]] = Registry(arguments=("mask_BT", "totals"))
"""Aggregates by the name that a method's configuration uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The counts that an update averages over, summed over all processes.

    Attributes:
        num_samples: samples with at least one kept decision, and those that count as zeros.
        num_decisions: kept decisions.
        num_groups: groups with such a sample.
    """

    num_samples: int | float
    num_decisions: int | float
    num_groups: int | float = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            num_samples=self.num_samples + other.num_samples,
            num_decisions=self.num_decisions + other.num_decisions,
            num_groups=self.num_groups + other.num_groups,
        )


def count(mask_BT: Tensor, zero_B: Tensor | None = None, group_B: Tensor | None = None) -> Totals:
    """The totals of one mask; those of a job are the sums over its ranks and micro-batches.

    Samples that are True in ``zero_B`` count although the mask keeps none of their decisions. Groups are complete in a
    mask, and counted if ``group_B`` is passed.

    Shapes: bool (B, T), bool (B,), integers (B,) -> integers.
    """
    counts_B = mask_BT.any(1) if zero_B is None else mask_BT.any(1) | zero_B
    num_groups = 0 if group_B is None else len(group_B[counts_B].unique())
    return Totals(num_samples=int(counts_B.sum()), num_decisions=int(mask_BT.sum()), num_groups=num_groups)


@AGGREGATES.register
def token_mean(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Every kept decision of the job weighs the same: the mean over decisions.

    w = m / num_decisions.

    Shapes: bool (B, T) -> (B, T).   Units: 1 / decisions.
    Source: DAPO, arXiv:2503.14476, eq. 12.
    """
    return mask_BT / max(totals.num_decisions, 1)


@AGGREGATES.register
def sequence_mean(mask_BT: Tensor, totals: Totals) -> Tensor:
    """Every sample weighs the same, shared equally among its kept decisions: the mean over samples of their means.

    w = m / (kept decisions of the row * num_samples). Over denoising steps it is the mean over steps and batch.

    Shapes: bool (B, T) -> (B, T).   Units: 1 / (decisions * samples).
    Source: GRPO, arXiv:2402.03300, eq. 3; Flow-GRPO, arXiv:2505.05470. Deviation: a sample with all decisions
    masked does not count as a zero.
    """
    return mask_BT / (mask_BT.sum(1, keepdim=True).clamp(min=1) * max(totals.num_samples, 1))


@AGGREGATES.register
def sample_sum(mask_BT: Tensor, totals: Totals) -> Tensor:
    """The mean over samples of the sum over their decisions.

    w = m / num_samples. The scale of the gradient grows with the number of decisions.

    Shapes: bool (B, T) -> (B, T).   Units: 1 / samples.
    Source: LUSPO's length-unbiased sum over tokens, arXiv:2602.05261.
    """
    return mask_BT / max(totals.num_samples, 1)


@AGGREGATES.register
def constant_length(mask_BT: Tensor, totals: Totals, *, length: float) -> Tensor:
    """The sum over decisions divided by a constant, so that a sample's length does not change a decision's weight.

    w = m / (num_samples * length).

    Shapes: bool (B, T) -> (B, T).   Units: 1 / (samples * decisions).
    Source: Dr. GRPO, arXiv:2503.20783, sec. 3.2.
    """
    return mask_BT / (max(totals.num_samples, 1) * length)
