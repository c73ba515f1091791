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
from dataclasses import dataclass
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
    first = _first_tensors(args, kwargs)
    return 1 if first is None else len(first)


@dataclass(frozen=True, slots=True)
class Blank:
    """An output tensor without its values: what each row of the call adds to it.

    Attributes:
        shape: shape for one row.
        listed: whether rows are the entries of a list instead of a leading dimension.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    listed: bool

    def zeros(self, rows: int) -> Tensor | list[Tensor]:
        """The tensor, or the list of tensors, for a call of so many rows."""
        if self.listed:
            return [torch.zeros(self.shape, dtype=self.dtype, device=self.device) for _ in range(rows)]
        return torch.zeros((rows * self.shape[0], *self.shape[1:]), dtype=self.dtype, device=self.device)


class Shapes:
    """Remembers the shapes of a module's outputs, so that a ghost call can be answered with zeros.

    What a denoiser gives back has the shape of its first argument's rows, whatever their number and however long the
    prompts are. An output that is not made of rows of tensors, or that breaks this rule once, is never answered for.
    """

    def __init__(self) -> None:
        self._known: dict[Any, tuple[Any, Any] | None] = {}

    def learn(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Keeps the structure of the output of the component ``name``."""
        key, blank = _call_key(name, args, kwargs), _blank_of(output, _first_tensors(args, kwargs))
        self._known[key] = blank if self._known.get(key, blank) == blank else None

    def zeros(self, name: str, args: Any, kwargs: Any) -> Any | None:
        """An all-zero output, or None for a call that cannot be answered for."""
        blank = self._known.get(_call_key(name, args, kwargs))
        if blank is None:
            return None
        rows = leading_rows(args, kwargs)
        leaves, spec = blank
        return tree_unflatten([None if leaf is None else leaf.zeros(rows) for leaf in leaves], spec)


def _first_tensors(args: Any, kwargs: Any) -> Tensor | Sequence[Tensor] | None:
    """The first tensor or list of tensors among a call's arguments: the states it denoises."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim > 0:
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return value
    return None


def _call_key(name: str, args: Any, kwargs: Any) -> Any:
    """What the shape of a call's output depends on, but for the number of rows."""
    first = _first_tensors(args, kwargs)
    if isinstance(first, Tensor):
        states = {(True, first.shape[1:], first.dtype, first.device)}
    else:
        states = {(False, row.shape, row.dtype, row.device) for row in first or ()}
    flags = [value if isinstance(value, bool) else value is None for value in (*args, *kwargs.values())]
    return name, frozenset(states), tuple(kwargs), tuple(flags)


def _blank_of(output: Any, first: Tensor | Sequence[Tensor] | None) -> tuple[tuple[Blank | None, ...], Any] | None:
    """The output as blanks, with its structure; None if it holds more than rows of tensors."""
    if first is None:
        return None
    rows, listed = len(first), not isinstance(first, Tensor)
    leaves, spec = tree_flatten(output, is_leaf=lambda node: listed and isinstance(node, list) and len(node) == rows)
    blanks = tuple(_blank(leaf, rows) for leaf in leaves)
    return (blanks, spec) if all((b is None) == (leaf is None) for b, leaf in zip(blanks, leaves, strict=True)) else None


def _blank(leaf: Any, rows: int) -> Blank | None:
    if isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] % rows == 0:
        return Blank((leaf.shape[0] // rows, *leaf.shape[1:]), leaf.dtype, leaf.device, listed=False)
    if isinstance(leaf, list) and all(isinstance(row, Tensor) and row.shape == leaf[0].shape for row in leaf):
        return Blank(tuple(leaf[0].shape), leaf[0].dtype, leaf[0].device, listed=True)
    return None


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
        if not all(isinstance(leaf, _DIGESTIBLE) for leaf in tree_flatten((args, kwargs))[0]):
            return function(*args, **kwargs)  # a generator makes it random; other objects have no content to go by
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
                output = tree_map(_without_cache, function(*args, **kwargs))
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


_DIGESTIBLE = (Tensor, bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


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


def _without_cache(leaf: Any) -> Any:
    return None if type(leaf).__name__.endswith("Cache") else leaf  # no pipeline reads an encoder's key-value cache


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
