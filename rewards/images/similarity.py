"""Rewards for similarity to a reference image or to the source of an edit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import numpy as np
from PIL import Image

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, require_positive, resolve_dtype
from ..models.clip_models import ClipSource, unit
from ..models.image_features import SSIM_RADIUS, FeatureSource, ssim
from ..parsing.explanations import parts
from ..parsing.extraction import require_choice
from ..parsing.sample_images import column_image, prompt_text, reference_image, to_rgb
from .textures import gray

Measure = Literal["mse", "ssim", "feature"]


@final
class ImageSimilarity:
    """Reward: similarity of the image and a reference.

    ``mse`` is 1 - mean((a - b)^2) over the channels, values 0 to 1; ``ssim`` the structural similarity of the gray
    values; ``feature`` the cosine of the features of ``model``: CLIP for the content, DINOv2 (``facebook/dinov2-base``)
    for subject identity. The reference is the image in ``column`` (an image, a path, bytes), or the prompt's first
    image; for the pixel measures it is resized to the size of the sample.

    Range: ``mse`` 0 to 1, ``ssim`` and ``feature`` -1 to 1; 1 for the same image.
    Source: SSIM after Wang et al. 2004; DINO features for subjects after DreamBooth, arXiv:2208.12242.
    Traps: for edits the unchanged source scores best: combine it with a reward for the edit. SSIM needs at least 11
    pixels per side; smaller samples or references are not scored.
    """

    deterministic = True

    def __init__(
        self,
        measure: Measure = "feature",
        column: str | None = None,
        model: str = "openai/clip-vit-large-patch14",
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 32,
    ) -> None:
        self._measure: Measure = require_choice("ImageSimilarity.measure", measure, Measure)
        self.column = column
        resolve_dtype("ImageSimilarity", dtype)
        size = require_positive("ImageSimilarity.batch_size", batch_size)
        self._source = FeatureSource(model=model, device=device, dtype=dtype, batch_size=size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        references = [None if s.image is None else reference_image(s.prompt, self.column) for s in samples]
        pairs = {
            i: (to_rgb(sample.image), reference)
            for i, (sample, reference) in enumerate(zip(samples, references, strict=True))
            if reference is not None
        }
        values: list[float | None] = [None] * len(samples)
        if self._measure == "feature":
            scores = self._feature_cosines(list(pairs.values())) if pairs else []
        else:
            scores = [_pixel_likeness(image, reference, self._measure) for image, reference in pairs.values()]
        for i, score in zip(pairs, scores, strict=True):
            values[i] = score
        return values

    def _feature_cosines(self, pairs: Sequence[tuple[Image.Image, Image.Image]]) -> list[float]:
        features_ND = self._source.features([image for pair in pairs for image in pair])
        return (features_ND[::2] * features_ND[1::2]).sum(-1).tolist()


@final
class EditConsistency:
    """Reward: consistency of an edit outside the mask, 1 - mean |a - b|.

    The source is the image in ``column``, or the prompt's first image; differences are ignored where ``mask_column``
    (an image of any size) is light. Both are resized to the size of the sample, the mask without interpolation. A row
    without a source or a mask, or with a mask that covers everything, is not scored.

    Range: 0 to 1; 1 if nothing changed outside the mask.
    Source: background preservation as in PIE-Bench (Ju et al. 2023), arXiv:2310.01506, sec. 5, there as MSE, PSNR and
    SSIM outside the mask; here the mean absolute difference, which is more sensitive to small changes.
    Traps: the unchanged source gets 1: combine it with ``edit_direction`` or a judge.
    """

    deterministic = True

    def __init__(self, mask_column: str = "mask", column: str | None = None) -> None:
        self._mask_column = mask_column
        self.column = column

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        return [self._score(sample) for sample in samples]

    def _score(self, sample: Sample) -> Score | None:
        if sample.image is None:
            return None
        mask = column_image(sample.prompt, self._mask_column)
        source = None if mask is None else reference_image(sample.prompt, self.column)
        if mask is None or source is None:
            return None
        image = to_rgb(sample.image)
        unmasked_HW = np.asarray(mask.convert("L").resize(image.size, Image.Resampling.NEAREST)) < 128
        if not unmasked_HW.any():
            return None
        difference_HWC = np.abs(_pixels(image) - _pixels(_fitted(source, image)))
        statistics = {
            "outside_frac": float(unmasked_HW.mean()),
            "outside_max": float(difference_HWC[unmasked_HW].max()),
        }
        if not unmasked_HW.all():
            statistics["inside_change"] = float(difference_HWC[~unmasked_HW].mean())
        value = float(1 - difference_HWC[unmasked_HW].mean())
        return Score(value, parts(statistics))


@final
class EditDirection:
    """Reward: whether the image changed in the direction of the captions, in CLIP's space.

    cosine(image(edited) - image(source), text(target) - text(source)). The source image is that of ``column``, or the
    prompt's first image; the captions before and after the edit are the columns ``source_caption`` and
    ``target_caption``.

    Settings: ``model`` and ``pretrained`` as in ``clip_score``.
    Range: -1 to 1; 0 if image or captions did not change.
    Source: the directional loss of Gal et al. 2021 (StyleGAN-NADA), arXiv:2108.00946; as a measure of edits Brooks et
    al. 2022 (InstructPix2Pix), arXiv:2211.09800, sec. 3.1.2.
    Traps: it does not penalize other changes: combine it with ``edit_consistency`` or ``image_similarity``.
    """

    deterministic = True

    def __init__(
        self,
        model: str = "openai/clip-vit-large-patch14",
        pretrained: str | None = None,
        column: str | None = None,
        source_caption: str = "source_caption",
        target_caption: str = "target_caption",
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 32,
    ) -> None:
        if source_caption == target_caption:
            raise ConfigError(f"EditDirection needs two columns for its captions, got {source_caption!r} for both")
        self.column = column
        self._captions = (source_caption, target_caption)
        resolve_dtype("EditDirection", dtype)
        self._source = ClipSource(
            model=model,
            pretrained=pretrained,
            device=device,
            dtype=dtype,
            batch_size=require_positive("EditDirection.batch_size", batch_size),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        images: list[Image.Image] = []
        texts: list[str] = []
        rows: list[int] = []
        for i, sample in enumerate(samples):
            captions = [prompt_text(sample.prompt, column) for column in self._captions]
            source = None if sample.image is None else reference_image(sample.prompt, self.column)
            if source is not None and None not in captions:
                rows.append(i)
                images += [source, to_rgb(sample.image)]
                texts += [caption or "" for caption in captions]
        values: list[float | Score | None] = [None] * len(samples)
        if rows:
            clip = self._source.load()
            image_ND, text_ND = unit(clip.image_features(images)), unit(clip.text_features(texts))
            image_change_ND, text_change_ND = image_ND[1::2] - image_ND[::2], text_ND[1::2] - text_ND[::2]
            image_change_N, text_change_N = image_change_ND.norm(dim=-1), text_change_ND.norm(dim=-1)
            value_N = (image_change_ND * text_change_ND).sum(-1) / (image_change_N * text_change_N).clamp(min=1e-6)
            for i, value, image_change, text_change in zip(
                rows, value_N.tolist(), image_change_N.tolist(), text_change_N.tolist(), strict=True
            ):
                values[i] = Score(value, parts({"image_change": image_change, "text_change": text_change}))
        return values


def _pixel_likeness(image: Image.Image, reference: Image.Image, measure: Measure) -> float | None:
    fitted = _fitted(reference, image)
    if measure == "mse":
        return float(1 - ((_pixels(image) - _pixels(fitted)) ** 2).mean())
    return ssim(gray(image), gray(fitted)) if min(image.size) > 2 * SSIM_RADIUS else None


def _fitted(reference: Image.Image, image: Image.Image) -> Image.Image:
    return reference if reference.size == image.size else reference.resize(image.size, Image.Resampling.BICUBIC)


def _pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.float64) / 255
