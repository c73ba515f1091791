"""A buffer for N rows of tokens, sampled one decision at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from .completion import Completion
from .sampling import (
    SamplingDistribution,
    Support,
    entropy,
    sample_tokens,
    self_certainty,
    semantic_entropy,
)

TOKEN_STATISTICS: Mapping[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = MappingProxyType(
    {
        "certainty": lambda plain_nV, _, __: self_certainty(plain_nV),
        "entropy": lambda _, logits_nV, __: entropy(logits_nV),
        "semantic_entropy": lambda _, logits_nV, embedding_VD: semantic_entropy(logits_nV, embedding_VD),
    }
)
"""Statistics that can be stored per token: functions of the logits under the temperature only, of the sampling logits,
and of the token embeddings.
"""


class TokenBuffer:
    """Samples and stores the tokens of N rows.

    Attributes:
        length: maximum number of tokens of a row, T.
        limit_N: maximum number of tokens of each row.
    """

    def __init__(
        self,
        sampling: SamplingDistribution,
        *,
        limit_N: Tensor,
        device: torch.device,
        uniform_NT: Tensor | None = None,
        forced_NT: Tensor | None = None,
        random_T: Tensor | None = None,
        numbers: tuple[str, ...] = (),
        embedding_VD: Tensor | None = None,
    ) -> None:
        """Creates an empty buffer.

        Args:
            sampling: the sampling distribution.
            limit_N: maximum number of tokens of each row.
            device: device of the logits.
            uniform_NT: the random number of each decision, in [0, 1); None takes the likeliest token.
            forced_NT: tokens to store for any logits; None samples them.
            random_T: bool, False at decisions that take the likeliest token nevertheless; None: all are sampled.
            numbers: statistics to store per token, by their names in ``TOKEN_STATISTICS``.
            embedding_VD: the embedding of each token, for statistics that need it.
        """
        rows, length = len(limit_N), int(limit_N.max())
        self.length = length
        self.limit_N = limit_N.to(device)
        self._sampling = sampling
        self._uniform_NT = None if uniform_NT is None else uniform_NT.to(device)
        self._forced_NT = None if forced_NT is None else forced_NT.to(device)
        self._random_T = random_T
        self._token_NT = torch.zeros(rows, length, dtype=torch.long, device=device)
        self._logprob_NT = torch.zeros(rows, length, device=device)
        self._embedding_VD = torch.empty(0) if embedding_VD is None else embedding_VD.detach()
        self._numbers = {name: torch.zeros(rows, length, device=device) for name in numbers}
        self._supports: list[list[Support]] = [[] for _ in range(rows)]

    def begin(self, row: int, limit: int, uniform_T: Tensor | None) -> None:
        """Empties a row for other tokens.

        Args:
            row: number of the row.
            limit: its maximum number of tokens, at most ``length``.
            uniform_T: the random number of each decision; None: as ``uniform_NT``.
        """
        self.limit_N[row] = limit
        if self._uniform_NT is not None and uniform_T is not None:
            self._uniform_NT[row, : len(uniform_T)] = uniform_T.to(self._uniform_NT)
        self._supports[row] = []

    def copy(self, row: int, to: int) -> None:
        """Copies the tokens of a row to another one."""
        for number_NT in (self._token_NT, self._logprob_NT, *self._numbers.values()):
            number_NT[to] = number_NT[row]
        self._supports[to] = list(self._supports[row])

    def write(self, t: int | Tensor, row_n: Tensor, logits_nV: Tensor, *, token_n: Tensor | None = None) -> Tensor:
        """Samples and stores token t of some rows.

        Args:
            t: number of the token, of all rows or (n,) of each.
            row_n: the rows.
            logits_nV: their raw logits, float32.
            token_n: their tokens, if others chose them; None: they are sampled, or those of ``forced_NT``.

        Returns:
            The tokens (n,).
        """
        plain_nV = logits_nV / self._sampling.temperature if self._numbers else logits_nV
        logits_nV = self._sampling.tempered(logits_nV)
        if self._sampling.truncates and self._uniform_NT is not None:
            keep_nV = self._sampling.support(logits_nV)
            logits_nV = logits_nV.masked_fill(~keep_nV, -torch.inf)
            for row, support in zip(row_n.tolist(), Support.of(keep_nV), strict=True):
                self._supports[row].append(support)
        token_n = self._choose(t, row_n, logits_nV) if token_n is None else token_n
        logprob_n = logits_nV.gather(-1, token_n[:, None])[:, 0] - logits_nV.logsumexp(-1)
        numbers = {name: TOKEN_STATISTICS[name](plain_nV, logits_nV, self._embedding_VD) for name in self._numbers}
        self._token_NT[row_n, t] = token_n
        self._logprob_NT[row_n, t] = logprob_n
        for name, number_n in numbers.items():
            self._numbers[name][row_n, t] = number_n
        return token_n

    def _choose(self, t: int | Tensor, row_n: Tensor, logits_nV: Tensor) -> Tensor:
        """The tokens of rows with these logits of the sampling distribution."""
        if self._forced_NT is not None:
            return self._forced_NT[row_n, t]
        if self._uniform_NT is not None and (self._random_T is None or bool(self._random_T[t])):
            return sample_tokens(self._sampling.cooled(logits_nV, t), self._uniform_NT[row_n, t])
        return logits_nV.argmax(-1)

    def completions(self, end_ids: Tensor) -> list[Completion]:
        """The tokens of each row up to its first end token, on the CPU."""
        return self.completions_of(range(len(self._supports)), end_ids)

    def completions_of(self, rows: Sequence[int], end_ids: Tensor) -> list[Completion]:
        """The tokens of some rows up to their first end token, on the CPU."""
        index_n = torch.tensor(rows, dtype=torch.long, device=self.limit_N.device)
        token_nT, logprob_nT, limits = self._token_NT[index_n], self._logprob_NT[index_n], self.limit_N[index_n]
        ends_nT, token_nT, logprob_nT = torch.isin(token_nT, end_ids).cpu(), token_nT.cpu(), logprob_nT.cpu()
        numbers = {name: number_NT[index_n].cpu() for name, number_NT in self._numbers.items()}
        completions = []
        for n, (row, limit) in enumerate(zip(rows, limits.tolist(), strict=True)):
            ends, supports = ends_nT[n, :limit].nonzero()[:, 0], self._supports[row]
            length = int(ends[0]) + 1 if len(ends) else limit
            completions.append(
                Completion(
                    token_T=token_nT[n, :length].clone(),
                    logprob_T=logprob_nT[n, :length].clone(),
                    is_decision_T=torch.ones(length, dtype=torch.bool),
                    sampling=self._sampling,
                    support=Support.concat(supports[:length]) if supports else None,
                    finished=len(ends) > 0,
                    numbers={name: number_nT[n, :length].clone() for name, number_nT in numbers.items()},
                )
            )
        return completions
