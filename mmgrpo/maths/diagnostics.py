"""What an objective measures on the way, in a form that adds over slices, micro-batches and ranks.

Axes: N numbers of the diagnostics.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnostics:
    """Detached sums over kept decisions, so that slices, micro-batches and ranks add with ``+``.

    Every attribute is a float64 scalar on the device of the loss; ``log_ratio_abs_max`` combines by the maximum, the
    rest by the sum. Ratios are summed as r - 1: those of denoising steps differ from 1 by 1e-5, and the spread of
    numbers that close to 1 does not survive the difference of their squares.

    Attributes:
        num_decisions: kept decisions.
        num_weighed: those whose surrogate has a weight and an advantage.
        ratio_excess_sum: sum of r - 1.
        ratio_excess_square_sum: sum of (r - 1)^2.
        clip_low_count: decisions on which the lower bound acted.
        clip_high_count: decisions on which an upper bound acted.
        num_kl: kept decisions whose divergence was given.
        kl_sum: sum of their divergences.
        num_entropy: kept decisions whose entropy was given.
        entropy_sum: sum of their entropies.
        surrogate_sum: weighted surrogate, the first term of the loss.
        kl_loss_sum: weighted divergence times kl_beta, the second term.
        entropy_loss_sum: weighted entropy times -entropy_bonus, the third term.
        log_ratio_abs_max: largest absolute log-ratio.
    """

    num_decisions: Tensor
    num_weighed: Tensor
    ratio_excess_sum: Tensor
    ratio_excess_square_sum: Tensor
    clip_low_count: Tensor
    clip_high_count: Tensor
    num_kl: Tensor
    kl_sum: Tensor
    num_entropy: Tensor
    entropy_sum: Tensor
    surrogate_sum: Tensor
    kl_loss_sum: Tensor
    entropy_loss_sum: Tensor
    log_ratio_abs_max: Tensor

    @classmethod
    def zero(cls, device: torch.device | str | None = None) -> Diagnostics:
        """The diagnostics of no decisions: the neutral element of ``+``."""
        return cls.from_tensor(torch.zeros(len(fields(cls)), dtype=torch.float64, device=device))

    @classmethod
    def from_tensor(cls, number_N: Tensor) -> Diagnostics:
        """The inverse of ``to_tensor``."""
        return cls(**{field.name: number for field, number in zip(fields(cls), number_N.unbind(), strict=True)})

    def to_tensor(self) -> Tensor:
        """All numbers in one float64 vector, for one collective: sum the first N - 1 over ranks, maximise the last.

        Or gather the ranks' vectors and add what ``from_tensor`` makes of each.
        """
        return torch.stack([getattr(self, field.name) for field in fields(self)])

    def __add__(self, other: Diagnostics) -> Diagnostics:
        theirs_N = other.to_tensor()
        mine_N = self.to_tensor().to(theirs_N.device)  # a total begun on the CPU follows the slices to theirs
        return Diagnostics.from_tensor(
            torch.cat([mine_N[:-1] + theirs_N[:-1], torch.maximum(mine_N[-1:], theirs_N[-1:])])
        )

    def as_metrics(self) -> dict[str, float]:
        """Means and fractions over what was summed, by the names a run logs them under; waits for the device.

        ``policy/loss`` is the whole loss. ``policy/kl_mean`` and ``policy/entropy_mean`` are there only if they were
        given. Without decisions the ratio is 1 and everything else 0.
        """
        sums = dict(zip((field.name for field in fields(self)), self.to_tensor().tolist(), strict=True))
        num_decisions = max(sums["num_decisions"], 1)
        excess_mean = sums["ratio_excess_sum"] / num_decisions
        variance = sums["ratio_excess_square_sum"] / num_decisions - excess_mean**2
        metrics = {
            "policy/loss": sums["surrogate_sum"] + sums["kl_loss_sum"] + sums["entropy_loss_sum"],
            "policy/ratio_mean": 1 + excess_mean,
            "policy/ratio_std": max(variance, 0.0) ** 0.5,
            "policy/clip_low_frac": sums["clip_low_count"] / num_decisions,
            "policy/clip_high_frac": sums["clip_high_count"] / num_decisions,
        }
        if sums["num_kl"] > 0:
            metrics["policy/kl_mean"] = sums["kl_sum"] / sums["num_kl"]
        if sums["num_entropy"] > 0:
            metrics["policy/entropy_mean"] = sums["entropy_sum"] / sums["num_entropy"]
        return metrics


def total(tensor: Tensor) -> Tensor:
    """The sum of a tensor as a float64 scalar without grad.

    Shapes: any -> scalar.
    """
    return tensor.detach().sum(dtype=torch.float64)
