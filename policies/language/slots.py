"""Slots: the memory of the rows that are decoded at a time, each with its own length.

The tokens of a row begin at index 0 of its slot, and attention reads up to a multiple of ``BLOCK`` tokens. A forward of
the next token runs all slots, or on a CPU a multiple of ``ROWS``, where that gives the same numbers; one that reads
several tokens runs one slot, or on a CPU several, where that gives the same numbers. So the numbers of a row depend on
its tokens and on the number of slots, not on the rows in the other slots: bitwise on a CPU, in float32 and in bfloat16
(``tests/policies/test_slots.py``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import Cache, DynamicLayer

from ..prefix import GROWTH, Prefix
from .transformer import Transformer

BLOCK = 64
"""Tokens by which the part of a slot that attention reads grows: kernels add up blocks of this length in one order."""

ROWS = 16
"""Tokens, of all rows together, by which a forward grows on a CPU: from so many on, a row of a matrix product has the
same numbers for any number of rows, unless several threads divide it (``Transformer.is_invariant``)."""


@dataclass(slots=True)
class _Target:
    """The tokens of the next forward.

    Attributes:
        rows: their rows of the memory.
        row_n1: the numbers of these rows.
        position_nR: the index of each token in its slot.
        length: number of leading tokens of the slots that attention reads.
    """

    rows: slice
    row_n1: Tensor
    position_nR: Tensor
    length: int


class SlotLayer(DynamicLayer):
    """The keys and values of all slots in a layer."""

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.device, self.is_initialized = keys.device, True
        self.keys, self.values = keys, values
        self.target: _Target | None = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Stores the new states of the target; returns all states that attention reads, as views.

        Under autocast keys are float32 where the rotary embedding is, and values are not; both are stored in the type
        of the first states. torch 2.10 does not convert them in this assignment on a CPU.
        """
        target = self.target
        assert target is not None
        for room, new in ((self.keys, key_states), (self.values, value_states)):
            room[target.row_n1, :, target.position_nR] = new.transpose(1, 2).to(room.dtype)
        return self.keys[target.rows, :, : target.length], self.values[target.rows, :, : target.length]

    def get_seq_length(self) -> int:
        """Number of tokens that attention reads."""
        return 0 if self.target is None else self.target.length


@final
class Slots:
    """S slots with the states of their rows.

    Attributes:
        hidden_SD: the last hidden states, which predict the next token of each row.
        num_stored: number of tokens of each slot's row.
    """

    hidden_SD: Tensor

    def __init__(self, transformer: Transformer, num_slots: int) -> None:
        """Empty slots.

        Args:
            transformer: the model.
            num_slots: S.
        """
        self._transformer = transformer
        self._cache: Cache | None = None
        self._next_position = torch.zeros(num_slots, dtype=torch.long, device=transformer.device)
        self.num_stored = [0] * num_slots
        self._slot_at = list(range(num_slots))  # the slot of each row of the memory

    def put(self, slots: Sequence[int], prefix: Prefix, rows: Sequence[int]) -> None:
        """Copies rows of a prefix, aligned on the left, into slots."""
        if self._cache is None:
            self._cache = self._empty(prefix)
            self.hidden_SD = prefix.hidden_ND.new_zeros(len(self.num_stored), prefix.hidden_ND.shape[-1])
        self._reserve(prefix.length)
        device = self._transformer.device
        slot_n, row_n = torch.tensor(slots, device=device), torch.tensor(rows, device=device)
        to_n = torch.tensor([self._slot_at.index(slot) for slot in slots], device=device)
        layers: Any = zip(self._cache.layers, prefix.cache.layers, strict=True)
        for layer, source in layers:
            layer.keys[to_n, :, : prefix.length] = source.keys[row_n]
            layer.values[to_n, :, : prefix.length] = source.values[row_n]
        self.hidden_SD[slot_n] = prefix.hidden_ND[row_n]
        if prefix.next_position.ndim > self._next_position.ndim:
            self._next_position = self._next_position.expand(*prefix.next_position.shape[:-1], -1).clone()
        self._next_position[..., slot_n] = prefix.next_position[..., row_n]
        lengths = _lengths(prefix)
        for slot, row in zip(slots, rows, strict=True):
            self.num_stored[slot] = lengths[row]

    def extend(self, token_S: Tensor, active: Sequence[int]) -> None:
        """Runs a token of the active slots, and appends it to their rows."""
        slots = self._gather(active, self._num_rows(len(active)))
        length = max(self.num_stored[slot] for slot in active) + 1
        slot_n = torch.tensor(slots, device=token_S.device)
        offset_n1 = torch.zeros_like(slot_n)[:, None]
        hidden_n1D = self._run(slice(len(slots)), slots, token_S[slot_n, None], length=length, offset_nR=offset_n1)
        self.hidden_SD[slot_n] = hidden_n1D[:, -1]
        for slot in active:
            self.num_stored[slot] += 1
        self._next_position[..., torch.tensor(active, device=token_S.device)] += 1

    def read(self, tokens_of: Mapping[int, Tensor]) -> None:
        """Appends tokens to the rows of slots.

        On a CPU a forward has a multiple of ``ROWS`` tokens of each row, and so the same numbers for one row and for
        several, where a trial shows it; the last tokens are repeated, and those states are overwritten.

        Args:
            tokens_of: the tokens, one or more, by slot.
        """
        on_cpu, slots_of_width = self._transformer.device.type == "cpu", dict[int, list[int]]()
        for slot, token_R in sorted(tokens_of.items()):
            width = -(-len(token_R) // ROWS) * ROWS if on_cpu else len(token_R)
            slots_of_width.setdefault(width, []).append(slot)
        for width, slots in slots_of_width.items():
            while slots:
                num = self._num_together(len(slots), width)
                self._read_together(slots[:num], tokens_of, width)
                slots = slots[num:]

    def _num_together(self, num_slots: int, width: int) -> int:
        """A power of two, of so many slots at most, that read so many tokens in one forward."""
        num = 1 << (num_slots.bit_length() - 1)
        while num > 1 and not self._transformer.is_invariant(1, num, width):
            num //= 2
        return num

    def _read_together(self, slots: Sequence[int], tokens_of: Mapping[int, Tensor], width: int) -> None:
        if len(slots) > 1:
            slots = self._gather(slots, len(slots))
        first, device = self._slot_at.index(slots[0]), self._transformer.device
        num_n = torch.tensor([len(tokens_of[slot]) for slot in slots], device=device)
        offset_nR = torch.minimum(torch.arange(width, device=device), num_n[:, None] - 1)
        rows = zip(slots, offset_nR, strict=True)
        token_nR = torch.stack([tokens_of[slot].to(device)[offset_R] for slot, offset_R in rows])
        length = max(self.num_stored[slot] for slot in slots) + width
        memory = slice(first, first + len(slots))
        hidden_nRD = self._run(memory, slots, token_nR, length=length, offset_nR=offset_nR)
        slot_n = torch.tensor(slots, device=device)
        self.hidden_SD[slot_n] = hidden_nRD[torch.arange(len(slots), device=device), num_n - 1]
        self._next_position[..., slot_n] += num_n
        for slot in slots:
            self.num_stored[slot] += len(tokens_of[slot])

    def shorten(self, slot: int, num_stored: int) -> None:
        """Drops the last tokens of a slot."""
        self._next_position[..., slot] -= self.num_stored[slot] - num_stored
        self.num_stored[slot] = num_stored

    def logits(self, active: Sequence[int]) -> Tensor:
        """Logits of the next token of each active slot, (n, V)."""
        idle = sorted({*self._slot_at} - {*active})
        slots = [*active, *idle[: self._num_rows(len(active)) - len(active)]]
        return self._transformer.logits(self.hidden_SD[slots])[: len(active)]

    def _num_rows(self, num_active: int) -> int:
        """Number of rows that run for so many active slots."""
        num, num_slots = -(-num_active // ROWS) * ROWS, len(self._slot_at)
        return num if num < num_slots and self._transformer.is_invariant(num, num_slots) else num_slots

    def _gather(self, active: Sequence[int], num: int) -> list[int]:
        """Moves the active slots to the first rows of the memory; returns the slots of so many rows, which run."""
        active_slots = {*active}
        is_active = [slot in active_slots for slot in self._slot_at]
        later = [row for row in range(num, len(is_active)) if is_active[row]]
        idle = [row for row in range(num) if not is_active[row]][: len(later)]
        if later:
            self._swap(later, idle)
        return self._slot_at[:num]

    def _swap(self, rows: Sequence[int], others: Sequence[int]) -> None:
        """Swaps rows of the memory."""
        old, new = [*rows, *others], [*others, *rows]
        for layer in self._layers:
            layer.keys[new], layer.values[new] = layer.keys[old], layer.values[old]
        for row, slot in zip(new, [self._slot_at[row] for row in old], strict=True):
            self._slot_at[row] = slot

    def _run(self, rows: slice, slots: Sequence[int], token_nR: Tensor, *, length: int, offset_nR: Tensor) -> Tensor:
        """Runs tokens after those of slots, which have these rows of the memory; their hidden states (n, R, D).

        ``offset_nR`` is the number of tokens of the row between its stored ones and each token.
        """
        assert self._cache is not None
        R, device = token_nR.shape[1], token_nR.device
        stored = [self.num_stored[slot] for slot in slots]
        position_nR = torch.tensor(stored, device=device)[:, None] + torch.arange(R, device=device)
        self._reserve(max(stored) + R)
        length = -(-length // BLOCK) * BLOCK
        row_n1 = torch.arange(len(self.num_stored), device=device)[rows, None]
        target = _Target(rows, row_n1, position_nR, length)
        for layer in self._layers:
            layer.target = target
        return self._transformer.states(
            token_nR,
            self._cache,
            attention_mask=self._transformer.slot_mask(position_nR, length),
            position_ids=self._next_position[..., slots, None] + offset_nR,
        )

    @property
    def _layers(self) -> Sequence[SlotLayer]:
        assert self._cache is not None
        layers: Any = self._cache.layers
        return layers

    def _empty(self, prefix: Prefix) -> Cache:
        layers: list[Any] = []
        every: Any = prefix.cache.layers
        for layer in every:
            rooms = [x.new_zeros(len(self.num_stored), x.shape[1], 0, x.shape[3]) for x in (layer.keys, layer.values)]
            layers.append(SlotLayer(*rooms))
        cache = DynamicCache()
        cache.layers = layers
        return cache

    def _reserve(self, length: int) -> None:
        """Memory for this many tokens of each slot, and some more; zeros, since masked values still are multiplied."""
        if length <= (stored := self._layers[0].keys.shape[2]):
            return
        room = slot_length(length)
        for layer in self._layers:
            layer.keys, layer.values = (pad(x, (0, 0, 0, room - stored)) for x in (layer.keys, layer.values))


def slot_length(length: int) -> int:
    """Number of tokens of a slot that grows to store so many."""
    return -(-int(length * GROWTH) // BLOCK) * BLOCK


def left_aligned(prefix: Prefix) -> Prefix:
    """A prefix with the padding of shorter rows on the right, and states of all tokens in layers of sliding windows,
    zeros where the layer has dropped them.
    """
    length, index_NL = prefix.length, None
    if prefix.mask_NL is not None:
        padding_N1 = (~prefix.mask_NL).sum(1, keepdim=True)
        index_NL = (torch.arange(length, device=padding_N1.device) + padding_N1).clamp(max=length - 1)
    layers: list[Any] = []
    every: Any = prefix.cache.layers
    for source in every:
        layer = copy.copy(source)
        layer.keys, layer.values = (_aligned(states, length, index_NL) for states in (source.keys, source.values))
        layers.append(layer)
    cache = copy.copy(prefix.cache)
    cache.layers = layers
    return replace(prefix, cache=cache)


def _aligned(states_NHLd: Tensor, length: int, index_NL: Tensor | None) -> Tensor:
    states_NHLd = pad(states_NHLd, (0, 0, length - states_NHLd.shape[2], 0))
    if index_NL is None:
        return states_NHLd
    return states_NHLd.gather(2, index_NL[:, None, :, None].expand(states_NHLd.shape))


def _lengths(prefix: Prefix) -> list[int]:
    if prefix.mask_NL is None:
        return [prefix.length] * len(prefix.hidden_ND)
    return prefix.mask_NL.sum(1).tolist()
