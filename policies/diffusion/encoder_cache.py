"""Outputs of frozen modules, cached by the content of their inputs."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL.Image import Image
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from transformers import BatchEncoding

_DIGESTIBLE = (Tensor, Image, bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


@dataclass(frozen=True, slots=True)
class _Output:
    """A flattened result of a call."""

    leaves: list[Any]
    spec: TreeSpec

    @property
    def num_bytes(self) -> int:
        tensors = [_content(leaf) for leaf in self.leaves if isinstance(leaf, (Tensor, DiagonalGaussianDistribution))]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)

    @property
    def is_row(self) -> bool:
        """Whether every leaf is one row of a batch, or independent of rows."""
        return all(
            _content(leaf).shape[:1] == (1,)
            if isinstance(leaf, (Tensor, DiagonalGaussianDistribution))
            else leaf is None or isinstance(leaf, (bool, int, float, str))
            for leaf in self.leaves
        )


class EncoderCache:
    """Caches calls of frozen modules; the least recently used entry is evicted first.

    A call whose tensors all have the same number of rows is split: each unique row is computed once, alone, so that its
    result never depends on its batch. Other calls are cached as one entry.

    Attributes:
        num_computed: cache misses.
    """

    def __init__(self, max_bytes: int) -> None:
        """An empty cache.

        Args:
            max_bytes: capacity for outputs, in bytes.
        """
        self.max_bytes = max_bytes
        self.num_computed = 0
        self._bytes = 0
        self._unsplittable: set[Any] = set()  # functions whose outputs are not rows of a batch
        self._entries: OrderedDict[bytes, _Output] = OrderedDict()

    def __call__(self, module: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """``function(*args, **kwargs)``, without grad, from the cache if its inputs are cached."""
        leaves, spec = tree_flatten((args, kwargs))
        if not all(isinstance(leaf, _DIGESTIBLE) for leaf in leaves):
            return function(*args, **kwargs)  # a generator makes it random; other objects have no digest
        if _has_hooks(module):
            return function(*args, **kwargs)  # the pipeline reads the activations of layers, not only the output
        label = (id(module), getattr(function, "__name__", "call"))
        rows = _common_rows(leaves)
        if rows > 1 and label not in self._unsplittable:
            outputs = self._row_outputs(label, function, leaves, spec, rows)
            if outputs is not None:
                return outputs
            self._unsplittable.add(label)
        output = self._cached(_keys(label, leaves, spec, 1)[0], function, leaves, spec)
        return tree_unflatten(
            [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in output.leaves], output.spec
        )

    def _row_outputs(self, label: Any, function: Any, leaves: list[Any], spec: TreeSpec, rows: int) -> Any | None:
        keys = _keys(label, leaves, spec, rows)
        first_row = {key: row for row, key in reversed(list(enumerate(keys)))}
        order = {key: position for position, key in enumerate(dict.fromkeys(keys))}
        unique = []
        for key in order:
            row = first_row[key]
            part = [leaf[row : row + 1] if isinstance(leaf, Tensor) else leaf for leaf in leaves]
            output = self._cached(key, function, part, spec)
            if not output.is_row or (unique and not _can_batch(unique[0], output)):
                return None
            unique.append(output)
        index = None if len(unique) == rows else torch.tensor([order[key] for key in keys])
        merged = [_gathered([output.leaves[k] for output in unique], index) for k in range(len(unique[0].leaves))]
        return tree_unflatten(merged, unique[0].spec)

    def _cached(self, key: bytes, function: Any, leaves: list[Any], spec: TreeSpec) -> _Output:
        if key in self._entries:
            self._entries.move_to_end(key)
            return self._entries[key]
        args, kwargs = tree_unflatten(leaves, spec)
        with torch.no_grad():
            output_leaves, output_spec = tree_flatten(function(*args, **kwargs))
        # pipelines do not read an encoder's key-value cache
        cacheable_leaves = [None if type(leaf).__name__.endswith("Cache") else leaf for leaf in output_leaves]
        output = _Output(cacheable_leaves, output_spec)
        self.num_computed += 1
        self._entries[key] = output
        self._bytes += output.num_bytes
        while self._bytes > self.max_bytes and len(self._entries) > 1:
            self._bytes -= self._entries.popitem(last=False)[1].num_bytes
        return output


def tokenize_unique(tokenizer: Any, args: Any, kwargs: Any) -> Any:
    """The result of a tokenizer's call; of a list of texts each distinct one is tokenized once.

    Its length is that of the longest text either way, so that the tensors are the same.
    """
    texts = args[0] if args else kwargs.get("text")
    is_list = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not is_list or len(args) > 1 or kwargs.get("return_tensors") != "pt":
        return tokenizer(*args, **kwargs)
    unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    options = {name: value for name, value in kwargs.items() if name != "text"}
    encoded = tokenizer(list(unique), **options)
    if not all(isinstance(tensor, Tensor) and len(tensor) == len(unique) for tensor in encoded.values()):
        return tokenizer(*args, **kwargs)
    index = torch.tensor([unique[text] for text in texts])
    return BatchEncoding({name: tensor[index] for name, tensor in encoded.items()})


def _has_hooks(module: Any) -> bool:
    """Whether a layer of the module has a hook, so that a call has effects other than its output.

    Hooks of transformers, which collect the output, do not count.
    """
    layers = module.modules() if isinstance(module, nn.Module) else ()
    hooks = (hook for layer in layers for hook in (*layer._forward_hooks.values(), *layer._forward_pre_hooks.values()))
    return not all((getattr(hook, "__module__", None) or "").startswith("transformers.") for hook in hooks)


def _common_rows(leaves: Sequence[Any]) -> int:
    """The leading dimension that all tensors share, or 0."""
    sizes = {leaf.shape[0] if leaf.ndim else 0 for leaf in leaves if isinstance(leaf, Tensor)}
    return sizes.pop() if len(sizes) == 1 else 0


def _keys(label: Any, leaves: Sequence[Any], spec: TreeSpec, rows: int) -> list[bytes]:
    """A digest per row of a call (one digest for one row), which includes all inputs that are not rows."""
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    kinds = [_kind(leaf, rows) for leaf in leaves]
    head = hashlib.blake2b(repr((label, spec, kinds)).encode(), digest_size=16)
    content = [tensor.detach().cpu().contiguous().reshape(rows, -1).view(torch.uint8).numpy() for tensor in tensors]
    keys = []
    for row in range(rows):
        digest = head.copy()
        for array in content:
            digest.update(array[row].tobytes())
        keys.append(digest.digest())
    return keys


def _kind(leaf: Any, rows: int) -> Any:
    """The properties of an argument other than its rows; of an image, its content too."""
    if isinstance(leaf, Tensor):
        return leaf.dtype, (leaf.numel() // rows, *leaf.shape[1:])
    if isinstance(leaf, Image):
        return leaf.mode, leaf.size, hashlib.blake2b(leaf.tobytes(), digest_size=16).hexdigest()
    return leaf


def _content(leaf: Tensor | DiagonalGaussianDistribution) -> Tensor:
    return leaf if isinstance(leaf, Tensor) else leaf.parameters


def _can_batch(output: _Output, other: _Output) -> bool:
    """Whether two rows can be concatenated."""
    if output.spec != other.spec:
        return False
    return all(
        _content(a).shape == _content(b).shape if isinstance(a, (Tensor, DiagonalGaussianDistribution)) else a == b
        for a, b in zip(output.leaves, other.leaves, strict=True)
    )


def _gathered(leaves: Sequence[Any], index: Tensor | None) -> Any:
    first = leaves[0]
    if not isinstance(first, (Tensor, DiagonalGaussianDistribution)):
        return first
    batch = torch.cat([_content(leaf) for leaf in leaves])
    if index is not None:
        batch = batch[index.to(batch.device)]
    return batch if isinstance(first, Tensor) else DiagonalGaussianDistribution(batch)
