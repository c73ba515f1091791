"""Texts of a rollout in the tokens of another policy.

Axes: B rows of the rollout, T its decisions, N some rows, M requested decisions, E those that begin a token here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.types import LogitsPart

from .forward_paths import ForwardPath
from .text_trace import TextTrace
from .token_scoring import decision_states


@dataclass(frozen=True, slots=True, eq=False)
class RetokenizedTrace:
    """Texts of a rollout in the tokens of another policy.

    Attributes:
        trace: the texts in the other tokens.
        index_BT: for each decision of the rollout, the position of the other token that follows the same text; -1:
            none.
    """

    trace: TextTrace
    index_BT: Tensor


def common_starts(offsets_T: Sequence[int], other_offsets: Sequence[int], length: int) -> list[int]:
    """For each token of a text, the token of another tokenization that follows the same text; -1 if there is none.

    Of several tokens that follow the same text, by tokens without text or parts of a character, it is the last one.
    Tokens after the end of the text are not compared.

    Args:
        offsets_T: length of the text after each token, in characters.
        other_offsets: that of the other tokens.
        length: length of the text.

    Returns:
        A position or -1 for each of T tokens.
    """
    position_of, other_of = _last_at(offsets_T), _last_at(other_offsets)
    index_T = [-1] * len(offsets_T)
    for start, position in position_of.items():
        if start < length and start in other_of:
            index_T[position] = other_of[start]
    return index_T


def _last_at(offsets_T: Sequence[int]) -> dict[int, int]:
    """The last token that follows so many characters."""
    return {start: t for t, start in enumerate((0, *offsets_T)[: len(offsets_T)])}


def retokenized_logits(
    path: ForwardPath, retokenized: RetokenizedTrace, rows: Sequence[int], mask_NT: Tensor
) -> LogitsPart:
    """The logits that follow the same texts as some decisions; zeros for decisions without a common text.

    Args:
        path: forward path of the rows.
        retokenized: the texts.
        rows: N of its rows.
        mask_NT: bool, M decisions of these rows.

    Returns:
        A function of consecutive decisions.
    """
    trace, index_NT = retokenized.trace, retokenized.index_BT[list(rows), : mask_NT.shape[1]]
    longest = max(len(trace.completions[row].token_T) for row in rows)
    begins_NT = mask_NT & (index_NT >= 0)
    other_mask_NU = torch.zeros(len(rows), longest, dtype=torch.bool)
    row_E, _ = begins_NT.nonzero(as_tuple=True)
    other_mask_NU[row_E, index_NT[begins_NT]] = True
    state_of_NU = (other_mask_NU.flatten().cumsum(0) - 1).view_as(other_mask_NU)
    state_NT = torch.full_like(index_NT, -1)
    state_NT[begins_NT] = state_of_NU[row_E, index_NT[begins_NT]]
    state_M = state_NT[mask_NT]
    begun = other_mask_NU.any(1).nonzero()[:, 0].tolist()
    states_ED = decision_states(path, trace, [rows[n] for n in begun], other_mask_NU[begun]) if begun else None

    def part(start: int, stop: int) -> Tensor:
        state_m = state_M[start:stop]
        if states_ED is None:
            return torch.zeros(len(state_m), path.vocabulary)
        logits_mV = path.logits(states_ED[state_m.clamp(min=0).to(states_ED.device)])
        return logits_mV.masked_fill((state_m < 0)[:, None].to(logits_mV.device), 0.0)

    return part
