"""A transformers model as the policy runs it: from prompts to prefixes, to hidden states, to logits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from inspect import signature
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.cache_utils import DynamicLayer

from mmgrpo.errors import PolicyError
from mmgrpo.system.out_of_memory import is_out_of_memory

from ..prefix import Prefix, cache_argument, concat_prefixes, extend_prefix, is_mergeable, longer_cache, repeatable
from .compiled_layers import compile_layers
from .encoding import MASK, EncodedPrompt, prompt_batches
from .heads import LogitsHead
from .media_features import MediaFeatures

PROBE_TOKENS = 3
SLOT_ATTENTION = ("sdpa", "eager")
"""Implementations of attention that take a mask of every token."""
SLOT_LAYERS = frozenset({"full_attention", "sliding_attention"})
"""Kinds of layers whose masks ``Transformer.slot_mask`` makes."""
TRIAL_LENGTH = 560
"""Tokens of context of the trial of ``Transformer.is_invariant``: attention on a CPU reads 512 at a time."""


class Transformer:
    """Runs the model below its output embeddings, so that logits are computed only where they are needed.

    Attributes:
        model: the wrapped model.
        shares_prefix: whether its cache lets a prompt run once for all of its rows.
        compiles: whether it can decode over a static cache: no layer has a sliding window.
        takes_slots: whether its cache and its attention allow rows that begin at index 0 and end anywhere.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        autocast: torch.dtype | None,
        feature_bytes: int = 0,
        compiled: bool = False,
    ) -> None:
        """Inspects the model by running it on a few tokens.

        Args:
            model: a causal language model, or an image-text-to-text model.
            autocast: dtype of the arithmetic, if it differs from that of the weights.
            feature_bytes: memory of cached features of media, of encoders that are not trained; 0 keeps none.
            compiled: whether to compile the layers of the decoder, in scoring and in updates.

        Raises:
            PolicyError: its logits are not a known function of its last hidden states.
        """
        if model.config.is_encoder_decoder:
            raise PolicyError(f"{type(model).__name__} is an encoder-decoder, which has no prefix to share")
        self.model = model
        self.autocast = autocast
        self._base: Any = _base_of(model)
        self._features = MediaFeatures(model, feature_bytes)
        self._cache_argument = cache_argument(self._base)
        self._takes_positions = "position_ids" in signature(self._base.forward).parameters
        cache, self._head = self._probed()
        self.vocabulary = self._head.vocabulary
        self.shares_prefix = self._takes_positions and is_mergeable(cache)
        self.compiles = self.shares_prefix and not any(cache.is_sliding)
        self._attention = model.config.get_text_config(decoder=True)._attn_implementation
        self._windows = _windows_of(cache)
        self.takes_slots = self._takes_positions and slots_hold(model, cache)
        layers: list[Any] = cache.layers if self.takes_slots else []
        self._stored_states = [(layer.keys, layer.values) for layer in layers]
        self._is_invariant: dict[tuple[int, int, int, int], bool] = {}
        if compiled and self.compiles:
            compile_layers(model, self._cache_argument, len(cache.layers))

    @cached_property
    def _compiled(self) -> Any:
        mode = "reduce-overhead" if self.device.type == "cuda" else "default"
        return torch.compile(self._base, mode=mode, dynamic=False)

    @property
    def device(self) -> torch.device:
        """Device of the model."""
        return self.model.device

    def logits(self, hidden: Tensor) -> Tensor:
        """The model's logits of last hidden states, float32.

        Shapes: (..., D) -> (..., V).
        """
        with self._arithmetic():
            return self._head(hidden)

    def prefill(self, prompts: Sequence[EncodedPrompt], *, max_tokens: int) -> Prefix:
        """Runs each prompt once, prompts of one kind in one batch; the rows are in the order of the prompts.

        Shapes: P prompts -> Prefix of P rows.
        """
        batches = prompt_batches(prompts, max_tokens)
        prefix = concat_prefixes([self._prefilled([prompts[k] for k in batch]) for batch in batches])
        order = torch.tensor([k for batch in batches for k in batch]).argsort()
        in_order = bool((order == torch.arange(len(order))).all())
        return prefix if in_order else prefix.rows(order.to(self.device))

    def extend(self, prefix: Prefix, token_NR: Tensor) -> tuple[Prefix, Tensor]:
        """Runs R further tokens of each row, as ``extend_prefix`` does.

        Shapes: (N, R) -> the longer prefix, hidden states (N, R, D).
        """
        return extend_prefix(
            prefix, token_NR.shape[1], partial(self.states, token_NR), takes_positions=self._takes_positions
        )

    def states(self, token_NR: Tensor, cache: Cache, **inputs: Any) -> Tensor:
        """Hidden states (N, R, D) of tokens that follow those of a cache, which takes them up.

        Args:
            token_NR: the tokens.
            cache: the cache.
            **inputs: attention_mask and position_ids, where the model needs them.

        Returns:
            The states.
        """
        forward = self._compiled if isinstance(cache, StaticCache) else self._base
        inputs[self._cache_argument] = cache
        with self._arithmetic():
            return forward(input_ids=token_NR, **inputs, use_cache=True).last_hidden_state

    def is_invariant(self, num_rows: int, num_all: int, num_tokens: int = 1) -> bool:
        """Whether rows have bitwise the same numbers in a forward of fewer rows, by a trial; False but on a CPU.

        The trial has ``TRIAL_LENGTH`` tokens of context. Attention adds up the tokens of each row apart from those of
        other rows, so that the number of rows matters for the matrix products alone, which have no context.

        Args:
            num_rows: number of the fewer rows.
            num_all: number of all rows.
            num_tokens: number of tokens of each row.

        Returns:
            Whether their hidden states are the same, and, of one token, their logits.
        """
        key = (num_rows, num_all, num_tokens, torch.get_num_threads())
        if self.device.type == "cpu" and key not in self._is_invariant:
            all_NX = self._trial(num_all, num_tokens)
            self._is_invariant[key] = torch.equal(self._trial(num_rows, num_tokens), all_NX[:num_rows])
        return self._is_invariant.get(key, False)

    @torch.no_grad()
    def _trial(self, num_rows: int, num_tokens: int) -> Tensor:
        """Hidden states of tokens after a context that all rows share, other tokens in each row; logits of one token.

        Shapes: -> (N, R D), or with one token (N, D + V).
        """
        generator, cache = torch.Generator().manual_seed(0), DynamicCache()
        length = TRIAL_LENGTH + num_tokens
        layers: list[Any] = [
            _TrialLayer(*(_random_states(states, TRIAL_LENGTH, generator) for states in stored))
            for stored in self._stored_states
        ]
        cache.layers = layers
        index_R = torch.arange(num_tokens)
        hidden_NRD = self.states(
            (torch.arange(num_rows)[:, None] + 7 * index_R) % self.vocabulary,
            cache,
            attention_mask=self.slot_mask((TRIAL_LENGTH + index_R).expand(num_rows, -1), length),
            position_ids=index_R.expand(num_rows, -1),
        )
        if num_tokens > 1:
            return hidden_NRD.flatten(1)
        return torch.cat([hidden_NRD[:, 0].float(), self.logits(hidden_NRD[:, 0])], 1)

    def slot_mask(self, position_NR: Tensor, length: int) -> Any:
        """The attention mask of tokens at some index of their rows, each of which begins at index 0 of the cache.

        Args:
            position_NR: the index of each token.
            length: number of tokens of the cache.

        Returns:
            (N, 1, R, length), in the form of the model's attention; by kind of layer if there are several.
        """
        index_L = torch.arange(length, device=position_NR.device)
        before_NRL = position_NR[..., None] - index_L
        masks = {}
        for window in self._windows:
            mask_NRL = before_NRL >= 0 if window is None else (before_NRL >= 0) & (before_NRL < window)
            masks["full_attention" if window is None else "sliding_attention"] = self._masked(mask_NRL[:, None])
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _masked(self, mask_N1RL: Tensor) -> Tensor:
        if self._attention == "sdpa":
            return mask_N1RL
        dtype = self.autocast or self.model.dtype
        return torch.zeros_like(mask_N1RL, dtype=dtype).masked_fill(~mask_N1RL, torch.finfo(dtype).min)

    def full_states(self, prompts: Sequence[EncodedPrompt], tokens: Sequence[Tensor], *, fill: int = 0) -> Tensor:
        """Runs prompts with their completions in one forward, without a cache; all prompts must be of one kind.

        Args:
            prompts: N prompts.
            tokens: N completions of up to R tokens.
            fill: value of the prompts' per-token tensors at tokens of a completion.

        Returns:
            (N, R, D), the states that predict each token.
        """
        lengths = torch.tensor([prompt.length for prompt in prompts])
        rows = [torch.cat([p.ids_P.to(self.device), t.to(self.device)]) for p, t in zip(prompts, tokens, strict=True)]
        ids_NL = pad_sequence(rows, batch_first=True)
        ends = torch.tensor([len(row) for row in rows])
        mask_NL = torch.arange(ids_NL.shape[1])[None] < ends[:, None]
        inputs = self._media(prompts) | {"input_ids": ids_NL}
        for name in prompts[0].per_token:
            parts = [
                torch.cat([prompt.per_token[name], prompt.values_at(name, ids_NL.shape[1] - prompt.length, fill)], 1)
                for prompt in prompts
            ]
            inputs[name] = torch.cat(parts).to(self.device)
        if prompts[0].media or not bool(mask_NL.all()):
            inputs[MASK] = mask_NL.to(self.device)
        with self._features.of(prompts):
            hidden_NLD = self._run(inputs).last_hidden_state
        longest = max(len(row) for row in tokens)
        index_NR = (lengths[:, None] - 1 + torch.arange(longest)).clamp(max=ids_NL.shape[1] - 1).to(self.device)
        return hidden_NLD.gather(1, index_NR[..., None].expand(-1, -1, hidden_NLD.shape[-1]))

    def packed_states(
        self, prompts: Sequence[EncodedPrompt], tokens: Sequence[Tensor], *, fill: int = 0
    ) -> list[Tensor]:
        """Runs prompts with their completions as one sequence without padding; positions are counted in each row.

        transformers then masks other rows, or calls the variable-length kernels of flash attention.

        Args:
            prompts: N prompts without media.
            tokens: N completions of any lengths.
            fill: value of the prompts' per-token tensors at tokens of a completion.

        Returns:
            For each row (R, D), the states that predict its tokens.
        """
        parts = [part.to(self.device) for p, t in zip(prompts, tokens, strict=True) for part in (p.ids_P, t[:-1])]
        rows = [prompt.length + len(token_R) - 1 for prompt, token_R in zip(prompts, tokens, strict=True)]
        positions = torch.cat([torch.arange(length) for length in rows]).to(self.device)
        inputs = {"input_ids": torch.cat(parts)[None], "position_ids": positions[None]}
        for name in prompts[0].per_token:
            parts = [
                torch.cat([prompt.per_token[name], prompt.values_at(name, length - prompt.length, fill)], 1)
                for prompt, length in zip(prompts, rows, strict=True)
            ]
            inputs[name] = torch.cat(parts, 1).to(self.device)
        states = self._run(inputs).last_hidden_state[0].split(rows)
        return [states_LD[prompt.length - 1 :] for prompt, states_LD in zip(prompts, states, strict=True)]

    def _prefilled(self, prompts: Sequence[EncodedPrompt]) -> Prefix:
        lengths = [prompt.length for prompt in prompts]
        L = max(lengths)
        inputs = self._media(prompts)
        inputs["input_ids"] = torch.stack([pad(p.ids_P, (L - p.length, 0)) for p in prompts]).to(self.device)
        for name in prompts[0].per_token:
            inputs[name] = torch.cat([pad(p.per_token[name], (L - p.length, 0)) for p in prompts]).to(self.device)
        mask_PL = None
        if prompts[0].media:
            inputs[MASK] = torch.ones_like(inputs["input_ids"])  # some count the positions of images only by a mask
        next_position = torch.tensor(lengths, device=self.device)
        if min(lengths) < L:
            mask_PL = inputs[MASK] = (torch.arange(L)[None] >= L - torch.tensor(lengths)[:, None]).to(self.device)
            inputs["position_ids"] = (mask_PL.cumsum(1) - 1).clamp(min=0)
        cache: Cache = DynamicCache(config=self.model.config)
        if self.shares_prefix:
            cache = repeatable(cache, grows=True)
        try:
            with self._decoder_positions() as positions, self._features.of(prompts):
                output = self._run(inputs, cache)
        except (ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise PolicyError(
                f"{type(self.model).__name__} cannot read the prompt {prompts[0].prompt.text!r:.60}: {error}"
            ) from error
        for positions_used in positions:
            next_position = (positions_used[..., -1] + 1).expand(*positions_used.shape[:-2], len(prompts))
        return Prefix(
            cache=longer_cache(cache),
            mask_NL=mask_PL,
            next_position=next_position,
            hidden_ND=output.last_hidden_state[:, -1],
            length=L,
        )

    def _media(self, prompts: Sequence[EncodedPrompt]) -> dict[str, Any]:
        """Media tensors of prompts of one kind, in row order, in the dtype of the model."""
        media = {}
        for name in prompts[0].media:
            tensor = torch.cat([prompt.media[name] for prompt in prompts]).to(self.device)
            media[name] = tensor.to(self.model.dtype) if tensor.is_floating_point() else tensor
        return media

    def _run(self, inputs: Mapping[str, Any], cache: Cache | None = None) -> Any:
        cache_kwargs = {} if cache is None else {self._cache_argument: cache}
        with self._arithmetic():
            return self._base(**inputs, **cache_kwargs, use_cache=cache is not None)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None)

    @contextmanager
    def _decoder_positions(self) -> Iterator[list[Tensor]]:
        """Records the position ids that the text decoder receives; empty if it computes them."""
        recorded: list[Tensor] = []

        def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if (position_ids := kwargs.get("position_ids")) is not None:
                recorded.append(position_ids)

        handle = self.model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield recorded
        finally:
            handle.remove()

    @torch.no_grad()
    def _probed(self) -> tuple[Cache, LogitsHead]:
        """The cache after a few tokens, and the function from their hidden states to logits."""
        ids_1L = torch.arange(PROBE_TOKENS, device=self.device)[None]
        cache = DynamicCache(config=self.model.config)
        output = self._run({"input_ids": ids_1L}, cache)
        with self._arithmetic():
            return cache, LogitsHead(self.model, self._base, ids_1L, output)


@final
class _TrialLayer(DynamicLayer):
    """Keys and values that all rows share, which a forward does not change."""

    keys: Tensor
    values: Tensor

    def __init__(self, keys_1HLd: Tensor, values_1HLd: Tensor) -> None:
        super().__init__()
        self.is_initialized, self.keys, self.values = True, keys_1HLd, values_1HLd

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Returns the shared states of each row, and after them its new ones."""
        stored = ((self.keys, key_states), (self.values, value_states))
        keys, values = (torch.cat([x.expand(len(new), -1, -1, -1), new.to(x.dtype)], 2) for x, new in stored)
        return keys, values


def _random_states(states_1HLd: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Standard normal states of so many tokens, like those of others."""
    _, num_heads, _, size = states_1HLd.shape
    return torch.randn(1, num_heads, length, size, generator=generator).to(states_1HLd)


def _base_of(model: PreTrainedModel) -> nn.Module:
    """The module that makes the last hidden states: the base model, or else the child with the input embeddings."""
    if model.base_model is not model:
        return model.base_model
    embeddings = model.get_input_embeddings()
    for child in model.children():
        if child is not embeddings and any(module is embeddings for module in child.modules()):
            return child
    raise PolicyError(f"{type(model).__name__} has no base model that makes its last hidden states")


def slots_hold(model: PreTrainedModel, cache: Cache) -> bool:
    """Whether a model's attention and the layers of its cache allow rows that begin at index 0 and end anywhere."""
    text = model.config.get_text_config(decoder=True)
    return (
        is_mergeable(cache)
        and text._attn_implementation in SLOT_ATTENTION
        and SLOT_LAYERS.issuperset(getattr(text, "layer_types", None) or ())
        and len(_windows_of(cache) - {None}) <= 1
    )


def _windows_of(cache: Cache) -> set[int | None]:
    """The windows of the layers of a cache; None: full attention."""
    return {getattr(layer, "sliding_window", None) for layer in cache.layers}
