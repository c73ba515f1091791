"""Flow matching and denoising score matching through the stock pipeline, for the warm-up stage.

The pipeline is run for two iterations. The first is a ghost whose ``step`` returns noised data; the second is real,
and what reaches its ``step`` is the prediction to compare with the target. Each row gets a noise level of its own: the
denoiser's timestep argument is an affine function of the schedule's timestep, read off the two iterations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.policies.denoising.proxies import call_argument
from mmgrpo.policies.denoising.schedules import (
    DISCRETE,
    FLOW,
    VARIANCE_PRESERVING,
    advance,
    family_of,
    schedule_index,
)
from mmgrpo.policies.denoising.session import Session, Stage, StepCall, Stop
from mmgrpo.policies.denoising.trace import Row
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


class Latents:
    """Encodes target images with the pipeline's own autoencoder, each image once."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._known: dict[int, tuple[Any, Tensor]] = {}  # the image is kept, so that its id stays its own

    def __call__(self, examples: Sequence[Example], call: Mapping[str, Any]) -> Tensor:
        """(B, C, H, W) latents in the range the denoiser works in. Raises DataError for an example without an image."""
        if any(example.image is None for example in examples):
            raise DataError("the warm-up of a denoising policy needs examples with an image")
        return torch.cat([self._latent(example.image, call) for example in examples])

    def _latent(self, image: Any, call: Mapping[str, Any]) -> Tensor:
        if id(image) not in self._known:
            self._known[id(image)] = (image, self._encoded(image, call))
        return self._known[id(image)][1]

    @torch.no_grad()
    def _encoded(self, image: Any, call: Mapping[str, Any]) -> Tensor:
        vae, processor = self._pipeline.vae, self._pipeline.image_processor
        image = image.convert("L" if vae.config.in_channels == 1 else "RGB")
        pixels = processor.preprocess(image, height=call.get("height"), width=call.get("width"))
        encoded = vae.encode(pixels.to(device=vae.device, dtype=vae.dtype))
        latent = encoded.latent_dist.mode() if "latent_dist" in encoded else encoded.latents
        shift = vae.config.get("shift_factor") or 0.0
        return (latent.float() - shift) * vae.config.get("scaling_factor", 1.0)


def supervised_loss(
    stage: Stage, latents: Latents, examples: Sequence[Example], call: Mapping[str, Any], *, seeds: Sequence[int]
) -> Tensor:
    """Mean squared error of the network's prediction on noised data, scalar with grad.

    Noise levels are uniform: sigma in (0, 1) for flow, integer timesteps for epsilon, v and x0 prediction.

    Raises: PolicyError if the pipeline's scheduler, latents or denoiser do not fit; the message says which.
    Source: flow matching, arXiv:2210.02747; DDPM, arXiv:2006.11239.
    """
    data = latents(examples, call)
    teacher = _Teacher(data=data, seeds=seeds)
    rows = [
        Row(prompt=example.prompt, seed=seed, group=0, member=0, share_noise=False)
        for example, seed in zip(examples, seeds, strict=True)
    ]
    arguments = stage.form.arguments(rows, {k: v for k, v in call.items() if k not in ("timesteps", "sigmas")})
    arguments["num_inference_steps"] = 2
    session = Session(on_step=teacher.on_step, ghost=lambda iteration: iteration == 0, rewrite=teacher.rewrite)
    stage.run(session, arguments, seed=seeds[0], grad=torch.is_grad_enabled())
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
    _seen: list[int] = field(default_factory=list)

    def on_step(self, call: StepCall) -> Tensor:
        if call.iteration == 0:
            self._schedule = call.scheduler
            schedule_index(call.scheduler, call.timestep)
            advance(call.scheduler)
            self._noised = _noised(call, self._fitted(call.sample), self.seeds)
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
                f"the pipeline steps states of shape {tuple(sample.shape)}, its autoencoder gives {tuple(data.shape)}: "
                "the warm-up knows no way between them; check height and width, or train without warm-up"
            )
        return data


def _noised(call: StepCall, data: Tensor, seeds: Sequence[int]) -> Noised:
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform_B = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    noise = torch.stack([torch.randn(data.shape[1:], generator=generator) for generator in generators]).to(data.device)
    family, scheduler = family_of(call.scheduler), call.scheduler
    num_train = scheduler.config.num_train_timesteps
    if family is FLOW:
        sigma = _per_row(uniform_B, data)
        return Noised(state=(1 - sigma) * data + sigma * noise, target=noise - data, timestep_B=uniform_B * num_train)
    if family in (DISCRETE, VARIANCE_PRESERVING):
        timestep_B = (uniform_B * num_train).long()
        kept = scheduler.alphas_cumprod[timestep_B]
        alpha, sigma = _per_row(kept.sqrt(), data), _per_row((1 - kept).sqrt(), data)
        targets = {"epsilon": noise, "v_prediction": alpha * noise - sigma * data, "sample": data}
        return Noised(
            state=alpha * data + sigma * noise, target=targets[scheduler.config.prediction_type], timestep_B=timestep_B
        )
    raise PolicyError(
        f"the warm-up needs a flow, DDIM-like or DPM-like scheduler, {type(scheduler).__name__} is {family.name}"
    )


def _per_row(value_B: Tensor, like: Tensor) -> Tensor:
    return value_B.to(like.device).reshape(-1, *[1] * (like.ndim - 1))
