"""Flow matching and denoising score matching through the stock pipeline, for the warm-up stage.

The pipeline is run for two iterations. The first is a ghost whose ``step`` returns noised data; the second is real,
and what reaches its ``step`` is the prediction to compare with the target. Each row gets a noise level of its own: the
denoiser's timestep argument is an affine function of the schedule's timestep, read off the two iterations.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.image_processor import VaeImageProcessor
from PIL.Image import Image
from torch import Tensor
from torch.nn.functional import mse_loss

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.policies.denoising.layout import Layout, read_layout
from mmgrpo.policies.denoising.proxies import call_argument
from mmgrpo.policies.denoising.rows import Row, shows_media
from mmgrpo.policies.denoising.schedules import (
    DISCRETE,
    FLOW,
    INVERTED_FLOW,
    VARIANCE_EXPLODING,
    VARIANCE_PRESERVING,
    advance,
    family_of,
    schedule_index,
)
from mmgrpo.policies.denoising.session import Session, StepCall, Stop
from mmgrpo.policies.denoising.stage import Stage
from mmgrpo.types import Example

TIMESTEP_NAMES = ("timestep", "timesteps", "t")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noised:
    """Data at random noise levels.

    Attributes:
        state: (B, ...) x_t.
        target: (B, ...) what the network should say.
        timestep_B: the levels in the schedule's own unit.
    """

    state: Tensor
    target: Tensor
    timestep_B: Tensor


class Targets:
    """Encodes target images and videos to states of the pipeline with its own autoencoder, each target once."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._layout: Layout | None = None
        self._known: dict[int, tuple[Any, Tensor]] = {}  # the target is kept, so that its id stays its own

    def __call__(self, examples: Sequence[Example], rows: Sequence[Row], call: Mapping[str, Any]) -> Tensor:
        """The states the pipeline should end in.

        Args:
            examples: what should be drawn.
            rows: whom for.
            call: arguments of the pipeline's call, with few steps and a decoded output.

        Returns:
            (B, ...) float32.

        Raises:
            DataError: an example has neither an image nor a video.
            PolicyError: the pipeline's states are not to be told from what it decodes, or are of other shapes.
        """
        if any(example.image is None and example.video is None for example in examples):
            raise DataError("the warm-up of a denoising policy needs examples with an image or a video")
        if self._layout is None:
            self._layout = read_layout(self._stage, self._stage.form.arguments(rows[:1], call))
        layout = self._layout
        return torch.cat([self._state(example, layout, call) for example in examples])

    def _state(self, example: Example, layout: Layout, call: Mapping[str, Any]) -> Tensor:
        target = example.video if example.video is not None else example.image
        assert target is not None
        if id(target) not in self._known:
            mode = "L" if layout.decoder.config.get("in_channels") == 1 else "RGB"
            frames = [frame.convert(mode) for frame in ([target] if isinstance(target, Image) else target)]
            self._known[id(target)] = (target, layout.state(self._encoded(frames, layout, call)))
        return self._known[id(target)][1]

    @torch.no_grad()
    def _encoded(self, frames: Sequence[Any], layout: Layout, call: Mapping[str, Any]) -> Tensor:
        """The latent of the frames, at the size that the pipeline draws."""
        processor, height, width = _processor(self._stage.pipeline), call.get("height"), call.get("width")
        pixels = processor.preprocess(list(frames), height=height, width=width)
        latent = _latent(layout, pixels)
        if latent.shape[-2:] != layout.latent_shape[-2:]:
            (h, w), (own_h, own_w) = layout.latent_shape[-2:], latent.shape[-2:]
            height, width = pixels.shape[-2] * h // own_h, pixels.shape[-1] * w // own_w
            latent = _latent(layout, processor.preprocess(list(frames), height=height, width=width))
        return latent


def _latent(layout: Layout, pixels: Tensor) -> Tensor:
    """The mode of the encoder's answer to frames of pixels: (F, C, H, W) -> what ``decode`` would be given."""
    vae = layout.decoder
    if len(layout.latent_shape) == 5:  # a video, or an image to an autoencoder of videos
        pixels = pixels.transpose(0, 1)[None]
    encoded = vae.encode(pixels.to(device=vae.device, dtype=vae.dtype))
    if "latent_dist" in encoded:
        return encoded["latent_dist"].mode()
    return encoded["latents" if "latents" in encoded else "latent"]


def _processor(pipeline: Any) -> VaeImageProcessor:
    """What the pipeline makes pixels of images with."""
    found = [getattr(pipeline, name, None) for name in ("video_processor", "image_processor")]
    return next((one for one in (*found, *vars(pipeline).values()) if isinstance(one, VaeImageProcessor)), _PLAIN)


_PLAIN = VaeImageProcessor()


def supervised_loss(
    stage: Stage, targets: Targets, examples: Sequence[Example], call: Mapping[str, Any], *, seeds: Sequence[int]
) -> Tensor:
    """Mean squared error of the network's prediction on noised data, scalar with grad.

    Noise levels are uniform: sigma in (0, 1) for flow, integer timesteps for epsilon, v and x0 prediction. Rows
    that are shown images or videos run alone.

    Raises: PolicyError if the pipeline's scheduler, latents or denoiser do not fit; the message says which.
    Source: flow matching, arXiv:2210.02747; DDPM, arXiv:2006.11239.
    """
    rows = [
        Row(prompt=example.prompt, seed=seed, group=0, member=0, share_noise=False)
        for example, seed in zip(examples, seeds, strict=True)
    ]
    call = {key: value for key, value in call.items() if key not in ("timesteps", "sigmas", "output_type")}
    call["num_inference_steps"] = 2
    data = targets(examples, rows, call)
    size = 1 if stage.form.single or shows_media(call) or any(row.has_media for row in rows) else len(rows)
    parts = [slice(start, start + size) for start in range(0, len(rows), size)]
    return torch.stack([_taught(stage, rows[part], data[part], seeds[part], call) for part in parts]).mean()


def _taught(stage: Stage, rows: Sequence[Row], data: Tensor, seeds: Sequence[int], call: Mapping[str, Any]) -> Tensor:
    """The loss of rows that run together."""
    teacher = _Teacher(data=data, seeds=seeds)
    session = Session(on_step=teacher.on_step, ghost=lambda iteration: iteration == 0, rewrite=teacher.rewrite)
    stage.run(session, stage.form.arguments(rows, call), seed=seeds[0], grad=torch.is_grad_enabled())
    if teacher.loss is None:
        raise PolicyError("the pipeline ended before its second step, so the warm-up has no prediction to train on")
    return teacher.loss


@dataclass(slots=True)
class _Teacher:
    """Answers the two iterations of a supervised run."""

    data: Tensor
    seeds: Sequence[int]
    loss: Tensor | None = None
    _noised: Noised | None = None
    _schedule: Any = None
    _first_argument: Tensor | None = None

    def on_step(self, call: StepCall) -> Tensor:
        if call.iteration == 0:
            self._schedule = call.scheduler
            schedule_index(call.scheduler, call.timestep)
            advance(call.scheduler)
            assert self._first_argument is not None
            whole = not self._first_argument.is_floating_point()
            self._noised = _noised(call, self._fitted(call.sample), self.seeds, whole=whole)
            return self._noised.state.to(call.sample.dtype)
        assert self._noised is not None
        self.loss = mse_loss(call.model_output.float(), self._noised.target)
        raise Stop

    def rewrite(self, iteration: int, module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
        found = call_argument(module, args, kwargs, TIMESTEP_NAMES)
        if found is None:
            raise PolicyError(f"{type(module).__name__} takes no timestep by the names {TIMESTEP_NAMES}")
        name, value = found
        value = torch.as_tensor(value)
        if iteration == 0:
            self._first_argument = value
            return args, kwargs
        replaced = self._own_levels(value)
        if name in kwargs:
            return args, {**kwargs, name: replaced}
        return tuple(replaced if item is found[1] else item for item in args), kwargs

    def _own_levels(self, second: Tensor) -> Tensor:
        assert self._noised is not None
        assert self._first_argument is not None
        t0, t1 = self._schedule.timesteps[:2].double()
        first, rows = self._first_argument.double(), self._noised.timestep_B
        slope = (second.double() - first) / (t1 - t0).to(second.device)
        own = rows.to(second.device).double() - t0.to(second.device)
        own = own.repeat(max(second.shape[0] // len(own), 1)) if second.ndim else own
        own = own.reshape(-1, *[1] * (second.ndim - 1))
        return (first + own * slope).to(second.dtype)

    def _fitted(self, sample: Tensor) -> Tensor:
        """The data in the shape the pipeline steps."""
        data = self.data.to(sample.device)
        if data.shape != sample.shape:
            raise PolicyError(
                f"the pipeline steps states of shape {tuple(sample.shape)}, the targets have {tuple(data.shape)}: the "
                "warm-up needs states of one shape, whatever the prompts; train without warm-up"
            )
        return data


def _noised(call: StepCall, data: Tensor, seeds: Sequence[int], *, whole: bool) -> Noised:
    """Data at a level of its own for each row, as the pipeline hands it on; ``whole`` if timesteps must be integers."""
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform_B = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    noise = torch.stack([torch.randn(data.shape[1:], generator=generator) for generator in generators]).to(data.device)
    family, scheduler = family_of(call.scheduler), call.scheduler
    num_train = scheduler.config.num_train_timesteps
    if family is FLOW:
        timestep_B = (uniform_B * num_train).floor() if whole else uniform_B * num_train
        sigma = _per_row(timestep_B / num_train, data)
        return Noised(state=(1 - sigma) * data + sigma * noise, target=noise - data, timestep_B=timestep_B)
    if family is INVERTED_FLOW:  # whose timesteps count from noise to data, and whose velocities point there
        timestep_B = (uniform_B * num_train).floor() if whole else uniform_B * num_train
        clean = _per_row(timestep_B / num_train, data)
        return Noised(state=clean * data + (1 - clean) * noise, target=data - noise, timestep_B=timestep_B)
    if family in (DISCRETE, VARIANCE_PRESERVING, VARIANCE_EXPLODING):
        timestep_B = (uniform_B * num_train).long()
        kept = scheduler.alphas_cumprod.to(timestep_B.device)[timestep_B]
        alpha, sigma = _per_row(kept.sqrt(), data), _per_row((1 - kept).sqrt(), data)
        targets = {"epsilon": noise, "v_prediction": alpha * noise - sigma * data, "sample": data}
        return Noised(
            state=(alpha * data + sigma * noise) / _input_scale(scheduler),
            target=targets[scheduler.config.prediction_type],
            timestep_B=timestep_B,
        )
    raise PolicyError(
        f"the warm-up needs a flow, DDIM-like, Euler-like or DPM-like scheduler, {type(scheduler).__name__} is "
        f"{family.name}"
    )


def _input_scale(scheduler: Any) -> float:
    """What the scheduler multiplies the next state by on its way to the network."""
    own = copy.copy(scheduler)  # which takes down that it was asked
    return float(own.scale_model_input(torch.ones(1, device=own.timesteps.device), own.timesteps[1]))


def _per_row(value_B: Tensor, like: Tensor) -> Tensor:
    return value_B.to(like.device).reshape(-1, *[1] * (like.ndim - 1))
