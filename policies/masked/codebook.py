"""Pictures as codes of a VQModel of diffusers, and back.

Axes: N pictures, L codes of one, row by row.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL.Image import Image
from torch import Tensor

STEPS = 12  # of AmusedPipeline, whose noise begins at 2 and ends at 0
NOISE = (2.0, 0.0)


class Codebook:
    """A ``VQModel`` that encodes and decodes pictures of one size in codes."""

    def __init__(self, model: Any, height: int, width: int) -> None:
        """Takes the model as it is.

        Args:
            model: a VQModel.
            height: of a picture, in codes.
            width: likewise.
        """
        self.model, self.height, self.width = model, height, width
        scale = 2 ** (len(model.config.block_out_channels) - 1)
        self.processor = VaeImageProcessor(vae_scale_factor=scale, do_normalize=False)
        self._size = height * scale, width * scale
        self._known: dict[int, tuple[Image, Tensor]] = {}  # the picture is kept, so that its id stays its own

    @torch.no_grad()
    def pictures(self, token_NL: Tensor) -> list[Image]:
        """As ``AmusedPipeline`` decodes them."""
        shape = (len(token_NL), self.height, self.width, self.model.config.latent_channels)
        codes = token_NL.reshape(shape[:3]).to(self.model.device)
        pixels = self.model.decode(codes, force_not_quantize=True, shape=shape).sample.clip(0, 1)
        images: Any = self.processor.postprocess(pixels, output_type="pil")
        return images

    def of(self, image: Image) -> Tensor:
        """(L,) the nearest codes, found once for each picture."""
        if id(image) not in self._known:
            self._known[id(image)] = image, self._encoded(image)
        return self._known[id(image)][1]

    @torch.no_grad()
    def _encoded(self, image: Image) -> Tensor:
        mode = "L" if self.model.config.in_channels == 1 else "RGB"
        height, width = self._size
        pixels = self.processor.preprocess([image.convert(mode)], height=height, width=width)
        latent = self.model.encode(pixels.to(self.model.device, self.model.dtype)).latents
        return self.model.quantize(latent)[2][2].reshape(-1).cpu()
