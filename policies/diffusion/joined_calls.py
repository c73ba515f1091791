"""Denoiser calls of several iterations as one forward, for updates of rows whose states are all recorded.

One run without any forward collects the arguments of the calls; a second one takes the outputs of the joined call.
Every state is recorded, so no argument depends on an output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .proxies import leading_rows

Key = tuple[int, int]
"""Iteration of a call, and its number among those of the iteration."""


class JoinError(ValueError):
    """Calls of different iterations cannot be one forward."""


@dataclass(frozen=True, slots=True)
class _Call:
    name: str
    args: Any
    kwargs: Any


@dataclass(slots=True)
class JoinedCalls:
    """The calls of some iterations; the n-th ones of all of them are one forward.

    Attributes:
        iterations: the iterations.
    """

    iterations: Sequence[int]
    _calls: dict[Key, _Call] = field(default_factory=dict)
    _outputs: dict[Key, Any] = field(default_factory=dict)
    _collected: Counter[int] = field(default_factory=Counter)
    _taken: Counter[int] = field(default_factory=Counter)

    def collect(self, iteration: int, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """``PipelineRun.intercept`` of the first run, in which no call of these iterations runs."""
        if iteration in self.iterations:
            self._calls[iteration, self._collected[iteration]] = _Call(name, args, kwargs)
            self._collected[iteration] += 1

    def output(self, iteration: int, name: str, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any | None:
        """``PipelineRun.intercept`` of the second run: the output of a call; None at other iterations.

        Raises: JoinError if the calls cannot be joined.
        """
        if iteration not in self.iterations:
            return None
        number = self._taken[iteration]
        self._taken[iteration] += 1
        if (iteration, number) not in self._outputs:
            self._run(number, name, forward)
        return self._outputs.pop((iteration, number))

    def _run(self, number: int, name: str, forward: Callable[..., Any]) -> None:
        keys = [(iteration, number) for iteration in self.iterations]
        calls = [call for key in keys if (call := self._calls.get(key)) is not None and call.name == name]
        if len(calls) < len(keys):
            raise JoinError(f"not every one of the steps {list(self.iterations)} calls {name} as often")
        rows = leading_rows(calls[0].args, calls[0].kwargs)
        args, kwargs = joined([(call.args, call.kwargs) for call in calls], rows)
        outputs = parts_of(forward(*args, **kwargs), len(calls), rows)
        self._outputs |= zip(keys, outputs, strict=True)


def joined(values: Sequence[Any], rows: int) -> Any:
    """An argument of several calls of ``rows`` rows as the argument of one.

    Tensors and lists with an entry per row are concatenated; a different number in each call becomes one per row; all
    others must be equal.

    Raises: JoinError if they are not.
    """
    first = values[0]
    if any(type(value) is not type(first) for value in values):
        raise JoinError("an argument changes its type")
    if isinstance(first, Tensor):
        return _joined_tensor(values, rows)
    if isinstance(first, list) and len(first) == rows:
        return [item for value in values for item in value]
    if isinstance(first, (list, tuple)) and all(len(value) == len(first) for value in values):
        return type(first)([joined(items, rows) for items in zip(*values, strict=True)])
    if isinstance(first, Mapping) and all(value.keys() == first.keys() for value in values):
        return {name: joined([value[name] for value in values], rows) for name in first}
    if all(value is first or value == first for value in values):
        return first
    raise JoinError(f"an argument of type {type(first).__name__} differs")


def _joined_tensor(tensors: Sequence[Tensor], rows: int) -> Tensor:
    first = tensors[0]
    if first.ndim and len(first) == rows and all(tensor.shape[1:] == first.shape[1:] for tensor in tensors):
        return torch.cat(list(tensors))
    if all(tensor is first or torch.equal(tensor, first) for tensor in tensors):
        return first
    if all(tensor.numel() == 1 for tensor in tensors):
        return torch.cat([tensor.reshape(1).expand(rows) for tensor in tensors])
    raise JoinError(f"a tensor of shape {tuple(first.shape)} differs and has no entry for each of {rows} rows")


def parts_of(output: Any, count: int, rows: int) -> list[Any]:
    """The output of each of ``count`` joined calls of ``rows`` rows. Raises JoinError for one without these parts."""
    leaves, spec = tree_flatten(output, is_leaf=lambda node: isinstance(node, list) and len(node) == count * rows)
    parts: list[list[Any]] = [[] for _ in range(count)]
    for leaf in leaves:
        if isinstance(leaf, Tensor) and (leaf.ndim == 0 or len(leaf) % count):
            raise JoinError(f"an output of shape {tuple(leaf.shape)} has no part for each of {count} steps")
        for number, part in enumerate(parts):
            size = len(leaf) // count if isinstance(leaf, (Tensor, list)) else 0
            part.append(leaf[number * size : (number + 1) * size] if size else leaf)
    return [tree_unflatten(part, spec) for part in parts]
