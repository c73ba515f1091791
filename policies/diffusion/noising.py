"""Clean data at sampled noise levels, and the network's target, by scheduler family.

x = alpha x0 + sigma eps; in every family the clean sample is affine in the network's output, x0 = a x + b output.
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
        state: (N, ...) x_t as passed to the pipeline.
        noisy: (N, ...) x_t as alpha x0 + sigma eps.
        target: (N, ...) the network's target.
        timestep_N: the levels in the schedule's unit.
        sigma_N: the levels.
        of_noisy: a of x0 = a x_t + b output, one number per row, in the shape of the state.
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
        """The clean sample implied by the network's output."""
        return self.of_noisy * self.noisy + self.of_output * output


def noise_levels(uniform_N: Tensor, index_N: Tensor, reading: ReadingSettings) -> Tensor:
    """Levels as fractions of the schedule, in [0, 1], from uniform numbers and level indices.

    u within its index's stratum if levels are stratified, 1 / (1 + e^-z) of its normal quantile z if they are
    logit-normal; then low + (high - low) u, s u / (1 + (s - 1) u).

    Shapes: (N,), (N,) -> (N,).   Raises: ConfigError unless low < high.
    """
    if reading.low >= reading.high:
        raise ConfigError(f"policy.reading: low must be below high, got {reading.low} and {reading.high}")
    if reading.levels == "stratified":
        uniform_N = (index_N + uniform_N) / reading.num_levels
    elif reading.levels == "logit_normal":
        uniform_N = torch.special.ndtri(uniform_N).sigmoid()
    uniform_N = reading.low + (reading.high - reading.low) * uniform_N
    return shifted(uniform_N, reading.shift)


def level_and_noise(data: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The uniform number of each row's level, and noise for its entries, by the row's seed.

    Shapes: (N E, ...), N seeds -> (N,), (N E, ...).
    """
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    uniform_N = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    shape = (len(data) // len(seeds), *data.shape[1:])
    noise = torch.cat([torch.randn(shape, generator=generator) for generator in generators])
    return uniform_N, noise.to(data.device)


def flow_noised(noisy: Tensor, target: Tensor, timestep_N: Tensor, sigma: Tensor, *, inverted: bool = False) -> Noised:
    """Noised rows of a flow, x0 = x - sigma v; plus if velocities point to the data (``inverted``).

    Shapes: (N, ...), (N, ...), (N,), (N, 1, ...).
    """
    return Noised(
        state=noisy,
        noisy=noisy,
        target=target,
        timestep_N=timestep_N,
        sigma_N=sigma.flatten(),
        of_noisy=torch.ones_like(sigma),
        of_output=sigma if inverted else -sigma,
    )


def noised(
    call: StepCall,
    data: Tensor,
    seeds: Sequence[int],
    level_indices: Sequence[int],
    reading: ReadingSettings,
    *,
    integer_timesteps: bool,
) -> Noised:
    """Data at one noise level per row, as passed to the pipeline.

    Args:
        call: the step call whose result it is.
        data: (N, ...) float32; of a row that runs alone, its entries.
        seeds: of each row's level and noise.
        level_indices: index of each row's level among its sample's levels.
        reading: distribution of the noise levels.
        integer_timesteps: whether timesteps must be integers.

    Returns:
        The noised rows, a function of seed and level index in any batch.

    Raises:
        PolicyError: the scheduler's family does not support levels per row.
    """
    uniform_N, noise = level_and_noise(data, seeds)
    share_N = noise_levels(uniform_N, torch.tensor(list(level_indices)), reading)
    share_N = share_N.repeat_interleave(len(data) // len(seeds))
    family, scheduler = family_of(call.scheduler), call.scheduler
    if family in (FLOW, INVERTED_FLOW):
        return _flow(
            scheduler, data, noise, share_N, integer_timesteps=integer_timesteps, inverted=family is INVERTED_FLOW
        )
    if family in DIFFUSION:
        return _diffusion(scheduler, data, noise, share_N)
    if family is EDM:
        return _preconditioned(scheduler, data, noise, share_N)
    raise PolicyError(
        f"noise levels per row need a flow, DDIM-like, Euler-like, DPM-like or EDM scheduler; "
        f"{type(scheduler).__name__} is {family.name}"
    )


def _flow(
    scheduler: Any, data: Tensor, noise: Tensor, share_N: Tensor, *, integer_timesteps: bool, inverted: bool
) -> Noised:
    num_train = scheduler.config.num_train_timesteps
    timestep_N = (share_N * num_train).floor() if integer_timesteps else share_N * num_train
    share = per_row(timestep_N / num_train, data)
    if inverted:  # timesteps count from noise to data, and velocities point to the data
        noisy, target, sigma = share * data + (1 - share) * noise, data - noise, 1 - share
    else:
        noisy, target, sigma = (1 - share) * data + share * noise, noise - data, share
    return flow_noised(noisy, target, timestep_N, sigma, inverted=inverted)


def _diffusion(scheduler: Any, data: Tensor, noise: Tensor, share_N: Tensor) -> Noised:
    num_train, kind = scheduler.config.num_train_timesteps, scheduler.config.prediction_type
    timestep_N = (share_N * num_train).long().clamp(max=num_train - 1)
    alpha_cumprod = scheduler.alphas_cumprod.to(timestep_N.device)[timestep_N]
    alpha, sigma = per_row(alpha_cumprod.sqrt(), data), per_row((1 - alpha_cumprod).sqrt(), data)
    targets = {"epsilon": noise, "v_prediction": alpha * noise - sigma * data, "sample": data}
    if kind not in targets:
        raise PolicyError(f"{type(scheduler).__name__} has prediction_type {kind}; supported are {', '.join(targets)}")
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
    """Levels as the schedule spaces them; the network's input is c_in x, its output (x0 - c_skip x) / c_out."""
    config = scheduler.config
    ends = [bound ** (1 / config.rho) for bound in (config.sigma_max, config.sigma_min)]
    sigma_N = (ends[1] + share_N * (ends[0] - ends[1])) ** config.rho
    sigma = per_row(sigma_N, data)
    noisy = data + sigma * noise
    skip = scheduler.precondition_outputs(torch.ones_like(sigma), torch.zeros_like(sigma), sigma)
    scale = scheduler.precondition_outputs(torch.zeros_like(sigma), torch.ones_like(sigma), sigma)
    scaled = noisy / (sigma**2 + config.sigma_data**2).sqrt()
    return Noised(
        state=scaled / _input_scale(scheduler),
        noisy=noisy,
        target=(data - skip * noisy) / scale,
        timestep_N=scheduler.precondition_noise(sigma_N),
        sigma_N=sigma_N,
        of_noisy=skip,
        of_output=scale,
    )


def _input_scale(scheduler: Any) -> float:
    """The factor by which the scheduler multiplies the next state for the network."""
    copied = copy.copy(scheduler)  # scale_model_input changes its state
    return float(copied.scale_model_input(torch.ones(1, device=copied.timesteps.device), copied.timesteps[1]))


def per_row(value_N: Tensor, like: Tensor) -> Tensor:
    """One value per row, shaped to broadcast over a tensor: (N,) -> (N, 1, ..., 1)."""
    return value_N.to(like.device).reshape(-1, *[1] * (like.ndim - 1))
