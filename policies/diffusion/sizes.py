"""Widths and heights that a pipeline can make, checked before anything is sampled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mmgrpo.errors import ConfigError

from .settings import DenoisingSettings

FACTORS = ("vae_scale_factor", "vae_scale_factor_spatial", "vae_spatial_compression_ratio")
"""Attributes of pipelines that hold how many pixels a side of a latent's element has."""

OTHER_PACKING = ("transformer_spatial_patch_size", "_pack_latents_no_patch")
"""Attributes of pipelines that pack patches of another size than 2 by 2, or none."""


def size_multiple(pipeline: Any, denoisers: Collection[str]) -> int:
    """What widths and heights have to be a multiple of: pixels of a latent's element times elements of a patch.

    1 where the pipeline does not state the former: sizes are its own matter then.
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
    """Raises ConfigError for a width or height that the pipeline cannot make."""
    multiple = size_multiple(pipeline, denoisers)
    sections: dict[str, Mapping[str, Any]] = {"policy.call": settings.call}
    sections["policy.evaluation_call"] = settings.evaluation_call
    for number, size in enumerate(settings.buckets.sizes if settings.buckets else ()):
        sections[f"policy.buckets.sizes[{number}]"] = size  # pyright: ignore[reportArgumentType]
    for section, call in sections.items():
        for name in ("width", "height"):
            pixels = call.get(name)
            if isinstance(pixels, int) and pixels % multiple:
                near = [at for at in (pixels // multiple * multiple, (pixels // multiple + 1) * multiple) if at]
                raise ConfigError(
                    f"{section}.{name} is {pixels}, and {type(pipeline).__name__} makes multiples of {multiple} "
                    f"pixels; the nearest {'is' if len(near) == 1 else 'are'} {' and '.join(map(str, near))}"
                )
