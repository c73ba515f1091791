"""Log-ratios of the current policy to the behavior policy, at the level at which they are clipped.

Every level takes (log_ratio_BT, mask_BT, segment_BT) and returns a log-ratio per decision, so that later functions do
not depend on the level. Values at masked-out decisions may be anything; they never reach a kept one.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

BOUNDS: Registry[Callable[..., Bounded]] = Registry(arguments=("log_ratio_BT", "advantage_BT"))
"""Bounds of single log-ratios by the name that a method's configuration uses; bind their numbers."""


def decision_log_ratio_BT(log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Each decision's own log-ratio, unchanged.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats.
    Source: DeepSeekMath, arXiv:2402.03300, eq. 3 (tokens); Flow-GRPO, arXiv:2505.05470 (denoising steps).
    """
    del mask_BT, segment_BT
    return log_ratio_BT


def segment_log_ratio_BT(log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Mean log-ratio of the kept decisions of each segment, for all its decisions.

    log r_s = mean_{t in s} log r_t: the ratio is the geometric mean over the segment. A segment without kept decisions
    gives 0.

    Shapes: (B, T) x 3 -> (B, T); segment_BT holds any integers, equal within a row for one segment; segments of
    different rows are different.   Units: nats.
    Source: GCPO (Chunk-GRPO), arXiv:2510.21583, eq. 15; with sentences for chunks it serves text. Deviation: a
    segment weighs by its number of kept decisions, where eq. 14 weighs all segments of a sample equally.
    """
    count_BT = segment_sum_BT(torch.ones_like(log_ratio_BT), mask_BT, segment_BT)
    return segment_sum_BT(log_ratio_BT, mask_BT, segment_BT) / count_BT.clamp(min=1)


def segment_sum_BT(value_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Sum over the kept decisions of each segment, for all its decisions.

    Shapes: (B, T) x 3 -> (B, T); segments as in ``segment_log_ratio_BT``.   Units: those of the value.
    """
    id_BT = _rank_in_row_BT(segment_BT)
    masked_BT = value_BT.where(mask_BT, 0.0)
    return torch.zeros_like(masked_BT).scatter_add(1, id_BT, masked_BT).gather(1, id_BT)


def sequence_log_ratio_BT(log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Mean log-ratio of the kept decisions of each sample, for all its decisions.

    log r_i = mean_t log r_it: the length-normalized ratio of the sequence. A row without kept decisions gives 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats.
    Source: GSPO, arXiv:2507.18071, eq. 7.
    """
    del segment_BT
    sum_B1 = log_ratio_BT.where(mask_BT, 0.0).sum(1, keepdim=True)
    return (sum_B1 / mask_BT.sum(1, keepdim=True).clamp(min=1)).expand_as(log_ratio_BT)


def sequence_token_log_ratio_BT(log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """The value of the sequence's mean log-ratio with the gradient of each decision's own.

    log s_it = sg(mean_u log r_iu) + log r_it - sg(log r_it), sg = no gradient: the advantage of a decision moves that
    decision alone.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats.
    Source: GSPO-token, arXiv:2507.18071, eq. 14; verl's ``compute_policy_loss_gspo``; ms-swift's
        ``importance_sampling_level`` sequence_token.
    """
    sequence_BT = sequence_log_ratio_BT(log_ratio_BT, mask_BT, segment_BT).detach()
    kept_BT = log_ratio_BT.where(mask_BT, 0.0)
    return sequence_BT + (kept_BT - kept_BT.detach())


def trajectory_log_ratio_BT(log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Sum of the log-ratios of the kept decisions of each sample, for all its decisions.

    log r_i = sum_t log r_it: the ratio of the probabilities of the complete sample; its spread grows with the length.
    A row without kept decisions gives 0.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats.
    Source: RLOO, arXiv:2402.14740, which takes a complete sample as one action; VESPO, arXiv:2602.10693.
    """
    del segment_BT
    return log_ratio_BT.where(mask_BT, 0.0).sum(1, keepdim=True).expand_as(log_ratio_BT)


def normalized_log_ratio(log_ratio: Tensor, drift: Tensor, std: Tensor) -> Tensor:
    """Gaussian log-ratio with mean 0 and a scale independent of the step's noise (RatioNorm).

    (log r + b) * std, with b = mean((mu - mu_old)^2) / (2 std^2), the drift from the policy that sampled. Over that
    policy's samples E[log r] = -b, which pushes plain ratios below 1, away from the upper bound.

    Shapes: any, equal -> same.   Units: nats, nats, latent units -> nats times latent units.
    Source: GRPO-Guard, arXiv:2510.22319, and its code.
    """
    return (log_ratio + drift) * std


RATIO_LEVELS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "token": decision_log_ratio_BT,
        "segment": segment_log_ratio_BT,
        "sequence": sequence_log_ratio_BT,
        "sequence_token": sequence_token_log_ratio_BT,
        "trajectory": trajectory_log_ratio_BT,
    }
)
"""Levels by the name that a method's configuration uses."""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Bounded log-ratios, and the decisions at which the bound acted.

    Attributes:
        log_ratio_BT: log-ratio, with grad where the bound did not act.
        low_BT: bool, where the lower bound acted.
        high_BT: bool, where the upper bound acted.
    """

    log_ratio_BT: Tensor
    low_BT: Tensor
    high_BT: Tensor


def _rank_in_row_BT(segment_BT: Tensor) -> Tensor:
    """The segments of each row renumbered from 0 in the order of their values."""
    sorted_BT, order_BT = segment_BT.sort(1)
    starts_BT = torch.zeros_like(order_BT)
    starts_BT[:, 1:] = sorted_BT[:, 1:] != sorted_BT[:, :-1]
    return torch.empty_like(order_BT).scatter(1, order_BT, starts_BT.cumsum(1))
