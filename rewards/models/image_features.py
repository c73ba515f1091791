"""Features of images from vision models of transformers, and the structural similarity of two images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter
from torch import Tensor

from .checkpoints import freeze, in_batches, load_once, resolve_device, resolve_dtype

SSIM_SIGMA, SSIM_RADIUS = 1.5, 5
SSIM_C1, SSIM_C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureSource:
    """Settings of a vision model.

    Attributes:
        model: path or hub id; for CLIP and SigLIP the projected feature is used, for other models (DINOv2, ViT) the
            last hidden state of the first token.
        device: None for the process's GPU, or the CPU.
        dtype: of the model.
        batch_size: number of images per batch.
    """

    model: str
    device: str | None = None
    dtype: str = "float32"
    batch_size: int = 32

    def features(self, images: Sequence[Image.Image]) -> Tensor:
        """(N, D) float32, rows of unit length. Raises RewardError if the model cannot be loaded."""
        device, dtype = resolve_device(self.device), resolve_dtype("features", self.dtype)
        model, processor = load_once(_vision_model, self.model, device, dtype)

        def embed(batch: Sequence[Image.Image]) -> Tensor:
            inputs = processor(images=[image.convert("RGB") for image in batch], return_tensors="pt")
            return _feature(model, inputs["pixel_values"].to(device, dtype))

        return torch.nn.functional.normalize(in_batches(embed, self.batch_size, images), dim=-1)


def ssim(image: NDArray[Any], reference: NDArray[Any]) -> float:
    """Mean structural similarity of two gray images with values 0 to 255, over all complete windows.

    Shapes: (H, W), (H, W), both edges at least 11 -> a number in [-1, 1].
    Source: Wang et al. 2004, "Image quality assessment", eq. 13, with its 11 x 11 Gaussian window of 1.5 pixels.
    """

    def local_mean(values: NDArray[Any]) -> NDArray[Any]:
        inner = slice(SSIM_RADIUS, -SSIM_RADIUS)
        return gaussian_filter(values, SSIM_SIGMA, radius=SSIM_RADIUS)[inner, inner]

    a, b = image.astype(np.float64), reference.astype(np.float64)
    mean_a, mean_b = local_mean(a), local_mean(b)
    variance_a, variance_b = local_mean(a * a) - mean_a**2, local_mean(b * b) - mean_b**2
    covariance = local_mean(a * b) - mean_a * mean_b
    likeness = (2 * mean_a * mean_b + SSIM_C1) * (2 * covariance + SSIM_C2)
    return float((likeness / ((mean_a**2 + mean_b**2 + SSIM_C1) * (variance_a + variance_b + SSIM_C2))).mean())


def _feature(model: Any, pixels: Tensor) -> Tensor:
    if hasattr(model, "get_image_features"):
        features = model.get_image_features(pixel_values=pixels)
        return features if isinstance(features, Tensor) else features.pooler_output
    return model(pixel_values=pixels).last_hidden_state[:, 0]


def _vision_model(model: str, device: torch.device, dtype: torch.dtype) -> tuple[Any, Any]:
    from transformers import AutoImageProcessor, AutoModel

    loaded = AutoModel.from_pretrained(model, dtype=dtype)
    return freeze(loaded, device), AutoImageProcessor.from_pretrained(model)
