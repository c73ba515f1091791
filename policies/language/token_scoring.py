"""Log-probabilities of the tokens of a rollout, by any forward path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mmgrpo.values import Value

from ..completion import Completion
from ..sampling import Support, compute_supports, token_logprobs
from .attention import ATTENTION_VALUES, attention_values
from .forward_paths import CachedPath, ForwardPath
from .text_trace import TextTrace
from .token_values import END_VALUES, ROW_VALUES, row_value, token_value


def score_rows(
    path: ForwardPath,
    trace: TextTrace,
    rows: Sequence[int],
    *,
    head_bytes: int,
    mask_NT: Tensor | None = None,
    values: Sequence[Value] = (),
) -> tuple[Tensor, list[Tensor]]:
    """Log-probability of every token of some rows, concatenated, under the rows' sampling distribution.

    Args:
        path: forward path of the rows.
        trace: the trace of the rollout.
        rows: N of its rows, which may share a batch, all with one distribution.
        head_bytes: maximum size of float32 logits in memory.
        mask_NT: the requested tokens; None requests all.
        values: further requested values of the distributions and of the hidden states, as in ``token_values``.

    Returns:
        logprob_M, and a vector for each of the values; float32.
    """
    completions = [trace.completions[row] for row in rows]
    sampling = completions[0].sampling
    lengths_N = torch.tensor([len(completion.token_T) for completion in completions])
    exists_NT = torch.arange(int(lengths_N.max()))[None] < lengths_N[:, None]
    if mask_NT is not None:
        exists_NT = exists_NT[:, : mask_NT.shape[1]] & mask_NT
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
    by_token = [value for value in values if value.name not in (*ROW_VALUES, *ATTENTION_VALUES, *END_VALUES)]
    logprob_M, of_tokens = token_logprobs(
        states_NTD[index],
        token_NT[index],
        path.logits,
        sampling,
        chunk=head_bytes // (4 * path.vocabulary),
        support=support,
        extra_values=[partial(token_value, value) for value in by_token],
    )
    value_M = dict(zip(by_token, of_tokens, strict=True)) | _attention_values(path, trace, rows, index, values)
    if ends:
        value_M |= _end_values(path, after_NTD, completions, exists_NT, ends)
    return logprob_M, [
        value_M[requested] if requested in value_M else row_value(requested, states_NTD, index) for requested in values
    ]


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
