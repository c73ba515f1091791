"""DPPO, arXiv:2409.00588: Diffusion Policy Policy Optimization.

Early denoising steps have tighter bounds and count less.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import MODULATIONS, JobValues, Modulated, modulation
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _in_sample(decisions: Decisions) -> tuple[Tensor, Tensor]:
    """The numbers of decisions of its sample before and after each decision. Shapes: -> float64 (B, T) each."""
    T = decisions.mask_BT.shape[1]
    before_T = torch.arange(T, dtype=torch.float64, device=decisions.mask_BT.device)
    return before_T.expand(decisions.mask_BT.shape), (T - 1 - before_T).expand(decisions.mask_BT.shape)


def _in_segment(decisions: Decisions) -> tuple[Tensor, Tensor]:
    """The numbers of decisions of its contiguous segment before and after each decision."""
    column_BT, to_come_BT = _in_sample(decisions)
    ends_BT = decisions.segment_BT[:, 1:] != decisions.segment_BT[:, :-1]
    edge_B1 = torch.ones_like(decisions.mask_BT[:, :1])
    first_BT = column_BT.where(torch.cat([edge_B1, ends_BT], dim=1), 0).cummax(1).values
    last_BT = to_come_BT.where(torch.cat([ends_BT, edge_B1], dim=1), 0).flip(1).cummax(1).values.flip(1)
    return column_BT - first_BT, to_come_BT - last_BT


Places = Callable[[Decisions], "tuple[Tensor, Tensor]"]
PLACES: Mapping[str, Places] = MappingProxyType({"sample": _in_sample, "segment": _in_segment})


def _require_each(each: str) -> None:
    if each not in PLACES:
        raise ConfigError(f"places are counted in each of {' or '.join(PLACES)}, got {each!r}")


def _check_growing_bounds(rate: float, each: str) -> None:
    if rate == 0:
        raise ConfigError("growing bounds need a rate other than 0")
    _require_each(each)


@MODULATIONS.register
@modulation(bounds=True, check=_check_growing_bounds)
def growing_bounds(
    decisions: Decisions,
    job_values: JobValues,
    *,
    first: float,
    last: float,
    rate: float = 3.0,
    each: Literal["sample", "segment"] = "sample",
) -> Modulated:
    """Bounds that grow exponentially from the first decision of each sample, or of each segment of it, to the last.

    low = high = first + (last - first) (exp(rate t) - 1) / (exp(rate) - 1), t = k / (K - 1), k the decision's place
    among the K of its sample or segment.

    Units: first and last as the surrogate takes them; rate is dimensionless, not 0.   Raises: ConfigError for rate 0.
    Source: DPPO, arXiv:2409.00588, and its code (irom-princeton/dppo,
        ``diffusion_ppo.py``): 0.001 to 0.01 at rate 3.
    """
    del job_values
    before_BT, after_BT = PLACES[each](decisions)
    share_BT = before_BT / (before_BT + after_BT).clamp(min=1)
    bound_BT = first + (last - first) * (rate * share_BT).expm1() / math.expm1(rate)
    return Modulated(low_BT=bound_BT, high_BT=bound_BT)


@MODULATIONS.register
@modulation(check=_require_each)
def discounted_steps(
    decisions: Decisions, job_values: JobValues, *, gamma: float, each: Literal["sample", "segment"] = "sample"
) -> Modulated:
    """Earlier decisions of each sample, or of each segment of it, count less.

    loss = gamma^(K - 1 - k), k the position of the decision among the K of its sample or segment.

    Units: gamma is dimensionless (0.99).
    Source: DPPO, arXiv:2409.00588, and its code: the denoising discount of the advantage.
    """
    del job_values
    _, after_BT = PLACES[each](decisions)
    factor_BT = torch.full_like(after_BT, gamma).pow(after_BT)
    return Modulated(loss_BT=factor_BT.to(decisions.logprob_BT.detach()))
