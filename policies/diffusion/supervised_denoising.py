"""Target pictures, videos and sounds as states of a pipeline, and the warm-up's loss on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL.Image import Image
from torch import Tensor

from mmgrpo.errors import DataError
from mmgrpo.types import Audio, Example

from .batches import chunked
from .buckets import SIZES, Buckets
from .correction import supervised_error
from .denoising_rows import DenoisingRow, call_has_media
from .instrumented_pipeline import InstrumentedPipeline
from .layout import LatentLayout, read_layout
from .noised_prediction import CleanSample, two_step_call
from .parity import BatchParity
from .settings import SupervisionSettings
from .waveforms import waveform_of

LENGTHS = ("audio_end_in_s", "audio_length_in_s", "audio_duration", "audio_duration_s", "duration")
"""What calls name the length of a sound by."""

Sized = tuple[Any, ...]
"""Width, height and frames that a call asks for; None for what it leaves to the pipeline."""


class Targets:
    """Encodes target images, videos and sounds to states of the pipeline with its autoencoder, each target once."""

    def __init__(self, stage: InstrumentedPipeline, sampling_rate: int | None = None) -> None:
        """Encodes nothing yet.

        Args:
            stage: the pipeline.
            sampling_rate: of its sound, in Hz, where it is known.
        """
        self._stage = stage
        self._rate = sampling_rate
        self._layouts: dict[Sized, LatentLayout] = {}
        self._known: dict[tuple[int, Sized], tuple[Any, Tensor]] = {}  # the target is kept: its id stays its own

    def __call__(
        self,
        examples: Sequence[Example],
        rows: Sequence[DenoisingRow],
        call: Mapping[str, Any],
        *,
        remember: bool = True,
    ) -> list[Tensor]:
        """The states the pipeline should end in.

        Args:
            examples: what should be drawn.
            rows: whom for.
            call: arguments of the pipeline's call, with few steps and a decoded output.
            remember: whether the targets come again, and are encoded once.

        Returns:
            B states (1, ...), float32.

        Raises:
            DataError: an example has no image, no video and no sound.
            PolicyError: the pipeline's states are not to be told from what it decodes, or are of other shapes.
        """
        if any(_target(example) is None for example in examples):
            raise DataError(
                "what a denoising policy is taught from, or reads, must come with an image or a video, or with a sound"
            )
        size = tuple(call.get(name) for name in (*SIZES, *LENGTHS))
        if size not in self._layouts:
            self._layouts[size] = read_layout(self._stage, self._stage.form.arguments(rows[:1], call))
        return [self._state(example, size, call, remember) for example in examples]

    def _state(self, example: Example, size: Sized, call: Mapping[str, Any], remember: bool) -> Tensor:
        layout, target = self._layouts[size], _target(example)
        assert target is not None
        key = (id(target), size)
        if key in self._known:
            return self._known[key][1]
        if isinstance(target, Audio):
            state = layout.state(_mode(layout, waveform_of(target, layout, self._rate)))
        else:
            mode = "L" if layout.decoder.config.get("in_channels") == 1 else "RGB"
            frames = [frame.convert(mode) for frame in ([target] if isinstance(target, Image) else target)]
            state = layout.state(self._encoded(frames, layout, call))
        if remember:
            self._known[key] = (target, state)
        return state

    @torch.no_grad()
    def _encoded(self, frames: Sequence[Any], layout: LatentLayout, call: Mapping[str, Any]) -> Tensor:
        """The latent of the frames, at the size that the pipeline draws."""
        processor, height, width = _processor(self._stage.pipeline), call.get("height"), call.get("width")
        pixels = processor.preprocess(list(frames), height=height, width=width)
        latent = _latent(layout, pixels)
        if latent.shape[-2:] != layout.latent_shape[-2:]:
            (h, w), (own_h, own_w) = layout.latent_shape[-2:], latent.shape[-2:]
            height, width = pixels.shape[-2] * h // own_h, pixels.shape[-1] * w // own_w
            latent = _latent(layout, processor.preprocess(list(frames), height=height, width=width))
        return latent


def _target(example: Example) -> Any:
    """What is to be drawn: the video, else the image, else the sound; None where there is none."""
    return next((one for one in (example.video, example.image, example.audio) if one is not None), None)


def _latent(layout: LatentLayout, pixels: Tensor) -> Tensor:
    """The mode of the encoder's answer to frames of pixels: (F, C, H, W) -> what ``decode`` would be given."""
    if len(layout.latent_shape) == 5:  # a video, or an image to an autoencoder of videos
        pixels = pixels.transpose(0, 1)[None]
    return _mode(layout, pixels)


@torch.no_grad()
def _mode(layout: LatentLayout, values: Tensor) -> Tensor:
    """The mode of the encoder's answer to a batch."""
    device, dtype = layout.encodes
    encoded = layout.decoder.encode(values.to(device=device, dtype=dtype))
    if "latent_dist" in encoded:
        return encoded["latent_dist"].mode()
    return encoded["latents" if "latents" in encoded else "latent"]


def _processor(pipeline: Any) -> VaeImageProcessor:
    """What the pipeline makes pixels of images with."""
    found = [getattr(pipeline, name, None) for name in ("video_processor", "image_processor")]
    return next((one for one in (*found, *vars(pipeline).values()) if isinstance(one, VaeImageProcessor)), _PLAIN)


_PLAIN = VaeImageProcessor()


def supervised_loss(
    stage: InstrumentedPipeline,
    targets: Targets,
    examples: Sequence[Example],
    call: Mapping[str, Any],
    supervision: SupervisionSettings,
    *,
    buckets: Buckets,
    parity: BatchParity,
    seeds: Sequence[int],
) -> Tensor:
    """Mean squared error of the network's prediction on noised data, scalar with grad.

    It is minus the mean log-probability of the examples read at a single level, of weight 1, unless the supervision has
    a correction. Noise levels are sigma in (0, 1) for flow, integer timesteps for epsilon, v and x0 prediction. Rows of
    a bucket run together, unless rows depend on the prompts beside them.

    Raises: PolicyError if the pipeline's scheduler, latents or denoiser do not fit; the message says which.
    Source: flow matching, arXiv:2210.02747; DDPM, arXiv:2006.11239.
    """
    rows = [
        DenoisingRow(prompt=example.prompt, seed=seed, group=0, member=0)
        for example, seed in zip(examples, seeds, strict=True)
    ]
    asked = buckets.calls(examples, call)
    errors, runs = [], []
    for own in {id(one): one for one in asked}.values():
        chosen = [n for n, one in enumerate(asked) if one is own]
        data = targets([examples[n] for n in chosen], [rows[n] for n in chosen], two_step_call(own))
        cleans = [CleanSample(row=rows[n], data=one, seed=rows[n].seed) for n, one in zip(chosen, data, strict=True)]
        parity.settle([rows[n] for n in chosen], own)
        size = 1 if stage.form.single or parity.batches.alone or call_has_media(own) else len(cleans)
        left = iter(cleans)
        for run in chunked([rows[n] for n in chosen], size, stage.form.together):
            errors.append(supervised_error(stage, [next(left) for _ in run], own, supervision))
            runs.append(len(run))
    found = torch.stack(errors)
    return (found * torch.tensor(runs, device=found.device) * (len(runs) / len(rows))).mean()
