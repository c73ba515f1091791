"""Prompt templates that corrupt a prompt's images: parts of them black, or with noise.

Random numbers depend on the seed of the history, the member and the index of the image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mmgrpo.data.history import NOTHING, History, PromptTemplate
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.system.lazy import PIL_Image as Image
from mmgrpo.system.lazy import numpy as np
from mmgrpo.types import Prompt

IMAGE_TEMPLATES: Registry[Callable[..., PromptTemplate]] = Registry(
    arguments=(), decorator="mmgrpo.data.history.prompt_template"
)
"""Prompt templates that corrupt images, by name; called with their settings."""

Spoil = Callable[["np.ndarray", "np.random.Generator"], "np.ndarray"]
"""Pixels (H, W, 3) of 0 to 255 and random numbers -> pixels."""


def corrupt_images(
    prompt: Prompt, member: int, history: History = NOTHING, *, spoil: Spoil, per_member: bool
) -> Prompt | None:
    """The prompt with every image changed by ``spoil``; None for a prompt without images."""
    from mmgrpo.data.image_loading import load_image  # here, as it imports pillow, which explain does without

    if len(prompt.images) == 0:
        return None
    keys = (member,) if per_member else ()
    images = []
    for index, image in enumerate(prompt.images):
        random = np.random.default_rng(derive_seed(history.seed, *keys, index))
        images.append(Image.fromarray(spoil(np.asarray(load_image(image)), random)))
    return replace(prompt, images=images)
