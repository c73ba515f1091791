"""Drafts: rows of an earlier step that are kept as far as the policy of now would have written them.

Axes: T decisions of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def accepted(logprob_T: Tensor, draft_logprob_T: Tensor, uniform_T: Tensor, *, lenience: float) -> int:
    """How many of the first decisions of a draft are kept: those before the first that is refused.

    A decision is kept where log u <= logprob - draft_logprob + lenience.

    Shapes: (T,) each -> 0 to T.   Units: nats; u in [0, 1).
    Source: SPEC-RL, arXiv:2509.23232, and its code (ShopeeLLM/Spec-RL, ``speculative_decoding.py``,
        spec_cut_with_knobs, whose bias is minus the lenience). Where speculative sampling, arXiv:2302.01318, draws a
        refused token from what is left of the policy, that code draws it from the policy.
    """
    refused_T = uniform_T.log() > logprob_T - draft_logprob_T + lenience
    return int((~refused_T).int().cumprod(0).sum())
