"""Conversion between codes and images, by the model's own autoencoder or a separate one.

Axes: N images, C channels, H W height and width in pixels, h w in codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from itertools import chain
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mmgrpo.errors import ConfigError, DataError

from .grids import Grid

MODES = {1: "L", 3: "RGB"}
REMEMBERED = 65536
"""Maximum number of images with cached codes."""


class ImageCodec:
    """Decodes and encodes images on a grid of codes; without grad.

    Attributes:
        grid: grid of the codes.
    """

    def __init__(self, autoencoder: Any, grid: Grid, processor: Any, *, encoder: Any = None) -> None:
        """Decodes a grid of codes to determine the image size.

        Args:
            autoencoder: of transformers or diffusers, or any object with ``decode``, codes (N, h, w) -> pixels
                (N, C, H, W), and, for supervised training and off-policy images, the inverse ``encode``.
            grid: grid of the codes.
            processor: its image processor's mean, std and factor scale the pixels; else the range is -1 to 1.
            encoder: encodes images in place of the autoencoder, which then only decodes.

        Raises:
            ConfigError: the autoencoder does not decode, or not to images.
        """
        self.grid = grid
        self._autoencoder, self._encoder = autoencoder, autoencoder if encoder is None else encoder
        for part in (self._autoencoder, self._encoder):
            if isinstance(part, nn.Module):
                part.eval()
        scaling = getattr(processor, "image_processor", None)
        self._mean, self._std, self._factor = (
            torch.as_tensor(getattr(scaling, name, None) or other).reshape(-1, 1, 1)
            for name, other in (("image_mean", 0.5), ("image_std", 0.5), ("rescale_factor", 1 / 255))
        )
        if not callable(getattr(autoencoder, "decode", None)):
            raise ConfigError(
                f"{type(autoencoder).__name__} cannot decode codes: it has no decode; set an autoencoder with one in "
                "policy.autoencoder, for example a diffusers VQModel"
            )
        shape = self._pixels(torch.zeros(1, grid.height, grid.width, dtype=torch.long)).shape
        if len(shape) != 4 or shape[1] not in MODES:
            raise ConfigError(
                f"{type(autoencoder).__name__} decodes codes to {tuple(shape)}, which are no images of one or three "
                "channels: (N, C, H, W)"
            )
        self._mode, self._size = MODES[shape[1]], (shape[3], shape[2])
        self._codes_by_image: dict[
            int, tuple[Image.Image, Tensor]
        ] = {}  # the image is kept, so that its id is not reused

    @torch.no_grad()
    def decode(self, code_NT: Tensor) -> list[Image.Image]:
        """The images of codes."""
        code_Nhw = code_NT.reshape(-1, self.grid.height, self.grid.width)
        pixels_NCHW = self._pixels(code_Nhw).float().cpu()
        levels_NCHW = ((pixels_NCHW * self._std + self._mean) / self._factor).round().clamp(0, 255).to(torch.uint8)
        arrays = levels_NCHW.movedim(1, -1).numpy()
        return [Image.fromarray(array[..., 0] if self._mode == "L" else array) for array in arrays]

    def encode(self, images: Sequence[Image.Image]) -> list[Tensor]:
        """The codes of images, (T,) each on the CPU; images of another size are resized.

        Raises: ConfigError for an autoencoder without an encoder, DataError for codes of another grid.
        """
        new_images = [
            image for image in {id(image): image for image in images}.values() if id(image) not in self._codes_by_image
        ]
        for start in range(0, len(new_images), 64):
            batch = new_images[start : start + 64]
            self._codes_by_image |= {
                id(image): (image, code_T) for image, code_T in zip(batch, self._encoded(batch), strict=True)
            }
        codes = [self._codes_by_image[id(image)][1] for image in images]
        while len(self._codes_by_image) > REMEMBERED:
            del self._codes_by_image[next(iter(self._codes_by_image))]
        return codes

    @torch.no_grad()
    def _encoded(self, images: Sequence[Image.Image]) -> Tensor:
        encode: Any = getattr(self._encoder, "encode", None)
        if not callable(encode):
            raise ConfigError(f"{type(self._encoder).__name__} has no encode: it cannot encode images")
        sized = [image.convert(self._mode) for image in images]
        sized = [
            sized_image if sized_image.size == self._size else sized_image.resize(self._size, Image.Resampling.BICUBIC)
            for sized_image in sized
        ]
        levels = torch.stack(
            [torch.from_numpy(np.array(sized_image)).reshape(*self._size[::-1], -1) for sized_image in sized]
        )
        pixels_NCHW = _placed(self._encoder, (levels.movedim(-1, 1) * self._factor - self._mean) / self._std)
        more = {}
        if "image_sizes" in signature(encode).parameters:
            more["image_sizes"] = torch.tensor([self._size[::-1]] * len(images))
        code = _codes_in(encode(pixels_NCHW, **more), self._encoder)
        if code.numel() != len(images) * self.grid.num_codes:
            raise DataError(
                f"{type(self._encoder).__name__} makes {code.numel() // len(images)} codes of an image, the grid "
                f"has {self.grid.height} x {self.grid.width}: set policy.grid"
            )
        return code.reshape(len(images), -1).long().cpu()

    @torch.no_grad()
    def _pixels(self, code_Nhw: Tensor) -> Tensor:
        autoencoder, code_Nhw = self._autoencoder, _placed(self._autoencoder, code_Nhw)
        quantize: Any = getattr(autoencoder, "quantize", None)
        if "force_not_quantize" in signature(autoencoder.decode).parameters:  # diffusers
            shape = (*code_Nhw.shape, quantize.vq_embed_dim)
            looked_up = autoencoder.config.lookup_from_codebook  # by decode itself
            inputs = code_Nhw.flatten() if looked_up else quantize.get_codebook_entry(code_Nhw.flatten(), shape)
            pixels = autoencoder.decode(inputs, force_not_quantize=True, shape=shape).sample
        elif hasattr(quantize, "quant_state_dims"):  # another grid
            pixels = autoencoder.decode(code_Nhw.flatten(1))
        else:
            pixels = autoencoder.decode(code_Nhw)
        return pixels


def _placed(autoencoder: Any, tensor: Tensor) -> Tensor:
    """The tensor on the autoencoder's device, and in its dtype if it is floating point."""
    if not isinstance(autoencoder, nn.Module):
        return tensor
    reference = next(chain(autoencoder.parameters(), autoencoder.buffers()), None)
    if reference is None:
        return tensor
    return tensor.to(reference) if tensor.is_floating_point() else tensor.to(reference.device)


def _codes_in(encoded: Any, autoencoder: Any) -> Tensor:
    """The codes in the output of an autoencoder's ``encode``."""
    if isinstance(encoded, Tensor):
        return encoded
    code = getattr(encoded, "image_tokens", None)
    if code is None:  # diffusers
        code = autoencoder.quantize(encoded.latents)[2][2]
    return code if isinstance(code, Tensor) else torch.stack(list(code))


def resolve_grid(settings_grid: tuple[int, int] | None, autoencoder: Any, processor: Any, line_end: int | None) -> Grid:
    """The grid of a model's images: the setting, else that of its autoencoder or its processor.

    Raises: ConfigError if none defines it.
    """
    model_grid = getattr(getattr(autoencoder, "quantize", None), "quant_state_dims", None) or getattr(
        autoencoder, "grid", None
    )
    calculate = getattr(processor, "calculate_generate_size", None)
    length = getattr(processor, "image_seq_length", None)
    if model_grid is not None and settings_grid not in (None, tuple(model_grid)):
        raise ConfigError(
            f"policy.grid: {type(autoencoder).__name__} has {model_grid[0]} x {model_grid[1]} codes; leave it out"
        )
    grid_size = settings_grid or model_grid
    if grid_size is None and calculate is not None:
        grid_size = calculate(processor.ratio, processor.image_area, processor.downsample_ratio)
    if grid_size is None and isinstance(length, int) and round(length**0.5) ** 2 == length:
        grid_size = (round(length**0.5),) * 2
    if grid_size is None:
        raise ConfigError(
            "policy.grid: neither model nor processor defines the number of codes of an image: set [height, width]"
        )
    return Grid(height=int(grid_size[0]), width=int(grid_size[1]), line_end=line_end)
