"""Memory-saving decoding: row by row, and by frames or tiles if diffusers' autoencoder supports it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from mmgrpo.errors import ConfigError

from .components import nested_pipelines
from .proxies import leading_rows
from .settings import DecodeSettings

SWITCHES = {"frames": "use_framewise_decoding", "tiles": "use_tiling"}
"""Setting -> the attribute of diffusers' autoencoders."""

COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""Dtypes of computation; weights may be stored in others."""


def decoders_of(pipeline: Any) -> list[nn.Module]:
    """The components with a ``decode`` method, including those of nested pipelines."""
    pipelines = (pipeline, *nested_pipelines(pipeline))
    modules = [part for each in pipelines for part in each.components.values() if isinstance(part, nn.Module)]
    return list({id(module): module for module in modules if callable(getattr(module, "decode", None))}.values())


def require_slices(pipeline: Any, settings: DecodeSettings) -> None:
    """Raises ConfigError for slicing settings that none of the pipeline's decoders supports."""
    decoders = decoders_of(pipeline)
    for name, switch in _enabled_switches(settings):
        if not any(hasattr(decoder, switch) for decoder in decoders):
            kinds = ", ".join(type(decoder).__name__ for decoder in decoders) or "the pipeline"
            raise ConfigError(f"policy.decode.{name}: {kinds} has no {switch}; remove the setting")
    with sliced(decoders, settings):
        return


@contextmanager
def sliced(decoders: Sequence[nn.Module], settings: DecodeSettings) -> Iterator[None]:
    """Enables the slicing settings of the decoders that support them within the context.

    Raises: ConfigError for tile sizes that a decoder does not take.
    """
    before = [dict(vars(decoder)) for decoder in decoders]
    try:
        for decoder in decoders:
            for name, switch in _enabled_switches(settings):
                if hasattr(decoder, switch):
                    _switch_on(decoder, name, switch, settings)
        yield
    finally:
        for decoder, values in zip(decoders, before, strict=True):
            vars(decoder).update(values)


def row_by_row(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The output of ``decode``, decoded one row at a time; every tensor with a batch dimension is split."""
    count = leading_rows(args, kwargs)
    leaves, shape = tree_flatten((args, kwargs))
    parts = []
    for row in range(count):
        row_leaves = [leaf[row : row + 1] if _has_rows(leaf, count) else leaf for leaf in leaves]
        row_args, row_kwargs = tree_unflatten(row_leaves, shape)
        parts.append(tree_flatten(decoder.decode(*row_args, **row_kwargs)))
    joined = [
        torch.cat(rows) if _has_rows(rows[0], 1) else rows[0] for rows in zip(*(p for p, _ in parts), strict=True)
    ]
    return tree_unflatten(joined, parts[0][1])


def in_dtype_of(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments cast to the module's dtype if it has a single one: an autoencoder may differ from the denoiser."""
    dtypes = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    dtype = getattr(module, "dtype", None)
    if len(dtypes) != 1 or dtype not in COMPUTED:
        return args, kwargs
    leaves, shape = tree_flatten((args, kwargs))
    if not any(isinstance(leaf, Tensor) and leaf.dtype in COMPUTED and leaf.dtype != dtype for leaf in leaves):
        return args, kwargs
    cast = [leaf.to(dtype) if isinstance(leaf, Tensor) and leaf.dtype in COMPUTED else leaf for leaf in leaves]
    return tree_unflatten(cast, shape)


def finite_entries(output: Any) -> Tensor | None:
    """(entries,) bool on the CPU: which leading entries of a decoder's output are finite; None if it is no batch."""
    tensors = [leaf for leaf in tree_flatten(output)[0] if isinstance(leaf, Tensor) and leaf.ndim > 0]
    if not tensors or not tensors[0].is_floating_point():
        return None
    return tensors[0].detach().isfinite().reshape(len(tensors[0]), -1).all(1).cpu()


def _has_rows(leaf: Any, count: int) -> bool:
    return isinstance(leaf, Tensor) and leaf.ndim > 0 and len(leaf) == count


def _switch_on(decoder: Any, name: str, switch: str, settings: DecodeSettings) -> None:
    if name != "tiles" or not settings.tiles:
        setattr(decoder, switch, True)
        return
    try:
        decoder.enable_tiling(**settings.tiles)
    except TypeError as error:
        raise ConfigError(f"policy.decode.tiles: {type(decoder).__name__} has other arguments: {error}") from error


def _enabled_switches(settings: DecodeSettings) -> list[tuple[str, str]]:
    """The enabled switches, by setting."""
    enabled = {"frames": settings.frames, "tiles": settings.tiles is not None}
    return [(name, SWITCHES[name]) for name, is_on in enabled.items() if is_on]
