"""CLIP models of transformers and open_clip with a common interface: features of images and texts, as in each library.

Axes: N images or texts, D width of the shared space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, final

import torch
from PIL import Image
from torch import Tensor

from .checkpoints import freeze, in_batches, load_once, resolve_device, resolve_dtype

Library = Literal["transformers", "open_clip"]
ResizeMode = Literal["shortest", "longest", "squash"]


class Clip(Protocol):
    """Image and text encoders of a shared space. The features are not normalized."""

    def image_features(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, D) float32."""
        ...

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32; longer texts are truncated."""
        ...

    def logit_scale(self) -> float:
        """The learned scale of the cosine, after exponentiation."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSource:
    """Settings of a CLIP model.

    Attributes:
        model: for transformers a path or hub id; for open_clip an architecture, ``hf-hub:owner/name`` or
            ``local-dir:folder``.
        pretrained: tag or checkpoint file of an open_clip architecture.
        processor: path or hub id of a transformers processor, if it differs from the model.
        library: the library; None: open_clip if ``pretrained`` is set or ``model`` has a colon.
        resize_mode: how open_clip resizes non-square images; None: as in training.
        device: None for the process's GPU, or the CPU.
        dtype: of the model.
        batch_size: number of images or texts per batch.
    """

    model: str
    pretrained: str | None = None
    processor: str | None = None
    library: Library | None = None
    resize_mode: ResizeMode | None = None
    device: str | None = None
    dtype: str = "float32"
    batch_size: int = 32

    def load(self) -> Clip:
        """The model, loaded at the first call in this process. Raises RewardError if it cannot be."""
        scheme = self.model.startswith(("hf-hub:", "local-dir:"))
        device, dtype = resolve_device(self.device), resolve_dtype("clip", self.dtype)
        if self.library == "open_clip" or (self.library is None and (scheme or self.pretrained)):
            loaded = load_once(_open_clip, self.model, self.pretrained, self.resize_mode, device, dtype)
            return OpenClip(*loaded, device, dtype, self.batch_size)
        loaded = load_once(_transformers_clip, self.model, self.processor or self.model, device, dtype)
        return TransformersClip(*loaded, device, dtype, self.batch_size)


@final
class OpenClip:
    """A model of open_clip with its own transform and tokenizer."""

    def __init__(
        self,
        model: Any,
        transform: Callable[[Image.Image], Tensor],
        tokenizer: Callable[[Sequence[str]], Tensor],
        device: torch.device,
        dtype: torch.dtype,
        batch_size: int,
    ) -> None:
        self._model = model
        self._transform = transform
        self._tokenizer = tokenizer
        self._device = device
        self._dtype = dtype
        self._batch_size = batch_size

    def image_features(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, D) float32."""

        def encoded(batch: Sequence[Image.Image]) -> Tensor:
            pixels = torch.stack([self._transform(image.convert("RGB")) for image in batch])
            return self._model.encode_image(pixels.to(self._device, self._dtype))

        return in_batches(encoded, self._batch_size, images)

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32."""

        def encoded(batch: Sequence[str]) -> Tensor:
            return self._model.encode_text(self._tokenizer(list(batch)).to(self._device))

        return in_batches(encoded, self._batch_size, texts)

    def logit_scale(self) -> float:
        """The learned factor of the cosine."""
        return float(self._model.logit_scale.float().exp())


@final
class TransformersClip:
    """A model of transformers (CLIP, SigLIP and kin) with its processor."""

    def __init__(self, model: Any, processor: Any, device: torch.device, dtype: torch.dtype, batch_size: int) -> None:
        self._model = model
        self._processor = processor
        self._device = device
        self._dtype = dtype
        self._batch_size = batch_size

    def image_features(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, D) float32."""

        def encoded(batch: Sequence[Image.Image]) -> Tensor:
            inputs = self._processor(images=[image.convert("RGB") for image in batch], return_tensors="pt")
            pixels = inputs["pixel_values"].to(self._device, self._dtype)
            return _pooled(self._model.get_image_features(pixel_values=pixels))

        return in_batches(encoded, self._batch_size, images)

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32."""
        siglip = "siglip" in self._model.config.model_type  # trained on texts padded to their full length

        def encoded(batch: Sequence[str]) -> Tensor:
            inputs = self._processor(
                text=list(batch),
                padding="max_length" if siglip else True,
                truncation=True,
                max_length=self._model.config.text_config.max_position_embeddings,
                return_tensors="pt",
            )
            return _pooled(self._model.get_text_features(**inputs.to(self._device)))

        return in_batches(encoded, self._batch_size, texts)

    def logit_scale(self) -> float:
        """The learned factor of the cosine."""
        return float(self._model.logit_scale.float().exp())


def unit(features_ND: Tensor) -> Tensor:
    """Every row divided by its length."""
    return features_ND / features_ND.norm(dim=-1, keepdim=True)


def cosines(image_ND: Tensor, text_ND: Tensor) -> Tensor:
    """Cosine similarity of corresponding rows. Shapes: (N, D), (N, D) -> (N,)."""
    return (unit(image_ND) * unit(text_ND)).sum(-1)


def _pooled(features: Any) -> Tensor:
    """transformers 4 returns the features, transformers 5 an output object."""
    return features if isinstance(features, Tensor) else features.pooler_output


def _open_clip(
    model: str, pretrained: str | None, resize_mode: str | None, device: torch.device, dtype: torch.dtype
) -> tuple[Any, Any, Any]:
    import open_clip

    loaded: Any
    transform: Any
    loaded, transform = open_clip.create_model_from_pretrained(  # pyrefly: ignore[not-iterable]
        model, pretrained=pretrained, device="cpu", image_resize_mode=resize_mode, weights_only=True
    )
    return freeze(loaded, device, dtype), transform, open_clip.get_tokenizer(model)


def _transformers_clip(model: str, processor: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoProcessor

    loaded = AutoModel.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoProcessor.from_pretrained(processor)
