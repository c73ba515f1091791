"""CLIP models of either library behind one face: features of images and of texts, as the library itself gives them.

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
    """Two encoders into one space. The features are as they come, of any length."""

    def image_features(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, D) float32."""
        ...

    def text_features(self, texts: Sequence[str]) -> Tensor:
        """(N, D) float32; a text longer than the model reads is cut."""
        ...

    def logit_scale(self) -> float:
        """The learned factor of the cosine, as it is applied."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipSource:
    """Which CLIP model, and how it runs.

    Attributes:
        model: of transformers a path or hub id; of open_clip an architecture, ``hf-hub:owner/name`` or
            ``local-dir:folder``.
        pretrained: of open_clip's architectures, the tag or checkpoint file.
        processor: of transformers, path or hub id of the processor, where it is not the model's own.
        library: which library; None: open_clip if ``pretrained`` or a ``model`` with a colon says so.
        resize_mode: of open_clip, how images that are not square are resized; None: as the model was trained.
        device: None for the process's GPU, or the CPU.
        dtype: of the model.
        batch_size: images or texts at a time.
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
    """Cosine of each row with the row of the same number. Shapes: (N, D), (N, D) -> (N,)."""
    return (unit(image_ND) * unit(text_ND)).sum(-1)


def _pooled(features: Any) -> Tensor:
    """transformers 4 gives the features, transformers 5 an output that holds them."""
    return features if isinstance(features, Tensor) else features.pooler_output


def _open_clip(
    model: str, pretrained: str | None, resize_mode: str | None, device: torch.device, dtype: torch.dtype
) -> tuple[Any, Any, Any]:
    import open_clip

    loaded: Any
    transform: Any
    loaded, transform = open_clip.create_model_from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]
        model, pretrained=pretrained, device="cpu", image_resize_mode=resize_mode, weights_only=True
    )
    return freeze(loaded, device, dtype), transform, open_clip.get_tokenizer(model)


def _transformers_clip(model: str, processor: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoModel, AutoProcessor

    loaded = AutoModel.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoProcessor.from_pretrained(processor)
