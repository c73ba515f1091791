"""Stand-ins for a pipeline's modules: they watch the calls of one pipeline run and decide what each one costs.

A proxy is a plain object that answers like the module it stands for (also to ``isinstance``), so no pipeline needs to
know. The denoiser's proxy lets unwanted iterations pass with zeros; the proxies of frozen encoders remember what they
have computed, once per unique input row.
"""

from __future__ import annotations

import hashlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class ModuleProxy:
    """Stands for a module: calls go to ``on_call``, ``encode`` to ``on_encode``, everything else to the module."""

    def __init__(self, module: Any, on_call: Call, on_encode: Call | None = None) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_on_call", on_call)
        object.__setattr__(self, "_on_encode", on_encode)

    @property
    def __class__(self) -> type:  # pipelines find their device by looking for torch modules among the components
        return type(object.__getattribute__(self, "_module"))

    def __getattr__(self, name: str) -> Any:
        if name == "encode" and self._on_encode is not None:
            return lambda *args, **kwargs: self._on_encode(self._module, args, kwargs)
        return getattr(self._module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._module, name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._on_call(self._module, args, kwargs)


def leading_rows(args: Any, kwargs: Any) -> int:
    """Batch rows of a call: the leading dimension of its first tensor, or the length of its first list of tensors."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim > 0:
            return value.shape[0]
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return len(value)
    return 1


class Shapes:
    """Remembers the shapes of a denoiser's outputs, so that a ghost call can be answered with zeros."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def learn(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        """Keeps the structure of an output; an output that holds more than tensors is never answered for."""
        leaves, spec = tree_flatten(output)
        if all(isinstance(leaf, Tensor) or leaf is None for leaf in leaves):
            shapes = [None if leaf is None else (leaf.shape, leaf.dtype, leaf.device) for leaf in leaves]
            self._known[self._key(module, args, kwargs)] = (shapes, spec)

    def zeros(self, module: Any, args: Any, kwargs: Any) -> Any | None:
        """An all-zero output, or None for a call never seen."""
        known = self._known.get(self._key(module, args, kwargs))
        if known is None:
            return None
        shapes, spec = known
        leaves = [None if s is None else torch.zeros(s[0], dtype=s[1], device=s[2]) for s in shapes]
        return tree_unflatten(leaves, spec)

    def _key(self, module: Any, args: Any, kwargs: Any) -> Any:
        leaves, _ = tree_flatten((args, kwargs))
        return id(module), tuple(tuple(leaf.shape) if isinstance(leaf, Tensor) else None for leaf in leaves)


class Memo:
    """Remembers what frozen modules compute, by the content of their inputs; least recently used goes first.

    A call whose tensors all have the same number of rows is split: each unique row is computed once, alone, so that
    its result never depends on what shared its batch. Other calls are remembered whole.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_computed = 0
        self._bytes = 0
        self._whole: set[Any] = set()  # functions whose outputs are not rows of a batch
        self._entries: OrderedDict[bytes, tuple[Any, int]] = OrderedDict()

    def __call__(self, module: Any, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """``function(*args, **kwargs)``, without grad, from memory where its inputs are known."""
        if _is_random(args, kwargs):
            return function(*args, **kwargs)
        label = (id(module), getattr(function, "__name__", "call"))
        rows = _common_rows(args, kwargs)
        if rows > 1 and label not in self._whole:
            merged = self._by_rows(label, function, args, kwargs, rows)
            if merged is not None:
                return merged
            self._whole.add(label)
        return tree_map(_clone, self._remember(label, function, args, kwargs))

    def _by_rows(self, label: Any, function: Any, args: Any, kwargs: Any, rows: int) -> Any | None:
        outputs = []
        for row in range(rows):
            row_args, row_kwargs = tree_map(
                lambda x, r=row: x[r : r + 1] if isinstance(x, Tensor) else x, (args, kwargs)
            )
            outputs.append(self._remember(label, function, row_args, row_kwargs))
        return _concatenate(outputs)

    def _remember(self, label: Any, function: Any, args: Any, kwargs: Any) -> Any:
        key = _digest((label, args, kwargs))
        if key not in self._entries:
            with torch.no_grad():
                output = function(*args, **kwargs)
            self.num_computed += 1
            self._store(key, output)
            return output
        self._entries.move_to_end(key)
        return self._entries[key][0]

    def _store(self, key: bytes, output: Any) -> None:
        size = sum(leaf.numel() * leaf.element_size() for leaf in _tensors(output))
        self._entries[key] = (output, size)
        self._bytes += size
        while self._bytes > self.max_bytes and len(self._entries) > 1:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed


def call_argument(module: Any, args: Any, kwargs: Any, names: Sequence[str]) -> tuple[str, Any] | None:
    """Name and value of the first of ``names`` that the call passes, by position or by keyword."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return next(((name, bound[name]) for name in names if name in bound), None)


def _is_random(args: Any, kwargs: Any) -> bool:
    return any(isinstance(leaf, torch.Generator) for leaf in tree_flatten((args, kwargs))[0])


def _common_rows(args: Any, kwargs: Any) -> int:
    sizes = {leaf.shape[0] if leaf.ndim else -1 for leaf in _tensors((args, kwargs))}
    return sizes.pop() if len(sizes) == 1 else -1


def _tensors(tree: Any) -> list[Tensor]:
    leaves = []
    for leaf in tree_flatten(tree)[0]:
        if isinstance(leaf, Tensor):
            leaves.append(leaf)
        elif isinstance(leaf, DiagonalGaussianDistribution):
            leaves.append(leaf.parameters)
    return leaves


def _clone(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else leaf


def _concatenate(outputs: Sequence[Any]) -> Any | None:
    """Row outputs as one batch; None where they hold something that is not one row of a batch."""
    flat = [tree_flatten(output) for output in outputs]
    merged = []
    for leaves in zip(*(leaves for leaves, _ in flat), strict=True):
        first = leaves[0]
        if isinstance(first, Tensor):
            if any(leaf.ndim == 0 or leaf.shape[0] != 1 or leaf.shape[1:] != first.shape[1:] for leaf in leaves):
                return None
            merged.append(torch.cat(leaves))
        elif isinstance(first, DiagonalGaussianDistribution):
            merged.append(DiagonalGaussianDistribution(torch.cat([leaf.parameters for leaf in leaves])))
        elif first is None or isinstance(first, (bool, int, float, str)):
            merged.append(first)
        elif type(first).__name__.endswith("Cache"):  # an encoder's key-value cache; no pipeline reads it
            merged.append(None)
        else:
            return None
    return tree_unflatten(merged, flat[0][1])


def _digest(tree: Any) -> bytes:
    leaves, spec = tree_flatten(tree)
    digest = hashlib.blake2b(repr(spec).encode(), digest_size=16)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
            digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        else:
            digest.update(f"|{leaf!r}".encode())
    return digest.digest()
