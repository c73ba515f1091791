"""Token-by-token decoding of a batch, for models that do not decode in slots; finished rows leave the batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..prefix import Prefix, with_growing_cache, with_static_cache
from ..token_buffer import TokenBuffer
from .transformer import Transformer

COMPACT_BELOW = 0.75  # share of unfinished rows below which finished rows leave the batch
LOOK_EVERY_ON_GPU = 8  # steps between checks for finished rows; each check waits for the device


@torch.no_grad()
def decode_rows(
    transformer: Transformer, prefix: Prefix, buffer: TokenBuffer, *, end_ids: Tensor, compiled: bool = False
) -> None:
    """Completes every row of a prefix.

    Args:
        transformer: the model.
        prefix: N rows.
        buffer: the buffer that samples and stores the tokens of the N rows.
        end_ids: tokens that end a completion.
        compiled: whether to decode over a static cache with a compiled forward; no row then leaves the batch, and the
            cache has further rows, which are not read.
    """
    device, N = prefix.hidden_ND.device, len(prefix.hidden_ND)
    row_n, ended_n = torch.arange(N, device=device), torch.zeros(N, dtype=torch.bool, device=device)
    prefix = (
        with_static_cache(prefix, transformer.model.config, buffer.length) if compiled else with_growing_cache(prefix)
    )
    look_every = LOOK_EVERY_ON_GPU if device.type == "cuda" else 1
    for t in range(buffer.length):
        token_n = buffer.write(t, row_n, transformer.logits(prefix.hidden_ND[: len(row_n)]))
        ended_n = ended_n | torch.isin(token_n, end_ids) | (buffer.limit_N[row_n] <= t + 1)
        if t + 1 == buffer.length:
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
        num_further = len(prefix.hidden_ND) - len(row_n)
        prefix, _ = transformer.extend(prefix, pad(token_n, (0, num_further))[:, None])
