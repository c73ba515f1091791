"""Features of images, videos and audio from frozen encoders, computed once per prompt.

A rollout, its scoring under any weights and all its updates read the same features, so the encoder runs once for a
prompt. A call of an encoder for N prompts of one kind has N equal parts along the first dimension of every tensor; each
part is stored with its input, and replaces a later call with an equal input.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from transformers import PreTrainedModel

from ..forward_replacement import replaced_forward
from .encoding import EncodedPrompt

logger = logging.getLogger(__name__)

MODALITIES = ("image", "video", "audio")
TOLERANCE = 0.05
"""Difference of a part alone from the same part in a batch, relative to its largest value: more than bfloat16 rounds,
and less than parts of different media differ."""

Key = tuple[tuple[int, ...], int]
"""The media tensors of a prompt, by id, and the number of the call of the encoder in the forward."""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A prompt's part of a call.

    Attributes:
        prompt: keeps the media tensors, so that their ids stay unique.
        inputs: leaves of the arguments.
        outputs: leaves of the output.
        spec: structure of the output.
    """

    prompt: EncodedPrompt
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    spec: TreeSpec

    @property
    def num_bytes(self) -> int:
        tensors = [leaf for leaf in (*self.inputs, *self.outputs) if isinstance(leaf, Tensor)]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    def is_of(self, inputs: Sequence[Any]) -> bool:
        """Whether its arguments are equal to these."""
        return len(inputs) == len(self.inputs) and all(map(_is_equal, inputs, self.inputs))


@final
class MediaFeatures:
    """Caches the outputs of a model's encoders of media while none of their parameters is trained."""

    def __init__(self, model: PreTrainedModel, max_bytes: int) -> None:
        """An empty cache.

        Args:
            model: the model, whose encoders transformers names.
            max_bytes: memory of inputs and outputs, on the model's device; the oldest are dropped first.
        """
        self._encoders: list[Any] = frozen_encoders(model)
        self._max_bytes = max_bytes
        self._bytes = 0
        self._parts: OrderedDict[Key, _Part] = OrderedDict()
        self._is_separable: bool | None = None

    @contextmanager
    def of(self, prompts: Sequence[EncodedPrompt]) -> Iterator[None]:
        """A context in which the encoders run for these prompts, one after the other in every tensor."""
        calls = count()
        with ExitStack() as stack:
            for encoder in self._encoders if prompts and prompts[0].media and self._max_bytes else ():
                if _is_frozen(encoder):
                    stack.enter_context(replaced_forward(encoder, partial(self._run, prompts, calls)))
            yield

    def _run(
        self, prompts: Sequence[EncodedPrompt], calls: Iterator[int], forward: Callable[..., Any], *args: Any,
        **kwargs: Any,
    ) -> Any:  # fmt: skip
        """The output of an encoder for all prompts, of which those without a stored part run in one call."""
        number, (leaves, spec) = next(calls), tree_flatten((args, kwargs))
        inputs = _split(leaves, len(prompts))
        if inputs is None or (len(prompts) > 1 and self._is_separable is False):
            return forward(*args, **kwargs)
        keys: list[Key] = [(tuple(map(id, prompt.media.values())), number) for prompt in prompts]
        parts = {key: self._parts[key] for key in keys if key in self._parts}
        missing = {key: n for n, key in enumerate(keys) if key not in parts or not parts[key].is_of(inputs[n])}.values()
        if len(prompts) > 1 and self._is_separable is None:  # parts of single calls may not make up that of all
            missing = range(len(prompts))
        if missing:
            outputs = self._outputs(forward, [inputs[n] for n in missing], spec)
            if outputs is None:
                return forward(*args, **kwargs)
            for n, output in zip(missing, outputs, strict=True):
                parts[keys[n]] = _Part(prompts[n], list(map(_copied, inputs[n])), *output)
        if not all(parts[key].is_of(inputs[n]) for n, key in enumerate(keys)):  # its parts are not those of prompts
            return forward(*args, **kwargs)
        for key, part in parts.items():
            self._store(key, part)
        return tree_unflatten(_joined([parts[key].outputs for key in keys]), parts[keys[0]].spec)

    def _outputs(
        self, forward: Callable[..., Any], parts: Sequence[Sequence[Any]], spec: TreeSpec
    ) -> list[tuple[Sequence[Any], TreeSpec]] | None:
        """The output of each part, of one call; None if the encoder has no output for each."""

        def run(leaves: Sequence[Any]) -> tuple[list[Any], TreeSpec]:
            args, kwargs = tree_unflatten(leaves, spec)
            return tree_flatten(forward(*args, **kwargs))

        leaves, output_spec = run(_joined(parts))
        by_part = _split(leaves, len(parts))
        if len(parts) > 1 and self._is_separable is None:
            self._is_separable = by_part is not None and _is_close(run(parts[0])[0], by_part[0])
            if not self._is_separable:
                logger.info("the encoder of media runs again for every batch: its output is not made of equal parts")
        if by_part is None or (len(parts) > 1 and not self._is_separable):
            return None
        return [(list(map(_copied, outputs)), output_spec) for outputs in by_part]

    def _store(self, key: Key, part: _Part) -> None:
        self._drop(key)
        self._parts[key] = part
        self._bytes += part.num_bytes
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._parts)))

    def _drop(self, key: Key) -> None:
        if key in self._parts:
            self._bytes -= self._parts.pop(key).num_bytes


def frozen_encoders(model: PreTrainedModel) -> list[nn.Module]:
    """The encoders of media of a model that have no trained parameter."""
    encoders = [model.get_encoder(modality=modality) for modality in MODALITIES]
    inner = {id(encoder): encoder for encoder in encoders if encoder not in (None, model, model.base_model)}
    return [encoder for encoder in inner.values() if _is_frozen(encoder)]


def _is_frozen(encoder: nn.Module) -> bool:
    return not any(parameter.requires_grad for parameter in encoder.parameters())


def _copied(leaf: Any) -> Any:
    """A leaf whose memory is not that of a batch."""
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _split(leaves: Sequence[Any], count: int) -> list[list[Any]] | None:
    """The leaves of each of ``count`` equal parts; None if a tensor has no such parts, or is differentiated."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    if not tensors or any(t.ndim == 0 or len(t) % count or t.requires_grad for t in tensors):
        return None
    split = [leaf.chunk(count) if isinstance(leaf, Tensor) else [leaf] * count for leaf in leaves]
    return [[leaf[part] for leaf in split] for part in range(count)]


def _joined(parts: Sequence[Sequence[Any]]) -> list[Any]:
    """The leaves of all parts together."""
    if len(parts) == 1:
        return list(parts[0])
    return [torch.cat(leaf) if isinstance(leaf[0], Tensor) else leaf[0] for leaf in zip(*parts, strict=True)]


def _is_equal(leaf: Any, other: Any) -> bool:
    if isinstance(leaf, Tensor) and isinstance(other, Tensor):
        return leaf.dtype == other.dtype and torch.equal(leaf, other)
    return type(leaf) is type(other) and leaf == other


def _is_close(leaves: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether tensors are equal to rounding."""
    pairs = [(a.float(), b.float()) for a, b in zip(leaves, others, strict=True) if isinstance(a, Tensor)]
    return all(a.shape == b.shape and bool((a - b).abs().max() <= TOLERANCE * a.abs().max()) for a, b in pairs)
