"""Text embeddings from encoders of transformers, by mean pooling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .checkpoints import freeze, in_batches, load_once, resolve_device, resolve_dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFeatures:
    """Settings of a text encoder.

    Attributes:
        model: path or hub id, such as sentence-transformers models with mean pooling.
        device: None for the process's GPU, or the CPU.
        dtype: of the model.
        batch_size: number of texts per batch.
    """

    model: str
    device: str | None = None
    dtype: str = "float32"
    batch_size: int = 64

    def features(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32, rows of unit length; longer texts are truncated.

        Raises: RewardError if the model cannot be loaded.
        """
        device, dtype = resolve_device(self.device), resolve_dtype("features", self.dtype)
        model, tokenizer = load_once(_encoder, self.model, device, dtype)

        def read(batch: Sequence[str]) -> Tensor:
            inputs = tokenizer(list(batch), padding=True, truncation=True, return_tensors="pt").to(device)
            weight_BL1 = inputs["attention_mask"].unsqueeze(-1)
            return (model(**inputs).last_hidden_state * weight_BL1).sum(1) / weight_BL1.sum(1)

        return torch.nn.functional.normalize(in_batches(read, self.batch_size, texts), dim=-1)


def _encoder(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoTokenizer

    loaded = AutoModel.from_pretrained(model, dtype=dtype)
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    longest = getattr(loaded.config, "max_position_embeddings", tokenizer.model_max_length)
    tokenizer.model_max_length = min(tokenizer.model_max_length, longest)
    return freeze(loaded, device), tokenizer
