"""Proxies of a pipeline's modules, which intercept the calls of one pipeline run.

A proxy is a plain object that behaves like its module (also under ``isinstance``), so pipelines run unmodified. The
denoiser's proxy returns zeros in ghost iterations; the proxies of frozen encoders cache outputs per unique input row.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

Call = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]


class ModuleProxy:
    """Wraps a module: calls go to ``on_call``, those of some methods to ``on_methods``, the rest to the module."""

    def __init__(self, module: Any, on_call: Call, on_methods: Mapping[str, Call] | None = None) -> None:
        object.__setattr__(self, "_module", module)
        object.__setattr__(self, "_on_call", on_call)
        object.__setattr__(self, "_on_methods", on_methods or {})

    @property
    def __class__(self) -> type:  # pipelines find their device by looking for torch modules among the components
        return type(object.__getattribute__(self, "_module"))

    def __getattr__(self, name: str) -> Any:
        if name in self._on_methods:
            return lambda *args, **kwargs: self._on_methods[name](self._module, args, kwargs)
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
class ZeroTemplate:
    """The metadata of an output tensor, scaled by the number of rows.

    Attributes:
        shape: shape for one row.
        listed: whether rows are the entries of a list instead of a leading dimension.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    listed: bool

    def zeros(self, rows: int) -> Tensor | list[Tensor]:
        """The zero tensor, or list of tensors, for a call of ``rows`` rows."""
        if self.listed:
            return [torch.zeros(self.shape, dtype=self.dtype, device=self.device) for _ in range(rows)]
        return torch.zeros((rows * self.shape[0], *self.shape[1:]), dtype=self.dtype, device=self.device)


class OutputShapes:
    """Records the shapes of a module's outputs, so that a ghost call can return zeros.

    A denoiser's output has the shape of its first argument's rows, for any number of rows and any prompt length. An
    output that is not made of rows of tensors, or that once violates this, is never replaced by zeros.
    """

    def __init__(self) -> None:
        self._templates: dict[Any, tuple[Any, Any] | None] = {}

    def record(self, name: str, args: Any, kwargs: Any, output: Any) -> None:
        """Stores the structure of the output of the component ``name``."""
        key, template = _call_key(name, args, kwargs), _templates_of(output, _first_tensors(args, kwargs))
        self._templates[key] = template if self._templates.get(key, template) == template else None

    def zeros(self, name: str, args: Any, kwargs: Any) -> Any | None:
        """An all-zero output, or None for a call without a template."""
        template = self._templates.get(_call_key(name, args, kwargs))
        if template is None:
            return None
        rows = leading_rows(args, kwargs)
        leaves, spec = template
        return tree_unflatten([None if leaf is None else leaf.zeros(rows) for leaf in leaves], spec)


def _first_tensors(args: Any, kwargs: Any) -> Tensor | Sequence[Tensor] | None:
    """The first tensor or list of tensors among a call's arguments: the states that it denoises."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and value.ndim > 0:
            return value
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor):
            return value
    return None


def _call_key(name: str, args: Any, kwargs: Any) -> Any:
    """The inputs that determine the shape of a call's output, except for the number of rows."""
    first = _first_tensors(args, kwargs)
    if isinstance(first, Tensor):
        states = {(True, first.shape[1:], first.dtype, first.device)}
    else:
        states = {(False, row.shape, row.dtype, row.device) for row in first or ()}
    flags = [value if isinstance(value, bool) else value is None for value in (*args, *kwargs.values())]
    return name, frozenset(states), tuple(kwargs), tuple(flags)


def _templates_of(
    output: Any, first: Tensor | Sequence[Tensor] | None
) -> tuple[tuple[ZeroTemplate | None, ...], Any] | None:
    """The output as templates, with its structure; None if it holds more than rows of tensors."""
    if first is None:
        return None
    rows, listed = len(first), not isinstance(first, Tensor)
    leaves, spec = tree_flatten(output, is_leaf=lambda node: listed and isinstance(node, list) and len(node) == rows)
    templates = tuple(_template(leaf, rows) for leaf in leaves)
    is_valid = all((template is None) == (leaf is None) for template, leaf in zip(templates, leaves, strict=True))
    return (templates, spec) if is_valid else None


def _template(leaf: Any, rows: int) -> ZeroTemplate | None:
    if isinstance(leaf, Tensor) and leaf.ndim > 0 and leaf.shape[0] % rows == 0:
        return ZeroTemplate((leaf.shape[0] // rows, *leaf.shape[1:]), leaf.dtype, leaf.device, listed=False)
    if isinstance(leaf, list) and all(isinstance(row, Tensor) and row.shape == leaf[0].shape for row in leaf):
        return ZeroTemplate(tuple(leaf[0].shape), leaf[0].dtype, leaf[0].device, listed=True)
    return None


def call_argument(module: Any, args: Any, kwargs: Any, names: Sequence[str]) -> tuple[str, Any] | None:
    """Name and value of the first of ``names`` that the call passes, by position or by keyword."""
    bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    return next(((name, bound[name]) for name in names if name in bound), None)
