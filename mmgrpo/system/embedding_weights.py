"""The weights of embeddings and output heads, which some optimizers treat as tables of vectors, not as matrices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils.weak import WeakIdKeyDictionary

_embeddings: Any = WeakIdKeyDictionary()


def mark_embeddings(layers: Iterable[nn.Module | None]) -> None:
    """Marks all weights of these layers."""
    _embeddings.update({parameter: True for layer in layers if layer is not None for parameter in layer.parameters()})


def is_embedding(parameter: Tensor) -> bool:
    """Whether a weight was marked."""
    return parameter in _embeddings
