"""Draws completions token by token; finished rows leave the batch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.policies.language.prefix import Prefix, growing, static
from mmgrpo.policies.language.sampling import Sampling, Support, drawn
from mmgrpo.policies.language.transformer import Transformer

COMPACT_BELOW = 0.75  # share of rows still writing at which the others are dropped from the batch
LOOK_EVERY_ON_GPU = 8  # steps between looks at what has finished; each waits for the device


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What one row wrote.

    Attributes:
        token_T: token ids, the end token included.
        logprob_T: log-probability of each under the distribution it was drawn from, float32.
        support: the tokens that could be drawn, where sampling truncates.
        finished: whether it ended by an end token.
        certainty: mean over its tokens of KL(uniform || policy), the whole vocabulary under the temperature; nats.
    """

    token_T: Tensor
    logprob_T: Tensor
    support: Support | None
    finished: bool
    certainty: float | None = None


@torch.no_grad()
def complete(
    transformer: Transformer,
    prefix: Prefix,
    uniform_NT: Tensor | None,
    sampling: Sampling,
    *,
    end_ids: Tensor,
    max_new_tokens: int,
    compiled: bool = False,
) -> list[Completion]:
    """Completes every row of a prefix.

    Args:
        transformer: the model.
        prefix: N rows.
        uniform_NT: the random number of each decision, (N, max_new_tokens) in [0, 1); None takes the likeliest token.
        sampling: the distribution drawn from.
        end_ids: tokens that end a completion.
        max_new_tokens: longest completion.
        compiled: whether to decode over a static cache with a compiled forward; no row then leaves the batch.

    Returns:
        N completions, on the CPU.
    """
    device, N = prefix.hidden_ND.device, len(prefix.hidden_ND)
    token_NT = torch.zeros(N, max_new_tokens, dtype=torch.long, device=device)
    logprob_NT = torch.zeros(N, max_new_tokens, device=device)
    certainty_NT = torch.zeros(N, max_new_tokens, device=device)
    supports: list[list[Support]] = [[] for _ in range(N)]
    uniform_NT = None if uniform_NT is None else uniform_NT.to(device)
    row_n, ended_n = torch.arange(N, device=device), torch.zeros(N, dtype=torch.bool, device=device)
    prefix = static(prefix, transformer.model.config, max_new_tokens) if compiled else growing(prefix)
    look_every = LOOK_EVERY_ON_GPU if device.type == "cuda" else 1
    for t in range(max_new_tokens):
        logits_nV = transformer.logits(prefix.hidden_ND)
        certainty_NT[row_n, t] = _certainty(logits_nV / sampling.temperature)
        logits_nV = sampling.tempered(logits_nV)
        if sampling.truncates and uniform_NT is not None:
            keep_nV = sampling.support(logits_nV)
            logits_nV = logits_nV.masked_fill(~keep_nV, -torch.inf)
            for row, support in zip(row_n.tolist(), Support.of(keep_nV), strict=True):
                supports[row].append(support)
        token_n = logits_nV.argmax(-1) if uniform_NT is None else drawn(logits_nV, uniform_NT[row_n, t])
        token_NT[row_n, t] = token_n
        logprob_NT[row_n, t] = logits_nV.gather(-1, token_n[:, None])[:, 0] - logits_nV.logsumexp(-1)
        ended_n = ended_n | torch.isin(token_n, end_ids)
        if t + 1 == max_new_tokens:
            break
        if (t + 1) % look_every == 0:
            writing = (~ended_n).nonzero()[:, 0]
            if len(writing) == 0:
                break
            if len(writing) < COMPACT_BELOW * len(row_n) and not compiled:
                prefix, token_n, row_n, ended_n = (
                    prefix.rows(writing),
                    token_n[writing],
                    row_n[writing],
                    ended_n[writing],
                )
        prefix, _ = transformer.extend(prefix, token_n[:, None])
    ends = torch.isin(token_NT, end_ids).cpu()
    drawn_rows = zip(token_NT.cpu(), logprob_NT.cpu(), certainty_NT.cpu(), ends, supports, strict=True)
    return [_cut(*row) for row in drawn_rows]


def _certainty(logits_nV: Tensor) -> Tensor:
    return logits_nV.logsumexp(-1) - logits_nV.mean(-1) - math.log(logits_nV.shape[-1])


def _cut(token_T: Tensor, logprob_T: Tensor, certainty_T: Tensor, end_T: Tensor, supports: list[Support]) -> Completion:
    """A row up to its first end token."""
    ends = end_T.nonzero()[:, 0]
    length = int(ends[0]) + 1 if len(ends) else len(token_T)
    return Completion(
        token_T=token_T[:length].clone(),
        logprob_T=logprob_T[:length].clone(),
        support=Support.chained(supports[:length]) if supports else None,
        finished=len(ends) > 0,
        certainty=float(certainty_T[:length].mean()),
    )
