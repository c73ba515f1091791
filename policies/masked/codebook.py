"""Images as codes of a diffusers VQModel, and back.

Axes: N images, L codes per image, row by row.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL.Image import Image
from torch import Tensor

STEPS = 12  # of AmusedPipeline, whose noise goes from 2 to 0
NOISE = (2.0, 0.0)


class Codebook:
    """Encodes images of one size to codes of a ``VQModel``, and decodes them."""

    def __init__(self, model: Any, height: int, width: int) -> None:
        """Wraps the model.

        Args:
            model: a VQModel.
            height: of an image, in codes.
            width: of an image, in codes.
        """
        self.model, self.height, self.width = model, height, width
        scale = 2 ** (len(model.config.block_out_channels) - 1)
        self.processor = VaeImageProcessor(vae_scale_factor=scale, do_normalize=False)
        self._size = height * scale, width * scale
        self._codes: dict[int, tuple[Image, Tensor]] = {}  # keeps images: ids stay unique

    @torch.no_grad()
    def decode(self, token_NL: Tensor) -> list[Image]:
        """The images, decoded like in ``AmusedPipeline``."""
        shape = (len(token_NL), self.height, self.width, self.model.config.latent_channels)
        codes = token_NL.reshape(shape[:3]).to(self.model.device)
        pixels = self.model.decode(codes, force_not_quantize=True, shape=shape).sample.clip(0, 1)
        images: Any = self.processor.postprocess(pixels, output_type="pil")
        return images

    def encode(self, image: Image) -> Tensor:
        """(L,) the nearest codes, computed once per image."""
        if id(image) not in self._codes:
            self._codes[id(image)] = image, self._encode(image)
        return self._codes[id(image)][1]

    @torch.no_grad()
    def _encode(self, image: Image) -> Tensor:
        mode = "L" if self.model.config.in_channels == 1 else "RGB"
        height, width = self._size
        pixels = self.processor.preprocess([image.convert(mode)], height=height, width=width)
        latent = self.model.encode(pixels.to(self.model.device, self.model.dtype)).latents
        return self.model.quantize(latent)[2][2].reshape(-1).cpu()
