"""Contexts that show a prompt's images spoilt: parts of them black, or under noise.

Random numbers are keyed by the seed of the history, the member and the image's place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from PIL import Image

from mmgrpo.data.history import NOTHING, Context, History
from mmgrpo.data.media import opened
from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.types import Prompt

Spoil = Callable[[np.ndarray, np.random.Generator], np.ndarray]
"""Pixels (H, W, 3) of 0 to 255 and random numbers -> pixels."""


def masked_image(*, share: float = 0.6, patch: int = 14, per_member: bool = True) -> Context:
    """The prompt with patches of its images black, each with probability ``share``; without images there is no such.

    Units: share is dimensionless, 0 to 1; patch in pixels.   Raises: ConfigError for others.
    Source: PAPO, arXiv:2507.06448, and its code (MikeWangWZHL/PAPO, ``papo_utils.py``).
    """
    if not 0 <= share <= 1 or patch < 1:
        raise ConfigError(f"a share from 0 to 1 of patches of at least a pixel is masked, got {share} and {patch}")
    return partial(_spoilt, spoil=partial(_masked, share=share, patch=patch), per_member=per_member)


def noised_image(*, share: float, per_member: bool = True, chance: float = 1.0) -> Context:
    """The prompt with its images under Gaussian noise; without images there is no such.

    x <- sqrt(1 - share) x + sqrt(share) e, pixels x from -1 to 1, held within that. A member, or without ``per_member``
    a group, sees the noise with a ``chance``, and else the prompt as it is.

    Units: share of the variance that is noise and chance, 0 to 1.   Raises: ConfigError for others.
    Source: the forward process of DDPM, arXiv:2006.11239, eq. 4; the chance that of VOGUE, arXiv:2510.01444.
    """
    if not 0 <= share <= 1 or not 0 <= chance <= 1:
        raise ConfigError(f"the share of noise and its chance lie from 0 to 1, got {share} and {chance}")
    noised = partial(_spoilt, spoil=partial(_noised, share=share), per_member=per_member)
    return noised if chance == 1 else partial(_by_chance, noised=noised, chance=chance, per_member=per_member)


IMAGE_CONTEXTS: Registry[Callable[..., Context]] = Registry(
    {"masked_image": masked_image, "noised_image": noised_image}
)
"""Contexts that spoil images, by name; called with their settings."""


def _spoilt(
    prompt: Prompt, member: int, history: History = NOTHING, *, spoil: Spoil, per_member: bool
) -> Prompt | None:
    if len(prompt.images) == 0:
        return None
    keys = (member,) if per_member else ()
    images = []
    for place, image in enumerate(prompt.images):
        random = np.random.default_rng(derive_seed(history.seed, *keys, place))
        images.append(Image.fromarray(spoil(np.asarray(opened(image)), random)))
    return replace(prompt, images=images)


def _by_chance(
    prompt: Prompt, member: int, history: History = NOTHING, *, noised: Context, chance: float, per_member: bool
) -> Prompt | None:
    keys = (member,) if per_member else ()
    seen = np.random.default_rng(derive_seed(history.seed, *keys)).random() < chance
    return noised(prompt, member, history) if seen else prompt


def _masked(pixels: np.ndarray, random: np.random.Generator, *, share: float, patch: int) -> np.ndarray:
    height, width = pixels.shape[:2]
    black = random.random((-(-height // patch), -(-width // patch))) < share
    whole = black.repeat(patch, axis=0).repeat(patch, axis=1)[:height, :width]
    return np.where(whole[..., None], 0, pixels).astype(np.uint8)


def _noised(pixels: np.ndarray, random: np.random.Generator, *, share: float) -> np.ndarray:
    signal = pixels / 127.5 - 1
    mixed = np.sqrt(1 - share) * signal + np.sqrt(share) * random.standard_normal(pixels.shape)
    return ((mixed.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)
