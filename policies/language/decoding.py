"""Draws completions token by token; finished rows leave the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mmgrpo.policies.language.prefix import Prefix, growing, static
from mmgrpo.policies.language.sampling import Sampling, Support, drawn
from mmgrpo.policies.language.transformer import Transformer

COMPACT_BELOW = 0.75  # share of rows still writing at which the others are dropped from the batch
NEVER = -1e30  # logits below it are the model's own way to say that a token is not written
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


class Tape:
    """What N rows write, token by token: it draws each token and keeps what was drawn.

    Attributes:
        length: the most tokens a row may write, T.
    """

    def __init__(
        self,
        sampling: Sampling,
        *,
        rows: int,
        length: int,
        device: torch.device,
        uniform_NT: Tensor | None = None,
        given_NT: Tensor | None = None,
    ) -> None:
        """An empty tape.

        Args:
            sampling: the distribution drawn from.
            rows: N.
            length: T.
            device: where the logits are.
            uniform_NT: the random number of each decision, in [0, 1); None takes the likeliest token.
            given_NT: tokens that are written whatever the logits say; None draws them.
        """
        self.length = length
        self._sampling = sampling
        self._uniform_NT = None if uniform_NT is None else uniform_NT.to(device)
        self._given_NT = None if given_NT is None else given_NT.to(device)
        self._token_NT = torch.zeros(rows, length, dtype=torch.long, device=device)
        self._logprob_NT = torch.zeros(rows, length, device=device)
        self._certainty_NT = torch.zeros(rows, length, device=device)
        self._supports: list[list[Support]] = [[] for _ in range(rows)]

    def write(self, t: int, row_n: Tensor, logits_nV: Tensor) -> Tensor:
        """Draws token t of some of the rows.

        Shapes: row numbers (n,), raw logits (n, V) float32 -> tokens (n,).
        """
        self._certainty_NT[row_n, t] = _certainty(logits_nV / self._sampling.temperature)
        logits_nV = self._sampling.tempered(logits_nV)
        if self._sampling.truncates and self._uniform_NT is not None:
            keep_nV = self._sampling.support(logits_nV)
            logits_nV = logits_nV.masked_fill(~keep_nV, -torch.inf)
            for row, support in zip(row_n.tolist(), Support.of(keep_nV), strict=True):
                self._supports[row].append(support)
        if self._given_NT is not None:
            token_n = self._given_NT[row_n, t]
        elif self._uniform_NT is not None:
            token_n = drawn(logits_nV, self._uniform_NT[row_n, t])
        else:
            token_n = logits_nV.argmax(-1)
        self._token_NT[row_n, t] = token_n
        self._logprob_NT[row_n, t] = logits_nV.gather(-1, token_n[:, None])[:, 0] - logits_nV.logsumexp(-1)
        return token_n

    def completions(self, end_ids: Tensor) -> list[Completion]:
        """What each row wrote up to its first end token, on the CPU."""
        ends_NT = torch.isin(self._token_NT, end_ids).cpu()
        written = zip(
            self._token_NT.cpu(), self._logprob_NT.cpu(), self._certainty_NT.cpu(), ends_NT, self._supports, strict=True
        )
        return [_cut(*row) for row in written]


@torch.no_grad()
def complete(transformer: Transformer, prefix: Prefix, tape: Tape, *, end_ids: Tensor, compiled: bool = False) -> None:
    """Completes every row of a prefix.

    Args:
        transformer: the model.
        prefix: N rows.
        tape: what the N rows are written on.
        end_ids: tokens that end a completion.
        compiled: whether to decode over a static cache with a compiled forward; no row then leaves the batch.
    """
    device, N = prefix.hidden_ND.device, len(prefix.hidden_ND)
    row_n, ended_n = torch.arange(N, device=device), torch.zeros(N, dtype=torch.bool, device=device)
    prefix = static(prefix, transformer.model.config, tape.length) if compiled else growing(prefix)
    look_every = LOOK_EVERY_ON_GPU if device.type == "cuda" else 1
    for t in range(tape.length):
        token_n = tape.write(t, row_n, transformer.logits(prefix.hidden_ND))
        ended_n = ended_n | torch.isin(token_n, end_ids)
        if t + 1 == tape.length:
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


def _certainty(logits_nV: Tensor) -> Tensor:
    """KL(uniform || policy) over the tokens that the model can write at all."""
    there_nV = logits_nV > NEVER
    count_n = there_nV.sum(-1)
    return logits_nV.logsumexp(-1) - logits_nV.where(there_nV, 0.0).sum(-1) / count_n - count_n.log()


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
