"""Selections: choose the decisions that count in the surrogate of an update, from values under the current weights,
without grad.

A selection changes no normalizer of the loss: a decision that it leaves out has weight 0, the weights of the others do
not change. A selection of the ratio changes no weights: the ratio's mean or sum is over the decisions that it keeps.
Divergence and entropy terms
keep every decision. Selections combine: a decision counts where all of them keep it.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the update on all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.registry import Registry
from mmgrpo.values import ENTROPY

if TYPE_CHECKING:
    from torch import Tensor

SELECTIONS: Registry[Callable[..., Selection]] = Registry(arguments=(), decorator="mmgrpo.maths.selections.selection")
"""Selections by the name that a method's configuration uses; called with their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """One selection, its settings bound.

    Attributes:
        keep: (decisions, job_entropy_N) -> bool keep_BT, over complete rows; job_entropy_N is empty unless it is
            needed.
        needs_entropy: whether the decisions must carry their entropy, and job_entropy_N that of all processes.
        of_ratio: whether decisions are left out of the ratio of their sample or segment, and not of the loss.
        name: key of the metric of the share of decisions that it leaves out.
    """

    keep: Callable[[Decisions, Tensor], Tensor]
    needs_entropy: bool = False
    of_ratio: bool = False
    name: str = "selection"


def selection(
    *,
    needs_entropy: bool = False,
    of_ratio: bool = False,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Decisions, Tensor, Numbers], Tensor]], Callable[Numbers, Selection]]:
    """A decorator: a function (decisions, job_entropy_N, *, numbers) -> keep_BT becomes a factory of selections.

    Args:
        needs_entropy: as the attribute of ``Selection``.
        of_ratio: likewise.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(Selection, "keep", check=check, needs_entropy=needs_entropy, of_ratio=of_ratio)


def require_share(share: float) -> None:
    """Raises ConfigError for a share that is not above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ConfigError(f"a selection by entropy keeps a share above 0 and at most 1, got {share}")


@SELECTIONS.register
@selection(needs_entropy=True, of_ratio=True, check=require_share)
def ratio_top_entropy(decisions: Decisions, job_entropy_N: Tensor, *, share: float) -> Tensor:
    """The ratio of a sample or segment over those of its decisions that ``top_entropy`` keeps.

    log r is the mean or sum over H >= quantile(H over the update's decisions on all processes, 1 - share), r = 1 where
    there are none.

    Units: share is dimensionless, above 0 and at most 1.   Raises: ConfigError for another share.
    Source: TRL's ``top_entropy_quantile`` of its GMPOTrainer: the geometric mean leaves out the other tokens; the
    GMPO paper has none. Deviation: the quantile is that of the update, as in ``top_entropy``.
    """
    return high_entropy_BT(decisions, job_entropy_N, share)


@SELECTIONS.register
@selection()
def near_policy(decisions: Decisions, job_entropy_N: Tensor, *, limit: float) -> Tensor:
    """Complete samples that are no worse than their group, or still likely: bad and unlikely ones are left out.

    w = 0 unless A >= 0 or mean_t (old_logprob - logprob) <= limit, the mean over the kept decisions of the row.

    Units: limit in nats per decision.
    Source: DeepSeek-V3.2, arXiv:2512.02556, off-policy sequence masking; TRL's ``off_policy_mask_threshold``.
    """
    del job_entropy_N
    keep_BT = decisions.mask_BT
    fall_BT = (decisions.old_logprob_BT - decisions.logprob_BT).detach().where(keep_BT, 0.0)
    mean_fall_B1 = fall_BT.sum(1, keepdim=True) / keep_BT.sum(1, keepdim=True).clamp(min=1)
    return keep_BT & ((decisions.advantage_BT >= 0) | (mean_fall_B1 <= limit))


def quantile(value_N: Tensor, fraction: float) -> Tensor:
    """The quantile, interpolated linearly between the two nearest values.

    Shapes: (N,) -> scalar.   Units: those of the values.   Raises: ShapeError if there are none.
    """
    if value_N.ndim != 1 or len(value_N) == 0:
        raise ShapeError(f"a quantile needs a vector of at least one value, got {tuple(value_N.shape)}")
    sorted_N = value_N.sort().values
    position = round(fraction * (len(value_N) - 1), 6)  # torch.quantile stops at 2^24 values and rounds in their dtype
    return sorted_N[math.floor(position)].lerp(sorted_N[math.ceil(position)], position % 1)


def high_entropy_BT(decisions: Decisions, job_entropy_N: Tensor, share: float) -> Tensor:
    """The kept decisions of the highest entropy of the update, this share of them.

    Shapes: complete rows (B, T), (N,) -> bool (B, T).
    """
    if not bool(decisions.mask_BT.any()):
        return decisions.mask_BT
    entropy_BT = decisions[ENTROPY].detach()
    return decisions.mask_BT & (entropy_BT >= quantile(job_entropy_N.to(entropy_BT), 1 - share))
