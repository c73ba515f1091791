"""Log-probabilities of the tokens of a rollout, by any forward path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmgrpo.types import LogitsPart
from mmgrpo.values import OF_TWO_DISTRIBUTIONS, Value

from ..completion import Completion
from ..sampling import Support, compute_supports, token_logprobs
from .attention import ATTENTION_VALUES, attention_values
from .forward_paths import CachedPath, ForwardPath
from .text_trace import TextTrace
from .token_values import END_VALUES, ROW_VALUES, pair_value, row_value, token_value

NO_LOGITS: Mapping[str, LogitsPart] = MappingProxyType({})
NOT_BY_TOKEN = frozenset((*ROW_VALUES, *ATTENTION_VALUES, *END_VALUES, *OF_TWO_DISTRIBUTIONS))
"""Names of values that are not functions of the distribution of a token alone."""


def score_rows(
    path: ForwardPath,
    trace: TextTrace,
    rows: Sequence[int],
    *,
    head_bytes: int,
    mask_NT: Tensor | None = None,
    values: Sequence[Value] = (),
    view_logits: Mapping[str, LogitsPart] = NO_LOGITS,
) -> tuple[Tensor, list[Tensor]]:
    """Log-probability of every token of some rows, concatenated, under the rows' sampling distribution.

    Args:
        path: forward path of the rows.
        trace: the trace of the rollout.
        rows: N of its rows, which may share a batch, all with one distribution.
        head_bytes: maximum size of float32 logits in memory.
        mask_NT: the requested tokens; None requests all.
        values: further requested values of the distributions and of the hidden states, as in ``token_values``.
        view_logits: the logits of views at the requested tokens, for values of two distributions.

    Returns:
        logprob_M, and a vector for each of the values; float32.
    """
    completions = [trace.completions[row] for row in rows]
    sampling = completions[0].sampling
    exists_NT = _requested(completions, mask_NT)
    T = exists_NT.shape[1]
    tokens = [completion.token_T[:T] for completion in completions]
    ends = [value for value in values if value.name in END_VALUES]
    input_tokens = [torch.cat([token_T, token_T[-1:]]) for token_T in tokens] if ends else tokens
    states_NTD = path.states(trace, rows, input_tokens)
    after_NTD, states_NTD = states_NTD[:, 1:], states_NTD[:, :T]
    index = exists_NT.to(states_NTD.device)
    token_NT = pad_sequence(tokens, batch_first=True).to(states_NTD.device)
    support = None
    if sampling.truncates:
        rows_of = zip(completions, exists_NT, strict=True)
        support = Support.concat([c.support.at(keep_T) for c, keep_T in rows_of if c.support is not None])
    pairs = [value for value in values if value.name in OF_TWO_DISTRIBUTIONS]
    by_token = [value for value in values if value.name not in NOT_BY_TOKEN]
    logprob_M, of_tokens = token_logprobs(
        states_NTD[index],
        token_NT[index],
        path.logits,
        sampling,
        chunk=head_bytes // (4 * path.vocabulary),
        support=support,
        extra_values=[partial(token_value, value) for value in by_token],
        pair_values=[partial(pair_value, value, view_logits[str(value.view)], sampling) for value in pairs],
    )
    value_M = dict(zip((*by_token, *pairs), of_tokens, strict=True)) | _attention_values(
        path, trace, rows, index, values
    )
    if ends:
        value_M |= _end_values(path, after_NTD, completions, exists_NT, ends)
    return logprob_M, [
        value_M[requested] if requested in value_M else row_value(requested, states_NTD, index) for requested in values
    ]


def decision_states(path: ForwardPath, trace: TextTrace, rows: Sequence[int], mask_NT: Tensor) -> Tensor:
    """The states that predict the requested tokens of some rows, row by row.

    Shapes: bool (N, T) -> (M, D).
    """
    completions = [trace.completions[row] for row in rows]
    exists_NT = _requested(completions, mask_NT)
    T = exists_NT.shape[1]
    states: dict[int, Tensor] = {}
    place_of = {row: n for n, row in enumerate(rows)}
    for batch in path.batches(trace, rows):
        states_NTD = path.states(trace, batch, [trace.completions[row].token_T[:T] for row in batch])
        for row, states_TD in zip(batch, states_NTD, strict=True):
            keep_T = exists_NT[place_of[row], : len(states_TD)].to(states_TD.device)
            states[row] = states_TD[: len(keep_T)][keep_T]
    return torch.cat([states[row] for row in rows])


def _requested(completions: Sequence[Completion], mask_NT: Tensor | None) -> Tensor:
    """Bool (N, T), the tokens that exist and that a mask keeps, up to its last column."""
    lengths_N = torch.tensor([len(completion.token_T) for completion in completions])
    exists_NT = torch.arange(int(lengths_N.max()))[None] < lengths_N[:, None]
    return exists_NT if mask_NT is None else exists_NT[:, : mask_NT.shape[1]] & mask_NT


def _end_values(
    path: ForwardPath, after_NTD: Tensor, completions: Sequence[Completion], exists_NT: Tensor, ends: Sequence[Value]
) -> dict[Value, Tensor]:
    """Values at the position after the end of finished texts, at their last tokens, of the (M,) requested ones; 0
    elsewhere.
    """
    last_NT = torch.zeros_like(exists_NT)
    for row, completion in enumerate(completions):
        if completion.finished and len(completion.token_T) <= last_NT.shape[1]:
            last_NT[row, len(completion.token_T) - 1] = True
    last_NT, device = last_NT & exists_NT, after_NTD.device
    nothing_M = torch.zeros(int(exists_NT.sum()), device=device)
    if not bool(last_NT.any()):
        return dict.fromkeys(ends, nothing_M)
    logits_EV, position_E = path.logits(after_NTD[last_NT.to(device)]), last_NT[exists_NT].nonzero()[:, 0].to(device)
    return {
        value: nothing_M.index_put((position_E,), END_VALUES[value.name](logits_EV, *value.numbers)) for value in ends
    }


def _attention_values(
    path: ForwardPath, trace: TextTrace, rows: Sequence[int], keep_NT: Tensor, values: Sequence[Value]
) -> dict[Value, Tensor]:
    """The attention values among these, (M,) each; every row runs separately, in full."""
    attention = [value for value in values if value.name in ATTENTION_VALUES]
    if not attention:
        return {}
    assert isinstance(path, CachedPath)
    row_values = []
    for row, keep_T in zip(rows, keep_NT, strict=True):
        prompt, token_T = trace.prompts[trace.prompt_of_B[row]], trace.completions[row].token_T
        values_T = attention_values(path.transformer, prompt, token_T, attention, fill=path.fill)
        row_values.append([value_T[: len(keep_T)][keep_T[: len(token_T)]] for value_T in values_T])
    return dict(zip(attention, (torch.cat(parts) for parts in zip(*row_values, strict=True)), strict=True))


@torch.no_grad()
def with_supports(path: ForwardPath, trace: TextTrace, *, head_bytes: int) -> TextTrace:
    """The trace with the support of each token filled in, where sampling truncates and no support is stored.

    It is the support under the current policy; the sampled token is always included.
    """
    completions: list[Completion] = list(trace.completions)
    rows = [
        row
        for row, completion in enumerate(completions)
        if completion.sampling.truncates and completion.support is None
    ]
    for batch in path.batches(trace, rows):
        tokens = [completions[row].token_T for row in batch]
        states_NTD = path.states(trace, batch, tokens)
        chunk = head_bytes // (4 * path.vocabulary)
        for row, states_TD, token_T in zip(batch, states_NTD, tokens, strict=True):
            taken_T = token_T.to(states_TD.device)
            support = compute_supports(
                states_TD[: len(token_T)], taken_T, path.logits, completions[row].sampling, chunk=chunk
            )
            completions[row] = replace(completions[row], support=support)
    return replace(trace, completions=completions)
