"""Check of widths and heights before sampling."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmgrpo.errors import ConfigError

from .settings import DenoisingSettings

FACTORS = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
"""Pipeline attributes with the pixels per side of a latent element."""

OTHER_PACKING = ("transformer_spatial_patch_size", "_pack_latents_no_patch")
"""Attributes of pipelines that pack patches of a size other than 2 by 2, or none."""


def size_multiple(pipeline: Any, denoisers: Collection[str]) -> int:
    """The number that divides valid widths and heights: pixels per latent element times elements per patch.

    1 if the pipeline does not state the former: then it checks sizes itself.
    """
    factor = next((getattr(pipeline, name) for name in FACTORS if isinstance(getattr(pipeline, name, None), int)), None)
    if factor is None:
        return 1
    configs = [getattr(pipeline.components.get(name), "config", {}) for name in denoisers]
    sizes = [config.get("patch_size") for config in configs if isinstance(config, Mapping)]
    patches = [size[-1] if isinstance(size, (list, tuple)) else size for size in sizes if size]
    packs_other = any(hasattr(pipeline, name) for name in OTHER_PACKING)
    packed = 2 if hasattr(pipeline, "_pack_latents") and not packs_other else 1
    return factor * max([packed, *(patch for patch in patches if isinstance(patch, int))])


def require_sizes(pipeline: Any, denoisers: Collection[str], settings: DenoisingSettings) -> None:
    """Raises ConfigError for a width or height that the pipeline does not support."""
    multiple = size_multiple(pipeline, denoisers)
    sections: dict[str, Mapping[str, Any]] = {"policy.call": settings.call}
    sections["policy.evaluation_call"] = settings.evaluation_call
    for number, size in enumerate(settings.buckets.sizes if settings.buckets else ()):
        sections[f"policy.buckets.sizes[{number}]"] = {**size}
    for section, call in sections.items():
        for name in ("width", "height"):
            pixels = call.get(name)
            if isinstance(pixels, int) and pixels % multiple:
                nearest = [
                    candidate
                    for candidate in (pixels // multiple * multiple, (pixels // multiple + 1) * multiple)
                    if candidate
                ]
                raise ConfigError(
                    f"{section}.{name} is {pixels}; {type(pipeline).__name__} needs a multiple of {multiple}, for "
                    f"example {' or '.join(map(str, nearest))}"
                )
