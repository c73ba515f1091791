"""PAPO (perception-aware), arXiv:2507.06448.

A prompt transform masks random patches of the images, for an evaluation of the policy as a view.
"""

from __future__ import annotations

from functools import partial

from mmgrpo.data.corruption import IMAGE_CONTEXTS, corrupt_images
from mmgrpo.data.history import Context
from mmgrpo.errors import ConfigError
from mmgrpo.system.lazy import numpy as np


@IMAGE_CONTEXTS.register
def masked_image(*, share: float = 0.6, patch: int = 14, per_member: bool = True) -> Context:
    """The prompt with patches of its images black, each with probability ``share``; without images there is no such.

    Units: share is dimensionless, 0 to 1; patch in pixels.   Raises: ConfigError for others.
    Source: PAPO, arXiv:2507.06448, and its code (MikeWangWZHL/PAPO, ``papo_utils.py``).
    """
    if not 0 <= share <= 1 or patch < 1:
        raise ConfigError(f"a share from 0 to 1 of patches of at least a pixel is masked, got {share} and {patch}")
    return partial(corrupt_images, spoil=partial(_masked, share=share, patch=patch), per_member=per_member)


def _masked(pixels: np.ndarray, random: np.random.Generator, *, share: float, patch: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    black = random.random((-(-height // patch), -(-width // patch))) < share
    full_mask = black.repeat(patch, axis=0).repeat(patch, axis=1)[:height, :width]
    return np.where(full_mask[..., None], 0, pixels).astype(np.uint8)
