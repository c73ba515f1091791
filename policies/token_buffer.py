"""A buffer for N rows of tokens, sampled one decision at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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

    def write(self, t: int, row_n: Tensor, logits_nV: Tensor) -> Tensor:
        """Samples and stores token t of some rows.

        Shapes: row numbers (n,), raw logits (n, V) float32 -> tokens (n,).
        """
        plain_nV = logits_nV / self._sampling.temperature if self._numbers else logits_nV
        logits_nV = self._sampling.tempered(logits_nV)
        if self._sampling.truncates and self._uniform_NT is not None:
            keep_nV = self._sampling.support(logits_nV)
            logits_nV = logits_nV.masked_fill(~keep_nV, -torch.inf)
            for row, support in zip(row_n.tolist(), Support.of(keep_nV), strict=True):
                self._supports[row].append(support)
        if self._forced_NT is not None:
            token_n = self._forced_NT[row_n, t]
        elif self._uniform_NT is not None and (self._random_T is None or bool(self._random_T[t])):
            token_n = sample_tokens(self._sampling.cooled(logits_nV, t), self._uniform_NT[row_n, t])
        else:
            token_n = logits_nV.argmax(-1)
        self._token_NT[row_n, t] = token_n
        self._logprob_NT[row_n, t] = logits_nV.gather(-1, token_n[:, None])[:, 0] - logits_nV.logsumexp(-1)
        for name, number_NT in self._numbers.items():
            number_NT[row_n, t] = TOKEN_STATISTICS[name](plain_nV, logits_nV, self._embedding_VD)
        return token_n

    def completions(self, end_ids: Tensor) -> list[Completion]:
        """The tokens of each row up to its first end token, on the CPU."""
        ends_NT = torch.isin(self._token_NT, end_ids).cpu()
        token_NT, logprob_NT, limits = self._token_NT.cpu(), self._logprob_NT.cpu(), self.limit_N.tolist()
        numbers = {name: number_NT.cpu() for name, number_NT in self._numbers.items()}
        completions = []
        for n, supports in enumerate(self._supports):
            ends = ends_NT[n, : limits[n]].nonzero()[:, 0]
            length = int(ends[0]) + 1 if len(ends) else limits[n]
            completions.append(
                Completion(
                    token_T=token_NT[n, :length].clone(),
                    logprob_T=logprob_NT[n, :length].clone(),
                    is_decision_T=torch.ones(length, dtype=torch.bool),
                    sampling=self._sampling,
                    support=Support.concat(supports[:length]) if supports else None,
                    finished=len(ends) > 0,
                    numbers={name: number_NT[n, :length].clone() for name, number_NT in numbers.items()},
                )
            )
        return completions
