"""A transformers model as the policy runs it: prompts into prefixes, prefixes into hidden states, those into logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from transformers import Cache, DynamicCache, PreTrainedModel, StaticCache
from transformers.modeling_layers import GradientCheckpointingLayer

from mmgrpo.errors import PolicyError
from mmgrpo.policies.language.encoding import MASK, Encoded, batches_of
from mmgrpo.policies.language.prefix import Prefix, joined, mergeable

PROBE_TOKENS = 3
HEAD_TOLERANCE = 1e-2


class Transformer:
    """Runs the model below its output embeddings, so that logits are only ever made where they are wanted.

    Attributes:
        model: the wrapped model.
        shares_prefix: whether its cache lets a prompt run once for all rows that share it.
        compiles: whether it can also decode over a static cache: no layer forgets what lies behind a window.
    """

    def __init__(self, model: PreTrainedModel, *, autocast: torch.dtype | None) -> None:
        """Looks at how the model is made, by running it on a few tokens.

        Args:
            model: a causal language model, or an image-text-to-text model.
            autocast: dtype of the arithmetic, if the weights are kept in another.

        Raises:
            PolicyError: its logits are not made from its last hidden states in a known way.
        """
        self.model = model
        self._autocast = autocast
        self._base: Any = model.base_model
        self._embedding: Any = model.get_output_embeddings()
        if self._base is model or self._embedding is None:
            raise PolicyError(f"{type(model).__name__} has no output embeddings over a base model to read tokens from")
        text = model.config.get_text_config(decoder=True)
        self.vocabulary = int(self._embedding.weight.shape[0])
        self._softcap = getattr(text, "final_logit_softcapping", None)
        self._scale = getattr(text, "logit_scale", 1.0) / getattr(text, "logits_scaling", 1.0)
        self._takes_positions = "position_ids" in signature(self._base.forward).parameters
        cache = self._probed_cache()
        self.shares_prefix = self._takes_positions and mergeable(cache)
        self.compiles = self.shares_prefix and not any(cache.is_sliding)

    @cached_property
    def _compiled(self) -> Any:
        mode = "reduce-overhead" if self.device.type == "cuda" else "default"
        return torch.compile(self._base, mode=mode, dynamic=False)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self._embedding.weight.device

    def logits(self, hidden: Tensor) -> Tensor:
        """What the model makes of last hidden states, float32.

        Shapes: (..., D) -> (..., V).
        """
        with self._arithmetic():
            logits = self._embedding(hidden)
        logits = logits.float() if self._scale == 1 else logits.float() * self._scale
        return logits if self._softcap is None else self._softcap * torch.tanh(logits / self._softcap)

    def prefill(self, prompts: Sequence[Encoded], *, max_tokens: int) -> Prefix:
        """Runs each prompt once, alike ones together; the rows are in the order given.

        Shapes: P prompts -> Prefix of P rows.
        """
        batches = batches_of(prompts, max_tokens)
        whole = joined([self._prefilled([prompts[k] for k in batch]) for batch in batches])
        order = torch.tensor([k for batch in batches for k in batch]).argsort()
        in_order = bool((order == torch.arange(len(order))).all())
        return whole if in_order else whole.rows(order.to(self.device))

    def extend(self, prefix: Prefix, token_NR: Tensor) -> tuple[Prefix, Tensor]:
        """Runs R further tokens of each row; the prefix's cache grows and must not be used again.

        Shapes: (N, R) -> the longer prefix, hidden states (N, R, D).
        """
        N, R = token_NR.shape
        inputs: dict[str, Any] = {"input_ids": token_NR}
        mask_NL = prefix.mask_NL
        if mask_NL is not None:
            room = mask_NL.shape[1] - prefix.length  # a static cache has all it will need
            mask_NL = inputs[MASK] = mask_NL if room else torch.cat([mask_NL, mask_NL.new_ones(N, R)], dim=1)
        if self._takes_positions:
            inputs["position_ids"] = prefix.next_position[..., None] + torch.arange(R, device=token_NR.device)
        forward = self._compiled if isinstance(prefix.cache, StaticCache) else self._base
        with self._arithmetic():
            hidden_NRD = forward(**inputs, past_key_values=prefix.cache, use_cache=True).last_hidden_state
        longer = replace(
            prefix,
            mask_NL=mask_NL,
            next_position=prefix.next_position + R,
            hidden_ND=hidden_NRD[:, -1],
            length=prefix.length + R,
        )
        return longer, hidden_NRD

    def whole(self, prompts: Sequence[Encoded], tokens: Sequence[Tensor]) -> Tensor:
        """Runs prompts with their completions in one go, without a cache; all prompts must be of one kind.

        Shapes: N prompts, N completions of up to R tokens -> (N, R, D), the states each token is predicted from.
        """
        lengths = torch.tensor([prompt.length for prompt in prompts])
        rows = [torch.cat([p.ids_P.to(self.device), t.to(self.device)]) for p, t in zip(prompts, tokens, strict=True)]
        ids_NL = pad_sequence(rows, batch_first=True)
        ends = torch.tensor([len(row) for row in rows])
        mask_NL = torch.arange(ids_NL.shape[1])[None] < ends[:, None]
        inputs = self._media(prompts) | {"input_ids": ids_NL}
        for name in prompts[0].per_token:
            parts = [pad(prompt.per_token[name][0], (0, ids_NL.shape[1] - prompt.length)) for prompt in prompts]
            inputs[name] = torch.stack(parts).to(self.device)
        if not bool(mask_NL.all()):
            inputs[MASK] = mask_NL.to(self.device)
        hidden_NLD = self._run(**inputs, use_cache=False).last_hidden_state
        longest = max(len(row) for row in tokens)
        index_NR = (lengths[:, None] - 1 + torch.arange(longest)).clamp(max=ids_NL.shape[1] - 1).to(self.device)
        return hidden_NLD.gather(1, index_NR[..., None].expand(-1, -1, hidden_NLD.shape[-1]))

    def true_logits(self, prompt: Encoded, token_R: Tensor) -> Tensor:
        """What the model itself says of a completion, called as its own documentation has it.

        Shapes: (R,) -> (R, V) float32.
        """
        ids_1L = torch.cat([prompt.ids_P, token_R])[None].to(self.device)
        inputs = self._media([prompt]) | {"input_ids": ids_1L, MASK: torch.ones_like(ids_1L)}
        for name, tensor in prompt.per_token.items():
            inputs[name] = pad(tensor, (0, len(token_R))).to(self.device)
        with self._arithmetic():
            logits_1LV = self.model(**inputs, use_cache=False).logits
        return logits_1LV[0, prompt.length - 1 : -1].float()

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Within it the layers keep only their inputs for the backward; dropout stays off."""
        layers = [m for m in self.model.modules() if isinstance(m, GradientCheckpointingLayer)]
        for layer in layers:
            layer.training = True
        try:
            yield
        finally:
            for layer in layers:
                layer.training = False

    def _prefilled(self, prompts: Sequence[Encoded]) -> Prefix:
        lengths = [prompt.length for prompt in prompts]
        L = max(lengths)
        inputs = self._media(prompts)
        inputs["input_ids"] = torch.stack([pad(p.ids_P, (L - p.length, 0)) for p in prompts]).to(self.device)
        for name in prompts[0].per_token:
            inputs[name] = torch.cat([pad(p.per_token[name], (L - p.length, 0)) for p in prompts]).to(self.device)
        mask_PL = None
        next_position = torch.tensor(lengths, device=self.device)
        if min(lengths) < L:
            mask_PL = inputs[MASK] = (torch.arange(L)[None] >= L - torch.tensor(lengths)[:, None]).to(self.device)
            inputs["position_ids"] = (mask_PL.cumsum(1) - 1).clamp(min=0)
        try:
            with self._decoder_positions() as positions:
                output = self._run(**inputs, past_key_values=DynamicCache(config=self.model.config), use_cache=True)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise PolicyError(
                f"{type(self.model).__name__} cannot read the prompt {prompts[0].prompt.text!r:.60}: {error}"
            ) from error
        for given in positions:
            next_position = (given[..., -1] + 1).expand(*given.shape[:-2], len(prompts))
        return Prefix(
            cache=output.past_key_values,
            mask_NL=mask_PL,
            next_position=next_position,
            hidden_ND=output.last_hidden_state[:, -1],
            length=L,
        )

    def _media(self, prompts: Sequence[Encoded]) -> dict[str, Any]:
        """Pictures and videos of prompts of one kind, in row order, in the dtype of the model."""
        found = {}
        for name in prompts[0].media:
            tensor = torch.cat([prompt.media[name] for prompt in prompts]).to(self.device)
            found[name] = tensor.to(self._embedding.weight.dtype) if tensor.is_floating_point() else tensor
        return found

    def _run(self, **inputs: Any) -> Any:
        with self._arithmetic():
            return self._base(**inputs)

    def _arithmetic(self) -> torch.autocast:
        return torch.autocast(self.device.type, dtype=self._autocast, enabled=self._autocast is not None)

    @contextmanager
    def _decoder_positions(self) -> Iterator[list[Tensor]]:
        """Collects the position ids that the text decoder is called with; nothing where it counts by itself."""
        found: list[Tensor] = []

        def note(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
            if (given := kwargs.get("position_ids")) is not None:
                found.append(given)

        handle = self.model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
        try:
            yield found
        finally:
            handle.remove()

    @torch.no_grad()
    def _probed_cache(self) -> Cache:
        """Compares our logits with the model's own on a few tokens; returns the cache they left."""
        ids_1L = torch.arange(PROBE_TOKENS, device=self.device)[None]
        cache = DynamicCache(config=self.model.config)
        with self._arithmetic():
            theirs = self.model(input_ids=ids_1L, use_cache=False).logits.float()
        ours = self.logits(self._run(input_ids=ids_1L, past_key_values=cache, use_cache=True).last_hidden_state)
        gap = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1e-6))
        if not gap <= HEAD_TOLERANCE:
            raise PolicyError(
                f"the logits of {type(self.model).__name__} are not its output embeddings applied to its last hidden "
                f"states (relative difference {gap:.1e}); known are a scale and a soft cap"
            )
        return cache
