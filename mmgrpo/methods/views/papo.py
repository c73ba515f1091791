"""PAPO (perception-aware), arXiv:2507.06448.

A prompt transform masks random patches of the images, for an evaluation of the policy as a view.
"""

from __future__ import annotations

from mmgrpo.data.corruption import IMAGE_TEMPLATES, corrupt_images
from mmgrpo.data.history import NOTHING, History, prompt_template
from mmgrpo.errors import ConfigError
from mmgrpo.system.lazy import numpy as np
from mmgrpo.types import Prompt


def _check_masked_image(share: float, patch: int) -> None:
    if not 0 <= share <= 1 or patch < 1:
        raise ConfigError(f"a share from 0 to 1 of patches of at least a pixel is masked, got {share} and {patch}")


@IMAGE_TEMPLATES.register
@prompt_template(check=_check_masked_image)
def masked_image(
    prompt: Prompt,
    member: int,
    history: History = NOTHING,
    *,
    share: float = 0.6,
    patch: int = 14,
    per_member: bool = True,
) -> Prompt | None:
    """The prompt with patches of its images black, each with probability ``share``; without images there is no such.

    Units: share is dimensionless, 0 to 1; patch in pixels.   Raises: ConfigError for others.
    Source: PAPO, arXiv:2507.06448, and its code (MikeWangWZHL/PAPO, ``papo_utils.py``).
    """

    def masked(pixels: np.ndarray, random: np.random.Generator) -> np.ndarray:
        height, width = pixels.shape[:2]
        black = random.random((-(-height // patch), -(-width // patch))) < share
        full_mask = black.repeat(patch, axis=0).repeat(patch, axis=1)[:height, :width]
        return np.where(full_mask[..., None], 0, pixels).astype(np.uint8)

    return corrupt_images(prompt, member, history, spoil=masked, per_member=per_member)
