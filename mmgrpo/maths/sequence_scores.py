"""Scores: a number per sample, from the log-probabilities of its decisions.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import UnknownNameError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.feedback import row_mean
from mmgrpo.maths.terms import ratio_of
from mmgrpo.values import OLD, Value

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceScore:
    """A score, and the values that it reads.

    Attributes:
        of: decisions -> score_B, with grad; 0 for a sample without a kept decision.
        values: values of the decisions that it reads besides the log-probability.
    """

    of: Callable[[Decisions], Tensor]
    values: tuple[Value, ...] = ()


def mean_log_ratio(logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the kept decisions of logprob - other.

    Shapes: (B, T) x 3 -> (B,).   Units: nats per decision.   Source: GSPO, arXiv:2507.18071, eq. 7, before exp.
    """
    return row_mean(logprob_BT - other_BT, mask_BT)


def sum_log_ratio(logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the kept decisions of logprob - other.

    Shapes: (B, T) x 3 -> (B,).   Units: nats.   Source: DPO's implicit reward, arXiv:2305.18290, eq. 5, over beta.
    """
    return (logprob_BT - other_BT).where(mask_BT, 0.0).sum(1)


def mean_ratio(logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the kept decisions of exp(logprob - other), clamped to 20 nats.

    Shapes: (B, T) x 3 -> (B,).   Units: dimensionless.   Source: DisCO, arXiv:2505.12366, the likelihood ratio.
    """
    return row_mean(ratio_of(logprob_BT - other_BT), mask_BT)


def mean_logprob(logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Mean over the kept decisions of logprob.

    Shapes: (B, T) x 3 -> (B,).   Units: nats per decision.   Source: DisCO, arXiv:2505.12366, the log-likelihood.
    """
    del other_BT
    return row_mean(logprob_BT, mask_BT)


def sum_logprob(logprob_BT: Tensor, other_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Sum over the kept decisions of logprob.

    Shapes: (B, T) x 3 -> (B,).   Units: nats.   Source: the log-likelihood of the sample.
    """
    del other_BT
    return logprob_BT.where(mask_BT, 0.0).sum(1)


SCORES: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "mean_log_ratio": mean_log_ratio,
        "sum_log_ratio": sum_log_ratio,
        "mean_ratio": mean_ratio,
        "mean_logprob": mean_logprob,
        "sum_logprob": sum_logprob,
    }
)
"""Scores by the name that a method's configuration uses."""


def score(name: str, *, against: str = OLD) -> SequenceScore:
    """The score of that name, its ratio against the policy that sampled or another view.

    Raises: UnknownNameError for a name that is none.
    """
    if name not in SCORES:
        raise UnknownNameError(f"unknown score {name!r}; choose from {', '.join(SCORES)}")
    other = None if against == OLD or name.endswith("logprob") else Value("logprob", against)

    def of(decisions: Decisions) -> Tensor:
        keep_BT = decisions.mask_BT
        other_BT = decisions.old_logprob_BT if other is None else decisions[other]
        # masked before any arithmetic: 0 * inf in a backward pass is NaN
        return SCORES[name](decisions.logprob_BT.where(keep_BT, 0.0), other_BT.detach().where(keep_BT, 0.0), keep_BT)

    return SequenceScore(of=of, values=() if other is None else (other,))
