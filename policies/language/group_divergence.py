"""Divergence of the distributions of a group's members, per token position.

Axes: B rows of a rollout, G rows of a group, T tokens, c tokens of a chunk, V vocabulary, D model width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .forward_paths import ForwardPath
from .text_trace import TextTrace

FARTHEST = 11.0
"""Differences of log-probabilities are clipped to this, since their exponential would overflow."""


def member_divergence(logprob_GcV: Tensor) -> Tensor:
    """Mean divergence of the members' distributions from the mean log-probabilities.

    D = mean_G sum_V (e^d - d - 1), d = clip(mean_G log p - log p, -11, 11).

    Shapes: (G, c, V) -> (c,).   Units: nats.
    Source: TW-GRPO, arXiv:2505.24718, and its code (TW-GRPO, ``compute_token_importance_kl_logs_uniform``).
    """
    difference_GcV = (logprob_GcV.mean(0) - logprob_GcV).clamp(-FARTHEST, FARTHEST)
    return (difference_GcV.exp() - difference_GcV - 1).sum(-1).mean(0)


@torch.no_grad()
def group_divergence(path: ForwardPath, trace: TextTrace, group_B: Tensor, *, head_bytes: int) -> Tensor:
    """``member_divergence`` of each row's group at each token; the distribution of a row is uniform after its end.

    It is computed at temperature 1 over the full vocabulary, and is the same for all members.

    Args:
        path: forward path of the rows.
        trace: the rows.
        group_B: group of each row.
        head_bytes: maximum size of float32 logits in memory.

    Returns:
        (B, T), 0 after the end of a row.
    """
    tokens = [completion.token_T for completion in trace.completions]
    divergence_BT = torch.zeros(len(tokens), max(map(len, tokens)))
    for group in group_B.unique().tolist():
        rows = (group_B == group).nonzero().flatten().tolist()
        divergence_T = _of_group(path, trace, rows, chunk=head_bytes // (4 * path.vocabulary * len(rows)))
        for row in rows:
            divergence_BT[row, : len(tokens[row])] = divergence_T[: len(tokens[row])]
    return divergence_BT


def _of_group(path: ForwardPath, trace: TextTrace, rows: Sequence[int], *, chunk: int) -> Tensor:
    lengths = {row: len(trace.completions[row].token_T) for row in rows}
    states: dict[int, Tensor] = {}
    for batch in path.batches(trace, rows):
        states_NTD = path.states(trace, batch, [trace.completions[row].token_T for row in batch])
        states |= {row: states_TD[: lengths[row]] for row, states_TD in zip(batch, states_NTD, strict=True)}
    parts, chunk = [], max(chunk, 1)
    for start in range(0, max(lengths.values()), chunk):
        width = min(chunk, max(lengths.values()) - start)
        logprob_GcV = torch.full((len(rows), width, path.vocabulary), -math.log(path.vocabulary))
        for member, row in enumerate(rows):
            here_cD = states[row][start : start + width]
            if len(here_cD):
                logprob_cV = path.logits(here_cD).log_softmax(-1)
                logprob_GcV = logprob_GcV.to(logprob_cV.device)
                logprob_GcV[member, : len(here_cD)] = logprob_cV
        parts.append(member_divergence(logprob_GcV).cpu())
    return torch.cat(parts)
