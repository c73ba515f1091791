"""Rewards from CLIP models: agreement with the text, human preference, aesthetics.

Models are loaded on first use, once per process, from a path or a hub id; rewards with the same model share it. A
sample without an image, or without a required text, is not scored (None); for videos wrap the reward in ``frame_mean``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, final

import torch
from PIL import Image
from torch import nn

from mmgrpo.types import Sample

from ..models.checkpoints import (
    Dtype,
    freeze,
    linear_head,
    load_once,
    load_state_dict,
    require_positive,
    resolve_checkpoint_path,
    resolve_device,
    resolve_dtype,
)
from ..models.clip_models import ClipSource, Library, ResizeMode, cosines, unit
from ..parsing.extraction import require_choice
from ..parsing.sample_images import score_image_texts

ClipMode = Literal["score", "cosine"]
PickMode = Literal["logit", "cosine"]


@final
class ClipScore:
    """Reward: cosine similarity of the CLIP features of image and text.

    ``score`` is 100 * max(cosine, 0), ``cosine`` the cosine itself. The text is the prompt, or ``text_column``, after
    ``prefix``.

    Settings: ``model`` and ``pretrained`` name an open_clip model ("ViT-H-14" with a tag or a checkpoint file;
    "hf-hub:owner/name" or "local-dir:folder" alone); ``model`` alone, without such a prefix, is a path or hub id of
    transformers. ``library`` resolves ambiguous names; ``processor`` is for a transformers model without one. ``device:
    null`` is the process's GPU or the CPU.
    Range: 0 to 100 (``score``) or -1 to 1 (``cosine``); good matches of ViT-B/32 are near 30 and 0.3.
    Source: Hessel et al. 2021 (CLIPScore), arXiv:2104.08718, eq. 1. Deviation: the factor is 100 where the paper has
    2.5, and the prefix is empty where it has "A photo depicts ".
    Traps: it truncates texts at 77 tokens; it is weak at counts, positions and negation; optimizing it alone leads to
    images with the prompt as rendered text.
    """

    deterministic = True

    def __init__(
        self,
        model: str = "openai/clip-vit-large-patch14",
        pretrained: str | None = None,
        processor: str | None = None,
        library: Library | None = None,
        mode: ClipMode = "score",
        prefix: str = "",
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 32,
    ) -> None:
        self._mode: ClipMode = require_choice("ClipScore.mode", mode, ClipMode)
        self._prefix = prefix
        self.text_column = text_column
        self._source = ClipSource(
            model=model,
            pretrained=pretrained,
            processor=processor,
            library=None if library is None else require_choice("ClipScore.library", library, Library),
            device=device,
            dtype=_dtype("ClipScore", dtype),
            batch_size=require_positive("ClipScore.batch_size", batch_size),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return score_image_texts(samples, self._score, self.text_column)

    def _score(self, images: list[Image.Image], texts: list[str]) -> list[float]:
        clip = self._source.load()
        cosine_N = cosines(clip.image_features(images), clip.text_features([self._prefix + text for text in texts]))
        return (100 * cosine_N.clamp(min=0) if self._mode == "score" else cosine_N).tolist()


@final
class PickScore:
    """Reward: PickScore, a CLIP-H trained on human choices between two images for one prompt.

    ``logit`` is the cosine times the model's learned factor, as published; ``cosine`` without it.

    Range: ``logit`` about 17 to 25 for real images (the factor is near 100); only differences for one prompt are
    meaningful: the probability that one is preferred is the sigmoid of the difference.
    Source: Kirstain et al. 2023 (Pick-a-Pic), arXiv:2305.01569, sec. 4; Flow-GRPO's reward is the same divided by 26
    (set ``weight: 0.0385``).
    Traps: optimizing it leads to glossy, high-contrast images; it truncates texts at 77 tokens.
    """

    deterministic = True

    def __init__(
        self,
        model: str = "yuvalkirstain/PickScore_v1",
        processor: str = "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
        mode: PickMode = "logit",
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 16,
    ) -> None:
        self._mode: PickMode = require_choice("PickScore.mode", mode, PickMode)
        self.text_column = text_column
        self._source = ClipSource(
            model=model,
            processor=processor,
            library="transformers",
            device=device,
            dtype=_dtype("PickScore", dtype),
            batch_size=require_positive("PickScore.batch_size", batch_size),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return score_image_texts(samples, self._score, self.text_column)

    def _score(self, images: list[Image.Image], texts: list[str]) -> list[float]:
        clip = self._source.load()
        cosine_N = cosines(clip.image_features(images), clip.text_features(texts))
        return (cosine_N * clip.logit_scale() if self._mode == "logit" else cosine_N).tolist()


@final
class HpsV2:
    """Reward: Human Preference Score v2 (2.1 by default), the cosine of a CLIP-H fine-tuned on ranked images.

    Images are resized by their longer side and padded with black, as the published scorer does.

    Settings: ``checkpoint`` is a file, or ``owner/repository/file`` of the hub; version 2.0 is
    ``xswu/HPSv2/HPS_v2_compressed.pt``. ``model`` is the open_clip architecture.
    Range: -1 to 1, about 0.2 to 0.35 for real images; benchmarks report it times 100.
    Source: Wu et al. 2023 (HPS v2), arXiv:2306.09341, sec. 4, and the authors' scorer. Deviation: float32 instead of
    half precision, and images are resized as bytes instead of floats.
    Traps: versions 2.0 and 2.1 are on different scales; it favors fine texture, up to noise.
    """

    deterministic = True

    def __init__(
        self,
        checkpoint: str = "xswu/HPSv2/HPS_v2.1_compressed.pt",
        model: str = "ViT-H-14",
        resize_mode: ResizeMode = "longest",
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 16,
    ) -> None:
        self._checkpoint = checkpoint
        self._model = model
        self._resize_mode: ResizeMode = require_choice("HpsV2.resize_mode", resize_mode, ResizeMode)
        self.text_column = text_column
        self._device = device
        self._dtype = _dtype("HpsV2", dtype)
        self._batch_size = require_positive("HpsV2.batch_size", batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return score_image_texts(samples, self._score, self.text_column)

    def _score(self, images: list[Image.Image], texts: list[str]) -> list[float]:
        source = ClipSource(
            model=self._model,
            pretrained=load_once(resolve_checkpoint_path, self._checkpoint),
            library="open_clip",
            resize_mode=self._resize_mode,
            device=self._device,
            dtype=self._dtype,
            batch_size=self._batch_size,
        )
        clip = source.load()
        return cosines(clip.image_features(images), clip.text_features(texts)).tolist()


@final
class Aesthetic:
    """Reward: LAION's improved aesthetic predictor, independent of the prompt.

    Linear layers on the normalized CLIP ViT-L/14 feature of the image.

    Settings: ``head`` is the predictor's state dict with ``layers.<number>.weight`` and ``.bias``, a file
    (``sac+logos+ava1-l14-linearMSE.pth`` as published) or ``owner/repository/file`` of the hub; ``model`` the CLIP of
    transformers, or with ``pretrained`` of open_clip, that it was trained on.
    Range: about 1 to 10; most images get 4 to 7.
    Source: Schuhmann, github.com/christophschuhmann/improved-aesthetic-predictor; as a reward Black et al. 2023 (DDPO),
    arXiv:2305.13301, sec. 5.1.
    Traps: it ignores the prompt: alone it leads to one style and one subject. Combine it with a reward for prompt
    alignment.
    """

    deterministic = True

    def __init__(
        self,
        head: str = "trl-lib/ddpo-aesthetic-predictor/aesthetic-model.pth",
        model: str = "openai/clip-vit-large-patch14",
        pretrained: str | None = None,
        device: str | None = None,
        dtype: Dtype = "float32",
        batch_size: int = 32,
    ) -> None:
        self._head = head
        self._device = device
        self._source = ClipSource(
            model=model,
            pretrained=pretrained,
            device=device,
            dtype=_dtype("Aesthetic", dtype),
            batch_size=require_positive("Aesthetic.batch_size", batch_size),
        )

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        return score_image_texts(samples, lambda images, _: self._score(images))

    @torch.no_grad()
    def _score(self, images: list[Image.Image]) -> list[float]:
        head: nn.Module = load_once(_aesthetic_head, self._head, resolve_device(self._device))
        return head(unit(self._source.load().image_features(images))).squeeze(1).tolist()


def _dtype(where: str, dtype: str) -> str:
    resolve_dtype(where, dtype)
    return dtype


def _aesthetic_head(checkpoint: str, device: torch.device) -> nn.Module:
    return freeze(linear_head(load_state_dict(checkpoint), "layers."), device)
