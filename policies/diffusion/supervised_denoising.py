"""Target images, videos and audio as states of a pipeline, and the supervised loss on them."""

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
from .buckets import Buckets
from .correction import supervised_error
from .denoising_rows import DenoisingRow, call_has_media
from .instrumented_pipeline import InstrumentedPipeline
from .layout import LatentLayout, measure_layout
from .noised_prediction import CleanSample, two_step_call
from .outputs import LENGTHS, SIZES
from .parity import BatchParity
from .settings import SupervisionSettings
from .waveforms import waveform_of

SizeKey = tuple[Any, ...]
"""Width, height and frames of a call; None for the pipeline's defaults."""


class Targets:
    """Encodes target images, videos and audio to states of the pipeline with its autoencoder, each target once."""

    def __init__(self, instrumented: InstrumentedPipeline, sampling_rate: int | None = None) -> None:
        """An encoder without cached targets.

        Args:
            instrumented: the pipeline.
            sampling_rate: of its audio, in Hz, if known.
        """
        self._instrumented = instrumented
        self._rate = sampling_rate
        self._layouts: dict[SizeKey, LatentLayout] = {}
        self._states: dict[tuple[int, SizeKey], tuple[Any, Tensor]] = {}  # keeps targets: ids stay unique

    def __call__(
        self,
        examples: Sequence[Example],
        rows: Sequence[DenoisingRow],
        call: Mapping[str, Any],
        *,
        remember: bool = True,
    ) -> list[Tensor]:
        """The target states of the pipeline.

        Args:
            examples: the targets.
            rows: their rows.
            call: arguments of the pipeline's call, with few steps and a decoded output.
            remember: whether to cache the encoded targets.

        Returns:
            B states (1, ...), float32.

        Raises:
            DataError: an example has no image, no video and no audio.
            PolicyError: the pipeline's states cannot be derived from its decoder input, or have other shapes.
        """
        if any(_target(example) is None for example in examples):
            raise DataError("examples and renoised samples of a denoising policy need an image, a video or audio")
        size = tuple(call.get(name) for name in (*SIZES, *LENGTHS))
        if size not in self._layouts:
            self._layouts[size] = measure_layout(self._instrumented, self._instrumented.form.arguments(rows[:1], call))
        return [self._state(example, size, call, remember) for example in examples]

    def _state(self, example: Example, size: SizeKey, call: Mapping[str, Any], remember: bool) -> Tensor:
        layout, target = self._layouts[size], _target(example)
        assert target is not None
        key = (id(target), size)
        if key in self._states:
            return self._states[key][1]
        if isinstance(target, Audio):
            state = layout.state(_mode(layout, waveform_of(target, layout, self._rate)))
        else:
            mode = "L" if layout.decoder.config.get("in_channels") == 1 else "RGB"
            frames = [frame.convert(mode) for frame in ([target] if isinstance(target, Image) else target)]
            state = layout.state(self._encode(frames, layout, call))
        if remember:
            self._states[key] = (target, state)
        return state

    @torch.no_grad()
    def _encode(self, frames: Sequence[Any], layout: LatentLayout, call: Mapping[str, Any]) -> Tensor:
        """The latent of the frames, at the size that the pipeline samples."""
        processor, height, width = _processor(self._instrumented.pipeline), call.get("height"), call.get("width")
        pixels = processor.preprocess(list(frames), height=height, width=width)
        latent = _latent(layout, pixels)
        if latent.shape[-2:] != layout.latent_shape[-2:]:
            (h, w), (latent_h, latent_w) = layout.latent_shape[-2:], latent.shape[-2:]
            height, width = pixels.shape[-2] * h // latent_h, pixels.shape[-1] * w // latent_w
            latent = _latent(layout, processor.preprocess(list(frames), height=height, width=width))
        return latent


def _target(example: Example) -> Any:
    """The example's video, else its image, else its audio; None without any."""
    return next((media for media in (example.video, example.image, example.audio) if media is not None), None)


def _latent(layout: LatentLayout, pixels: Tensor) -> Tensor:
    """The mode of the encoder's distribution for frames of pixels: (F, C, H, W) -> the input of ``decode``."""
    if len(layout.latent_shape) == 5:  # a video, or an image for a video autoencoder
        pixels = pixels.transpose(0, 1)[None]
    return _mode(layout, pixels)


@torch.no_grad()
def _mode(layout: LatentLayout, values: Tensor) -> Tensor:
    """The mode of the encoder's distribution for a batch."""
    device, dtype = layout.encoder_input
    encoded = layout.decoder.encode(values.to(device=device, dtype=dtype))
    if "latent_dist" in encoded:
        return encoded["latent_dist"].mode()
    return encoded["latents" if "latents" in encoded else "latent"]


def _processor(pipeline: Any) -> VaeImageProcessor:
    """The pipeline's image processor."""
    named = [getattr(pipeline, name, None) for name in ("video_processor", "image_processor")]
    parts = (*named, *vars(pipeline).values())
    return next((part for part in parts if isinstance(part, VaeImageProcessor)), _PLAIN)


_PLAIN = VaeImageProcessor()


def supervised_loss(
    instrumented: InstrumentedPipeline,
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

    It is minus the mean log-probability of the examples renoised at a single level, with weight 1, unless the
    supervision has a correction. Noise levels are sigma in (0, 1) for flow, integer timesteps for epsilon, v and x0
    prediction. Rows of a bucket share a run, unless rows depend on their batch.

    Raises: PolicyError if the pipeline's scheduler, latents or denoiser do not fit; the message names them.
    Source: flow matching, arXiv:2210.02747; DDPM, arXiv:2006.11239.
    """
    rows = [
        DenoisingRow(prompt=example.prompt, seed=seed, group=0, member=0)
        for example, seed in zip(examples, seeds, strict=True)
    ]
    calls = buckets.calls(examples, call)
    errors, run_sizes = [], []
    for shared_call in {id(row_call): row_call for row_call in calls}.values():
        indices = [n for n, row_call in enumerate(calls) if row_call is shared_call]
        states = targets([examples[n] for n in indices], [rows[n] for n in indices], two_step_call(shared_call))
        clean_samples = [
            CleanSample(row=rows[n], data=state, seed=rows[n].seed) for n, state in zip(indices, states, strict=True)
        ]
        parity.ensure([rows[n] for n in indices], shared_call)
        runs_alone = instrumented.form.single or parity.batches.alone or call_has_media(shared_call)
        remaining = iter(clean_samples)
        for run_rows in chunked(
            [rows[n] for n in indices], 1 if runs_alone else len(clean_samples), instrumented.form.can_share_run
        ):
            errors.append(supervised_error(instrumented, [next(remaining) for _ in run_rows], shared_call, supervision))
            run_sizes.append(len(run_rows))
    error = torch.stack(errors)
    return (error * torch.tensor(run_sizes, device=error.device) * (len(run_sizes) / len(rows))).mean()
