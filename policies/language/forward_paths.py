"""Forward paths: how prompts and completions run through a model, with a shared cache or by a plain call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import PreTrainedModel

from mmgrpo.errors import ConfigError

from ..token_buffer import TokenBuffer
from . import token_trees
from .encoding import EncodedPrompt
from .length_buckets import FORWARD_TOKENS, length_buckets, stacked
from .router_replay import RouterReplay
from .slot_decoding import decode_in_slots
from .slots import left_aligned
from .text_trace import TextTrace
from .token_decoding import decode_rows
from .transformer import Transformer


class ForwardPath(ABC):
    """One way to run prompts and completions through a model.

    Attributes:
        vocabulary: number of logits per position.
        fill: value of the prompts' per-token tensors at tokens of a completion.
    """

    vocabulary: int
    fill: int

    @abstractmethod
    def decode_batches(self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], size: int) -> list[list[int]]:
        """Groups N rows into decoding batches of at most ``size``; row n completes ``prompts[owner_N[n]]``."""

    @abstractmethod
    def write(
        self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], buffer: TokenBuffer, end_ids: Tensor
    ) -> None:
        """Decodes N rows into a buffer; row n completes ``prompts[owner_N[n]]``."""

    @abstractmethod
    def batches(self, trace: TextTrace, rows: Sequence[int]) -> list[list[int]]:
        """Groups rows into scoring batches."""

    @abstractmethod
    def states(self, trace: TextTrace, rows: Sequence[int], tokens: Sequence[Tensor]) -> Tensor:
        """The states that predict each token of N rows, (N, T, D); undefined after a row's end."""

    @abstractmethod
    def logits(self, states: Tensor) -> Tensor:
        """The logits of states, (..., D) -> (..., V), float32."""

    @abstractmethod
    def with_model(self, model: PreTrainedModel) -> ForwardPath:
        """The same path through another model of the same class."""


def rows_by_prompt(prompts: Sequence[EncodedPrompt], owner_N: Sequence[int]) -> list[list[int]]:
    """The rows of each prompt that has rows, shorter prompts first."""
    rows: dict[int, list[int]] = {}
    for row, owner in enumerate(owner_N):
        rows.setdefault(owner, []).append(row)
    return [rows[owner] for owner in sorted(rows, key=lambda p: (prompts[p].length, p))]


def _trees(
    prompts: Sequence[int], owner_N: Sequence[int], tokens: Sequence[Tensor], fork_N: Sequence[int]
) -> list[tuple[token_trees.TokenSegment, ...]]:
    """The tree of each prompt's rows."""
    lists = [token_T.tolist() for token_T in tokens]
    trees = []
    for prompt in prompts:
        rows = [n for n, owner in enumerate(owner_N) if owner == prompt]
        trees.append(token_trees.segment_tree(rows, lists, [fork_N[n] for n in rows if fork_N[n]]))
    return trees


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CachedPath(ForwardPath):
    """Each prompt runs through the model once in the rollout, and its cache is expanded to the rows.

    Attributes:
        transformer: the model.
        shared: whether updates, too, run a prompt once for all of its rows; else every row runs in full.
        vocabulary: number of logits per position.
        max_tokens: maximum number of tokens per forward in updates.
        slots: whether rows are decoded in slots, which finished rows leave to others; else batch after batch.
        compiled: whether to decode over a static cache with a compiled forward.
        packed: whether rows of text that run in full are one sequence without padding.
        fill: value of the prompts' per-token tensors at tokens of a completion, for rows that run in full.
        forward_tokens: tokens of padding that are as bad as another forward, now.
        routes: the experts of rows, with ``policy.router_replay``, for paths that run rows in full.
    """

    transformer: Transformer
    shared: bool
    vocabulary: int
    max_tokens: int
    slots: bool = False
    compiled: bool = False
    packed: bool = False
    fill: int = 0
    forward_tokens: Callable[[], int] = lambda: FORWARD_TOKENS
    routes: RouterReplay | None = None

    def __str__(self) -> str:
        reading = "prompts once per group" if self.shared else "prompts once per row"
        if self.packed:
            reading += " without padding"
        return f"{reading}, decoding in {'slots' if self.slots else 'batches'}"

    def decode_batches(self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], size: int) -> list[list[int]]:
        """Batches prompts of similar length, complete groups where they fit."""
        groups = rows_by_prompt(prompts, owner_N)
        parts = [
            [rows for rows in groups if prompts[owner_N[rows[0]]].is_beyond_switch == side] for side in (False, True)
        ]
        return [batch for part in parts if part for batch in self._decode_batches(part, size)]

    def _decode_batches(self, groups: Sequence[list[int]], size: int) -> list[list[int]]:
        if not self.transformer.shares_prefix:  # one prompt at a time: such caches cannot be joined
            return [rows[start : start + size] for rows in groups for start in range(0, len(rows), size)]
        if max(map(len, groups)) > size:
            order = [row for rows in groups for row in rows]
            return [order[start : start + size] for start in range(0, len(order), size)]
        batches: list[list[int]] = []
        for rows in groups:
            if not batches or len(batches[-1]) + len(rows) > size:
                batches.append([])
            batches[-1] += rows
        return batches

    @torch.no_grad()
    def write(
        self, prompts: Sequence[EncodedPrompt], owner_N: Sequence[int], buffer: TokenBuffer, end_ids: Tensor
    ) -> None:
        """Runs each prompt once, then its rows token by token."""
        prefix = self.transformer.prefill(prompts, max_tokens=self.max_tokens)
        if self.slots:
            decode_in_slots(self.transformer, left_aligned(prefix), owner_N, buffer, end_ids)
            return
        prefix = prefix.rows(torch.tensor(owner_N, device=self.transformer.device))
        decode_rows(self.transformer, prefix, buffer, end_ids=end_ids, compiled=self.compiled)

    def batches(self, trace: TextTrace, rows: Sequence[int]) -> list[list[int]]:
        """Batches rows of one prompt together; the tokens of a shared prompt are counted once."""
        return trace.batches(rows, max_tokens=self.max_tokens, shared=self.shared)

    def states(self, trace: TextTrace, rows: Sequence[int], tokens: Sequence[Tensor]) -> Tensor:
        """Last hidden states."""
        owners = [trace.prompt_of_B[row] for row in rows]
        if not self.shared or any(trace.prompts[owner].media_turns for owner in owners):
            return self._full_states(trace, rows, tokens)
        unique = sorted(set(owners))
        prefix = self.transformer.prefill([trace.prompts[owner] for owner in unique], max_tokens=self.max_tokens)
        forks = [trace.completions[row].num_inherited for row in rows]
        trees = _trees(unique, owners, tokens, forks)
        return token_trees.tree_states(self.transformer, prefix, trees, tokens, forward_tokens=self.forward_tokens())

    def _full_states(self, trace: TextTrace, rows: Sequence[int], tokens: Sequence[Tensor]) -> Tensor:
        """Last hidden states of rows that run in full: packed, or those of similar lengths together."""
        states: dict[int, Tensor] = {}
        prompts = [trace.prompts[trace.prompt_of_B[row]] for row in rows]
        if self.packed:
            if any(prompt.media or prompt.media_turns for prompt in prompts):
                raise ConfigError("policy.padding_free is for rows of text: remove it for rows with media")
            return stacked(self.transformer.packed_states(prompts, tokens, fill=self.fill))
        lengths = [prompt.length + len(token_T) for prompt, token_T in zip(prompts, tokens, strict=True)]
        buckets = length_buckets(lengths, self.forward_tokens())
        if self.routes is not None:  # layers that a backward recomputes have the experts of the last forward
            buckets = [list(range(len(rows)))]
        for bucket in buckets:
            parts = [prompts[n] for n in bucket], [tokens[n] for n in bucket]
            completions = [trace.completions[rows[n]] for n in bucket]
            with nullcontext() if self.routes is None else self.routes.rows(completions, [lengths[n] for n in bucket]):
                states_nTD = self.transformer.full_states(*parts, fill=self.fill)
            states |= {n: states_TD[: len(tokens[n])] for n, states_TD in zip(bucket, states_nTD.unbind(), strict=True)}
        return stacked([states[n] for n in range(len(tokens))])

    def logits(self, states: Tensor) -> Tensor:
        """The logits of the model's own head."""
        return self.transformer.logits(states)

    def with_model(self, model: PreTrainedModel) -> CachedPath:
        """The same path with a ``Transformer`` of the other model."""
        return replace(self, transformer=Transformer(model, autocast=self.transformer.autocast), routes=None)
