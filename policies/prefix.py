"""Prefixes: prompts that have run through the model, with their key-value cache, which can be expanded to group
members.

Rows of different lengths are right-aligned, so that further tokens have the same index in all rows. All functions are
differentiable: the update runs a prompt once under grad, and each layer expands its states to the group where it reads
them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from typing import Any, cast, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import PreTrainedConfig, StaticCache
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

GROWTH = 1.25
STATIC_LENGTH, STATIC_ROWS = 256, 8
"""Tokens and rows of a static cache are multiples of these, so that batches share compiled code."""
OLD_NAME = "past_key_values"
CACHE_NAME = OLD_NAME if any(field.name == OLD_NAME for field in fields(BaseModelOutputWithPast)) else "cache"


@dataclass(frozen=True, slots=True, eq=False)
class Prefix:
    """The state of N rows after their first L tokens.

    Attributes:
        cache: keys and values of all layers.
        mask_NL: bool, False at the padding on the left; None if there is none.
        next_position: (N,) position of the next token, or (axes, N) for models with several position axes.
        hidden_ND: the last hidden state, which predicts the next token.
        length: L.
    """

    cache: Cache
    mask_NL: Tensor | None
    next_position: Tensor
    hidden_ND: Tensor
    length: int

    def rows(self, index: Tensor) -> Prefix:
        """A selection of rows, in any order and number; row i of the result continues row ``index[i]``."""
        if is_mergeable(self.cache):
            cache = _with_layers(self.cache, [_rows(layer, index) for layer in self.cache.layers])
        else:
            cache = self.cache
            cache.reorder_cache(torch.LongTensor(index))  # in place: other kinds of layers know no other public way
        return self._selected(index, cache)

    def continued(self, index: Tensor, *, grows: bool = False) -> Prefix:
        """``rows`` of a mergeable cache whose layers do not change, and expand their states only where they are read.

        Args:
            index: the row that each row of the result continues.
            grows: whether more tokens follow those of the next forward.

        Returns:
            The rows.
        """
        return self._selected(index, repeatable(self.cache, index, grows=grows))

    def _selected(self, index: Tensor, cache: Cache) -> Prefix:
        return replace(
            self,
            cache=cache,
            mask_NL=None if self.mask_NL is None else self.mask_NL[index],
            next_position=self.next_position[..., index],
            hidden_ND=self.hidden_ND[index],
        )


@final
class PrefixLayer(DynamicLayer):
    """A cache layer that a forward does not change: an update returns its states and the new ones.

    So a layer of a model can run again in the backward pass, and the states of a prompt are stored once for its rows.

    Attributes:
        index_N: the row of the earlier states that each row continues; None: its own rows.
        grows: whether further tokens will follow the new ones.
        longer: the layer with the new states of the first update, if ``grows``.
    """

    def __init__(self, layer: Any, index_N: Tensor | None = None, *, grows: bool = False) -> None:
        """Wraps a layer.

        Args:
            layer: the states of earlier tokens.
            index_N: the row of the layer that each row continues; None: its own rows.
            grows: whether further tokens will follow the new ones.
        """
        super().__init__()
        self.is_initialized, self.is_sliding = True, layer.is_sliding
        self.longer: Any = None
        self.index_N, self.grows = index_N, grows
        self._layer = layer

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """The states of all tokens."""
        layer = copy.copy(self._layer) if self.index_N is None else _rows(self._layer, self.index_N)
        states = layer.update(key_states, value_states, *args, **kwargs)
        if self.grows and self.longer is None:  # a repeated forward gives the same states
            self.longer = layer
        return states

    @property
    def stored(self) -> tuple[Tensor, Tensor] | None:
        """Keys and values of the earlier tokens, before rows are selected; None if there are none."""
        return (self._layer.keys, self._layer.values) if self._layer.get_seq_length() else None

    def grow(self, key_states: Tensor, value_states: Tensor) -> None:
        """Takes over the states of all tokens from elsewhere, as ``update`` does where the layer ``grows``."""
        if not self.grows or self.longer is not None:
            return
        self.longer = copy.copy(self._layer)
        if not self.longer.is_initialized:
            self.longer.lazy_initialization(key_states, value_states)
        self.longer.keys, self.longer.values = key_states, value_states

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Number of tokens that attention reads, and the index of the first."""
        return self._layer.get_mask_sizes(query_length)

    def get_seq_length(self) -> int:
        """Number of earlier tokens."""
        return self._layer.get_seq_length()


def repeatable(cache: Cache, index_N: Tensor | None = None, *, grows: bool) -> Cache:
    """A cache of ``PrefixLayer``: of rows that continue rows of a mergeable cache."""
    return _with_layers(cache, [PrefixLayer(layer, index_N, grows=grows) for layer in cache.layers])


def longer_cache(cache: Cache) -> Cache:
    """The cache after a forward: with the new states that its ``PrefixLayer`` have collected."""
    if not any(isinstance(layer, PrefixLayer) for layer in cache.layers):
        return cache
    layers: list[Any] = cache.layers
    return _with_layers(cache, [layer.longer for layer in layers if layer.longer is not None])


def extend_prefix(
    prefix: Prefix, num: int, run: Callable[..., Tensor], *, takes_positions: bool = True
) -> tuple[Prefix, Tensor]:
    """Runs further tokens of each row.

    The prefix's cache grows and must not be used again, except one of ``continued`` rows, which does not change: the
    longer prefix has a cache only if it ``grows``.

    Args:
        prefix: N rows.
        num: R, number of tokens per row.
        run: the cache; attention_mask and position_ids, if needed -> hidden states (N, R, D).
        takes_positions: whether the model takes position_ids.

    Returns:
        The longer prefix and the hidden states.
    """
    N, device, mask_NL = len(prefix.hidden_ND), prefix.hidden_ND.device, prefix.mask_NL
    extra_inputs: dict[str, Any] = {}
    if mask_NL is not None:
        has_room = mask_NL.shape[1] - prefix.length  # a static cache has all it will need
        mask_NL = mask_NL if has_room else torch.cat([mask_NL, mask_NL.new_ones(N, num)], dim=1)
        extra_inputs["attention_mask"] = mask_NL
    if takes_positions:
        extra_inputs["position_ids"] = prefix.next_position[..., None] + torch.arange(num, device=device)
    hidden_NRD = run(prefix.cache, **extra_inputs)
    longer = replace(
        prefix,
        cache=longer_cache(prefix.cache),
        mask_NL=mask_NL,
        next_position=prefix.next_position + num,
        hidden_ND=hidden_NRD[:, -1],
        length=prefix.length + num,
    )
    return longer, hidden_NRD


def cache_argument(model: nn.Module) -> str:
    """The name of a model's cache argument: transformers 5.24 renamed it; older custom models keep the old name."""
    return OLD_NAME if OLD_NAME in signature(model.forward).parameters else CACHE_NAME


def is_mergeable(cache: Cache) -> bool:
    """Whether rows of several prompts fit into one cache: every layer stores plain keys and values."""
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer, GrowingLayer) for layer in cache.layers)


def concat_prefixes(prefixes: Sequence[Prefix]) -> Prefix:
    """All rows of several prefixes, the shorter ones padded on the left.

    Shapes: N_1 .. N_k rows of lengths L_1 .. L_k -> (sum N_k, max L_k).
    """
    if len(prefixes) == 1:
        return prefixes[0]
    length = max(prefix.length for prefix in prefixes)
    layers: list[Any] = []
    every: Any = (prefix.cache.layers for prefix in prefixes)
    for parts in zip(*every, strict=True):
        longest = max(part.keys.shape[-2] for part in parts)
        layer = copy.copy(max(parts, key=lambda part: part.get_seq_length()))
        layer.keys = torch.cat([_padded(part.keys, longest) for part in parts])
        layer.values = torch.cat([_padded(part.values, longest) for part in parts])
        layers.append(layer)
    return Prefix(
        cache=_with_layers(prefixes[0].cache, layers),
        mask_NL=_concat_mask(prefixes, length),
        next_position=_concat_positions([prefix.next_position for prefix in prefixes]),
        hidden_ND=torch.cat([prefix.hidden_ND for prefix in prefixes]),
        length=length,
    )


class GrowingLayer(DynamicLayer):
    """A cache layer that writes new keys and values into preallocated memory instead of copying all of them each time.

    For decoding without grad.
    """

    keys: Tensor
    values: Tensor

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.device, self.is_initialized = layer.device, True
        self.keys, self.values = layer.keys, layer.values
        self._reserved: tuple[Tensor, Tensor] | None = None

    def reserve(self, length: int) -> None:
        """Moves the states to memory for this many tokens, including the stored ones."""
        num_stored = self.keys.shape[-2]
        self._reserved = (_preallocated(self.keys, length), _preallocated(self.values, length))
        self.keys, self.values = (room[..., :num_stored, :] for room in self._reserved)

    def drop_reserved(self) -> None:
        """Drops the preallocated memory, which another layer uses."""
        self._reserved = None

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Appends the new states; returns all of them as views."""
        num_stored, length = self.keys.shape[-2], self.keys.shape[-2] + key_states.shape[-2]
        if (
            self._reserved is None
            or self._reserved[0].shape[-2] < length
            or self._reserved[0].shape[0] != len(key_states)
        ):
            self.reserve(int(length * GROWTH))
        assert self._reserved is not None
        for room, new in zip(self._reserved, (key_states, value_states), strict=True):
            room[..., num_stored:length, :] = new
        self.keys, self.values = (room[..., :length, :] for room in self._reserved)
        return self.keys, self.values


def with_growing_cache(prefix: Prefix) -> Prefix:
    """The same prefix with full-attention layers that grow in place."""
    if not is_mergeable(prefix.cache):
        return prefix
    layers = [GrowingLayer(layer) if type(layer) is DynamicLayer else layer for layer in prefix.cache.layers]
    return replace(prefix, cache=_with_layers(prefix.cache, layers))


def with_static_cache(prefix: Prefix, config: PreTrainedConfig, max_new_tokens: int) -> Prefix:
    """The same prefix in a cache of fixed size, for a compiled forward; its mask covers the future tokens.

    Shapes: N rows of L tokens -> N rounded up to ``STATIC_ROWS``, by copies of the last row, in a cache of L +
    ``max_new_tokens`` tokens, rounded up to ``STATIC_LENGTH``.
    """
    N = len(prefix.hidden_ND)
    index = torch.arange(_rounded_up(N, STATIC_ROWS), device=prefix.hidden_ND.device).clamp(max=N - 1)
    prefix = prefix.rows(index)
    length = _rounded_up(prefix.length + max_new_tokens, STATIC_LENGTH)
    cache, source = StaticCache(config=config, max_cache_len=length), prefix.cache
    for number, layer in enumerate(cast("list[DynamicLayer]", source.layers)):
        cache.update(cast(Tensor, layer.keys), cast(Tensor, layer.values), number)
    mask_NL = prefix.mask_NL
    if mask_NL is None:
        mask_NL = torch.ones(len(prefix.hidden_ND), prefix.length, dtype=torch.bool, device=prefix.hidden_ND.device)
    return replace(prefix, cache=cache, mask_NL=pad(mask_NL, (0, length - prefix.length), value=True))


def _rounded_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit


def _preallocated(states: Tensor, length: int) -> Tensor:
    room = states.new_empty(*states.shape[:-2], length, states.shape[-1])
    room[..., : states.shape[-2], :] = states
    return room


def _rows(layer: Any, index: Tensor) -> Any:
    """A copy of a layer with a selection of its rows."""
    chosen = copy.copy(layer)
    chosen.keys, chosen.values = layer.keys[index], layer.values[index]
    if isinstance(chosen, GrowingLayer):
        chosen.drop_reserved()
    return chosen


def _with_layers(cache: Cache, layers: Sequence[Any]) -> Cache:
    """A copy of a cache with other layers; the original does not change."""
    changed = copy.copy(cache)
    changed.layers = list(layers)
    return changed


def _padded(states: Tensor, length: int) -> Tensor:
    return pad(states, (0, 0, length - states.shape[-2], 0))


def _concat_positions(positions: Sequence[Tensor]) -> Tensor:
    """Positions of all rows; a single axis of a prompt without images is expanded to all axes."""
    axes = max((position.shape[:-1] for position in positions), key=len)
    return torch.cat([position.expand(*axes, -1) for position in positions], dim=-1)


def _concat_mask(prefixes: Sequence[Prefix], length: int) -> Tensor | None:
    if all(prefix.mask_NL is None and prefix.length == length for prefix in prefixes):
        return None
    masks = [
        torch.ones(len(p.hidden_ND), p.length, dtype=torch.bool, device=p.hidden_ND.device)
        if p.mask_NL is None
        else p.mask_NL
        for p in prefixes
    ]
    return torch.cat([pad(mask, (length - mask.shape[1], 0)) for mask in masks])
