"""Pictures and videos decoded in slices: rows one after another, frames and tiles as diffusers' autoencoders can."""

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
"""Setting -> the autoencoders' own switch."""

COMPUTED = (torch.float32, torch.bfloat16, torch.float16)
"""Types that a module computes in; weights may be stored in others."""


def decoders_of(pipeline: Any) -> list[nn.Module]:
    """The components that decode, those of held pipelines among them."""
    pipelines = (pipeline, *nested_pipelines(pipeline))
    modules = [part for one in pipelines for part in one.components.values() if isinstance(part, nn.Module)]
    return list({id(module): module for module in modules if callable(getattr(module, "decode", None))}.values())


def require_slices(pipeline: Any, settings: DecodeSettings) -> None:
    """Raises ConfigError for slices that none of a pipeline's decoders can be cut into."""
    decoders = decoders_of(pipeline)
    for name, switch in _wanted(settings):
        if not any(hasattr(decoder, switch) for decoder in decoders):
            kinds = ", ".join(type(decoder).__name__ for decoder in decoders) or "what decodes here"
            raise ConfigError(f"policy.decode.{name}: {kinds} has no {switch} to switch on; leave it out")
    with sliced(decoders, settings):
        return


@contextmanager
def sliced(decoders: Sequence[nn.Module], settings: DecodeSettings) -> Iterator[None]:
    """Within it decoders that can are switched as the settings say; afterwards they are as they were.

    Raises: ConfigError for sizes of tiles that a decoder does not take.
    """
    before = [dict(vars(decoder)) for decoder in decoders]
    try:
        for decoder in decoders:
            for name, switch in _wanted(settings):
                if hasattr(decoder, switch):
                    _switch_on(decoder, name, switch, settings)
        yield
    finally:
        for decoder, values in zip(decoders, before, strict=True):
            vars(decoder).update(values)


def row_by_row(decoder: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What ``decode`` gives, its rows decoded one after another; every tensor of as many rows is cut along."""
    count = leading_rows(args, kwargs)
    leaves, shape = tree_flatten((args, kwargs))
    parts = []
    for row in range(count):
        own = [leaf[row : row + 1] if _has_rows(leaf, count) else leaf for leaf in leaves]
        own_args, own_kwargs = tree_unflatten(own, shape)
        parts.append(tree_flatten(decoder.decode(*own_args, **own_kwargs)))
    joined = [
        torch.cat(some) if _has_rows(some[0], 1) else some[0] for some in zip(*(p for p, _ in parts), strict=True)
    ]
    return tree_unflatten(joined, parts[0][1])


def in_dtype_of(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with their numbers in the module's dtype, where it has one: an autoencoder may have its own."""
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
    """(entries,) bool on the CPU: which leading entries of a decoder's output are finite; None where it is no batch."""
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
        raise ConfigError(f"policy.decode.tiles: {type(decoder).__name__} takes other sizes: {error}") from error


def _wanted(settings: DecodeSettings) -> list[tuple[str, str]]:
    """The switches that are to be on, by the setting's name."""
    asked = {"frames": settings.frames, "tiles": settings.tiles is not None}
    return [(name, SWITCHES[name]) for name, is_on in asked.items() if is_on]
