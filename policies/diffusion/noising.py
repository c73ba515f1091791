"""Clean data at noise levels of their own, and what the network should say of them, family by family.

x = alpha x0 + sigma eps; of every family the clean sample is affine in the network's output, x0 = a x + b output.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.maths.self_correction import shifted

from .pipeline_run import StepCall
from .scheduler_families import (
    DISCRETE,
    EDM,
    FLOW,
    INVERTED_FLOW,
    VARIANCE_EXPLODING,
    VARIANCE_PRESERVING,
    family_of,
)
from .settings import ReadingSettings

DIFFUSION = (DISCRETE, VARIANCE_PRESERVING, VARIANCE_EXPLODING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noised:
    """Data at random noise levels, N rows.

    Attributes:
        state: (N, ...) x_t as the pipeline hands it on.
        noisy: (N, ...) x_t as alpha x0 + sigma eps.
        target: (N, ...) what the network should say.
        timestep_N: the levels in the schedule's own unit.
        sigma_N: the levels.
        of_noisy: a of x0 = a x_t + b output, a number a row, in the shape of the state.
        of_output: b.
    """

    state: Tensor
    noisy: Tensor
    target: Tensor
    timestep_N: Tensor
    sigma_N: Tensor
    of_noisy: Tensor
    of_output: Tensor

    def clean(self, output: Tensor) -> Tensor:
        """The clean sample that the network's output says."""
        return self.of_noisy * self.noisy + self.of_output * output


def noise_levels(uniform_N: Tensor, place_N: Tensor, reading: ReadingSettings) -> Tensor:
    """Levels as shares of the schedule, in [0, 1], of uniform numbers and the places of decisions.

    u in its place's part of the line where levels are stratified, 1 / (1 + e^-z) of its normal quantile z where they
    are logit-normal; then low + (high - low) u, s u / (1 + (s - 1) u).

    Shapes: (N,), (N,) -> (N,).   Raises: ConfigError unless low < high.
    """
    if reading.low >= reading.high:
        raise ConfigError(f"policy.reading: low must be below high, got {reading.low} and {reading.high}")
    if reading.levels == "stratified":
        uniform_N = (place_N + uniform_N) / reading.num_levels
    elif reading.levels == "logit_normal":
        uniform_N = torch.special.ndtri(uniform_N).sigmoid()
    uniform_N = reading.low + (reading.high - reading.low) * uniform_N
    return shifted(uniform_N, reading.shift)


def noised(
    call: StepCall, data: Tensor, seeds: Sequence[int], places: Sequence[int], reading: ReadingSettings, *, whole: bool
) -> Noised:
    """Data at a level of its own for each row, as the pipeline hands it on.

    Args:
        call: the step call whose outcome it is to be.
        data: (N, ...) float32; of a row that runs alone, its entries.
        seeds: of each row's level and noise.
        places: which of its sample's levels each row is.
        reading: how levels are drawn.
        whole: whether timesteps must be integers.

    Returns:
        The noised rows, the same for a seed and place in any batch.

    Raises:
        PolicyError: levels of the scheduler's family cannot be set row by row.
    """
    entries = len(data) // len(seeds)
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform_N = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    shape = (entries, *data.shape[1:])
    noise = torch.cat([torch.randn(shape, generator=generator) for generator in generators]).to(data.device)
    share_N = noise_levels(uniform_N, torch.tensor(list(places)), reading).repeat_interleave(entries)
    family, scheduler = family_of(call.scheduler), call.scheduler
    if family in (FLOW, INVERTED_FLOW):
        return _flow(scheduler, data, noise, share_N, whole=whole, inverted=family is INVERTED_FLOW)
    if family in DIFFUSION:
        return _diffusion(scheduler, data, noise, share_N)
    if family is EDM:
        return _preconditioned(scheduler, data, noise, share_N)
    raise PolicyError(
        f"samples are noised at levels of their own on flow, DDIM-like, Euler-like, DPM-like and EDM schedulers; "
        f"{type(scheduler).__name__} is {family.name}"
    )


def _flow(scheduler: Any, data: Tensor, noise: Tensor, share_N: Tensor, *, whole: bool, inverted: bool) -> Noised:
    num_train = scheduler.config.num_train_timesteps
    timestep_N = (share_N * num_train).floor() if whole else share_N * num_train
    share = per_row(timestep_N / num_train, data)
    if inverted:  # whose timesteps count from noise to data, and whose velocities point there
        noisy, target, sigma = share * data + (1 - share) * noise, data - noise, 1 - share
    else:
        noisy, target, sigma = (1 - share) * data + share * noise, noise - data, share
    return Noised(
        state=noisy,
        noisy=noisy,
        target=target,
        timestep_N=timestep_N,
        sigma_N=sigma.flatten(),
        of_noisy=torch.ones_like(sigma),
        of_output=sigma if inverted else -sigma,
    )


def _diffusion(scheduler: Any, data: Tensor, noise: Tensor, share_N: Tensor) -> Noised:
    num_train, kind = scheduler.config.num_train_timesteps, scheduler.config.prediction_type
    timestep_N = (share_N * num_train).long().clamp(max=num_train - 1)
    kept = scheduler.alphas_cumprod.to(timestep_N.device)[timestep_N]
    alpha, sigma = per_row(kept.sqrt(), data), per_row((1 - kept).sqrt(), data)
    targets = {"epsilon": noise, "v_prediction": alpha * noise - sigma * data, "sample": data}
    if kind not in targets:
        raise PolicyError(f"{type(scheduler).__name__} predicts {kind}; known are {', '.join(targets)}")
    coefficients = {
        "epsilon": (1 / alpha, -sigma / alpha),
        "v_prediction": (alpha, -sigma),
        "sample": (torch.zeros_like(alpha), torch.ones_like(alpha)),
    }
    noisy = alpha * data + sigma * noise
    return Noised(
        state=noisy / _input_scale(scheduler),
        noisy=noisy,
        target=targets[kind],
        timestep_N=timestep_N,
        sigma_N=sigma.flatten(),
        of_noisy=coefficients[kind][0],
        of_output=coefficients[kind][1],
    )


def _preconditioned(scheduler: Any, data: Tensor, noise: Tensor, share_N: Tensor) -> Noised:
    """Levels as the schedule spaces them; the network is given c_in x and says (x0 - c_skip x) / c_out."""
    config = scheduler.config
    ends = [bound ** (1 / config.rho) for bound in (config.sigma_max, config.sigma_min)]
    sigma_N = (ends[1] + share_N * (ends[0] - ends[1])) ** config.rho
    sigma = per_row(sigma_N, data)
    noisy = data + sigma * noise
    skip = scheduler.precondition_outputs(torch.ones_like(sigma), torch.zeros_like(sigma), sigma)
    scale = scheduler.precondition_outputs(torch.zeros_like(sigma), torch.ones_like(sigma), sigma)
    given = noisy / (sigma**2 + config.sigma_data**2).sqrt()
    return Noised(
        state=given / _input_scale(scheduler),
        noisy=noisy,
        target=(data - skip * noisy) / scale,
        timestep_N=scheduler.precondition_noise(sigma_N),
        sigma_N=sigma_N,
        of_noisy=skip,
        of_output=scale,
    )


def _input_scale(scheduler: Any) -> float:
    """What the scheduler multiplies the next state by on its way to the network."""
    own = copy.copy(scheduler)  # which takes down that it was asked
    return float(own.scale_model_input(torch.ones(1, device=own.timesteps.device), own.timesteps[1]))


def per_row(value_N: Tensor, like: Tensor) -> Tensor:
    return value_N.to(like.device).reshape(-1, *[1] * (like.ndim - 1))
