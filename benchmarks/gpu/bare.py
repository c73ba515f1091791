"""Bare passes: the calls that a policy made of its model, repeated directly with the same tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map


class BarePasses:
    """Records the calls of a module, and makes them again.

    Attributes:
        calls: positional and named arguments of each recorded call, without their graphs.
    """

    def __init__(self, module: nn.Module, *, autocast: torch.dtype | None = None) -> None:
        """Records nothing yet.

        Args:
            module: whose calls are recorded.
            autocast: dtype of the arithmetic; None: that of the tensors.
        """
        self.calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
        self._module, self._autocast = module, autocast

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Records the calls made in the context, in place of those before."""
        self.calls = []

        def record(_: nn.Module, args: Any, kwargs: Any) -> None:
            self.calls.append(
                tree_map(lambda leaf: leaf.detach() if isinstance(leaf, Tensor) else leaf, (args, kwargs))
            )

        handle = self._module.register_forward_pre_hook(record, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    @torch.no_grad()
    def forward(self) -> None:
        """Makes the recorded calls without grad."""
        for args, kwargs in self.calls:
            self._call(args, kwargs)

    def backward(self) -> None:
        """Makes the recorded calls and their backward passes; gradients add up."""
        for args, kwargs in self.calls:
            self._call(args, kwargs).float().square().mean().backward()

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        device = next(self._module.parameters()).device.type
        with torch.autocast(device, dtype=self._autocast, enabled=self._autocast is not None):
            output = self._module(*args, **kwargs)
        return output[0]


@contextmanager
def recorded_decodes(autoencoder: Any) -> Iterator[list[Any]]:
    """The latents that an autoencoder decodes in the context."""
    latents: list[Any] = []
    decode = autoencoder.decode

    def recording(latent: Any, *args: Any, **kwargs: Any) -> Any:
        latents.append(latent)
        return decode(latent, *args, **kwargs)

    autoencoder.decode = recording
    try:
        yield latents
    finally:
        del autoencoder.decode
