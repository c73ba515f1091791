"""VideoReward, the reward model of VideoAlign: visual quality, motion quality and text alignment of videos.

Axes: F frames, C H W channels, height, width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, functional

from mmgrpo.errors import ConfigError
from mmgrpo.types import Sample, Score

from ..models.checkpoints import Dtype, batches, load_once, require_positive, resolve_device, resolve_dtype
from ..parsing.explanations import parts
from ..parsing.sample_images import prompt_text, to_rgb
from .video_align_checkpoint import (
    DIMENSIONS,
    FIELD,
    REWARD_TOKENS,
    Recipe,
    VideoAlignModel,
    prompt_template,
    video_align_model,
)

MIN_TOKENS = 128  # minimum tokens of a frame: smaller frames are upscaled
MIN_FRAMES, MAX_FRAMES = 4, 768


@final
class VideoAlign:
    """Reward: VideoReward of VideoAlign: visual quality (VQ), motion quality (MQ), and text alignment (TA).

    A Qwen2-VL encodes frames of the video and the prompt in the authors' template, and a linear head is applied at
    three special tokens. Each score is normalized with the checkpoint's ``inference_config``; the reward is their sum
    weighted by ``weights``.

    Example: ``{name: video_align, template: prompt_template.py, video_fps: 16, weights: {VQ: 1, MQ: 1}}``.
    Settings: ``video_fps``, frames per second of the scored videos (Wan 16, HunyuanVideo and LTX 24), of which the
    model uses 2 per second, at least 4 in total. ``template`` is the path or the URL of the authors'
    ``prompt_template.py``, which is parsed and not executed, or of a text file with the same text; it is not part of
    the checkpoint. ``checkpoint`` is a folder or hub id with ``model_config.json`` and ``checkpoint-<step>``; ``base``
    replaces the Qwen2-VL named there. ``weights: {VQ: 1}`` excludes the other dimensions, ``normalize: false``
    disables the normalization.
    Range: unbounded; each dimension has mean 0 and standard deviation 1 over the authors' data, so -3 to 3 is typical
    for the sum.
    Source: Liu et al. 2025 (VideoAlign), arXiv:2501.13918, sec. 3, and its inference code; DanceGRPO, arXiv:2505.07818,
    trains on VQ and MQ. Deviations: LoRA weights are merged in float32, and the head is float32 instead of bfloat16,
    whose resolution causes ties within groups.
    Traps: a wrong ``video_fps`` selects other frames than in training. Nothing is truncated: the memory grows with the
    length of the video. Static videos get low MQ but can have high VQ.
    """

    deterministic = True

    def __init__(
        self,
        video_fps: float,
        template: str | None = None,
        checkpoint: str = "KwaiVGI/VideoReward",
        base: str | None = None,
        weights: Mapping[str, float] | None = None,
        normalize: bool = True,
        text_column: str | None = None,
        device: str | None = None,
        dtype: Dtype = "bfloat16",
        batch_size: int = 4,
    ) -> None:
        unknown = set(weights or ()) - set(DIMENSIONS)
        if unknown or not video_fps > 0:
            raise ConfigError(
                f"VideoAlign needs video_fps > 0 and weights of {', '.join(DIMENSIONS)}, got {video_fps} and "
                f"{sorted(unknown) or dict(weights or {})}"
            )
        self._video_fps = video_fps
        self._template = template
        self._checkpoint = checkpoint
        self._base = base
        self._weights = dict(weights) if weights else dict.fromkeys(DIMENSIONS, 1.0)
        self._normalize = normalize
        self.text_column = text_column
        self._device = device
        self._dtype = resolve_dtype("VideoAlign", dtype)
        self._batch_size = require_positive("VideoAlign.batch_size", batch_size)

    def __call__(self, samples: Sequence[Sample]) -> list[float | Score | None]:
        texts = [prompt_text(sample.prompt, self.text_column) for sample in samples]
        videos = [list(sample.video or ()) for sample in samples]
        rows = [i for i, text in enumerate(texts) if text is not None and len(videos[i]) > 1]
        values: list[float | Score | None] = [None] * len(samples)
        if not rows:
            return values
        model: VideoAlignModel = load_once(
            video_align_model, self._checkpoint, self._base, resolve_device(self._device), self._dtype
        )
        template = load_once(prompt_template, self._template, model.recipe.template, model.recipe.special)
        for chosen in batches(rows, self._batch_size):
            see = [model_frames(videos[i], model.recipe, self._video_fps, model.factor) for i in chosen]
            raw = model.scores(see, [template.replace(FIELD, _unmarked(texts[i] or "")) for i in chosen])
            for i, score in zip(chosen, raw.tolist(), strict=True):
                values[i] = self._scored(score, model.recipe)
        return values

    def _scored(self, raw: Sequence[float], recipe: Recipe) -> Score:
        mean, std = (recipe.mean, recipe.std) if self._normalize else (None, None)
        normalized = [(r - m) / s for r, m, s in zip(raw, mean or (0,) * 3, std or (1,) * 3, strict=True)]
        score: dict[str, float] = dict(zip(DIMENSIONS, normalized, strict=True))
        return Score(sum(weight * score[name] for name, weight in self._weights.items()), parts(score))


def model_frames(frames: Sequence[Image.Image], recipe: Recipe, video_fps: float, factor: int) -> Tensor:
    """The evenly spaced input frames of the model, resized, as bytes.

    ``fps`` of the recipe to a second, at least 4, at most 768 and those there are, rounded to an even number; their
    sides multiples of ``factor`` with an area of at least 128 tokens and at most ``max_pixels``.

    Shapes: -> (F, C, H, W).   Source: VideoAlign's vision_process.py, after qwen-vl-utils.
    """
    from qwen_vl_utils.vision_process import smart_resize

    total = len(frames)
    count = recipe.num_frames
    if count is None:
        num_frames = max(total / video_fps * recipe.fps, MIN_FRAMES)
        count = min(num_frames, min(total, MAX_FRAMES) // 2 * 2)
    count = min(max(round(count / 2) * 2, 2), total)
    chosen = torch.linspace(0, total - 1, count).round().long().tolist()
    pixels = torch.stack([torch.from_numpy(np.array(to_rgb(frames[i]))) for i in chosen]).permute(0, 3, 1, 2)
    height, width = smart_resize(
        *pixels.shape[-2:], factor=factor, min_pixels=MIN_TOKENS * factor**2, max_pixels=recipe.max_pixels
    )
    return functional.resize(pixels, [height, width], interpolation=InterpolationMode.BICUBIC, antialias=True)


def _unmarked(text: str) -> str:
    """Remove the special tokens at which scores are read."""
    for token in REWARD_TOKENS:
        text = text.replace(token, "")
    return text
