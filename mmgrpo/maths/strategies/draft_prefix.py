"""Drafts: rows of an earlier step, of which the prefix that the current policy accepts is kept.

Axes: T decisions of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def accepted(logprob_T: Tensor, draft_logprob_T: Tensor, uniform_T: Tensor, *, lenience: float) -> int:
    """The number of the first decisions of a draft that are kept: those before the first rejection.

    A decision is kept where log u <= logprob - draft_logprob + lenience.

    Shapes: (T,) each -> 0 to T.   Units: nats; u in [0, 1).
    Source: SPEC-RL, arXiv:2509.23232, and its code (ShopeeLLM/Spec-RL, ``speculative_decoding.py``,
        spec_cut_with_knobs; its bias is minus the lenience). Where speculative sampling, arXiv:2302.01318, samples a
        rejected token from the residual of the policy, that code samples it from the policy.
    """
    refused_T = uniform_T.log() > logprob_T - draft_logprob_T + lenience
    return int((~refused_T).int().cumprod(0).sum())
