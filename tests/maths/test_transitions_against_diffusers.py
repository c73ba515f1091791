"""The samplers compared with the stock diffusers schedulers, on the same random model outputs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_dpmsolver_multistep import DPMSolverMultistepScheduler
from diffusers.schedulers.scheduling_edm_euler import EDMEulerScheduler
from diffusers.schedulers.scheduling_euler_ancestral_discrete import EulerAncestralDiscreteScheduler
from diffusers.schedulers.scheduling_euler_discrete import EulerDiscreteScheduler
from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler
from torch import Tensor

from mmgrpo.maths.transitions import (
    DenoisingStep,
    Level,
    Prediction,
    Sampler,
    cps,
    ddim,
    epsilon_to_prediction,
    extrapolated,
    kernel_mean,
    v_to_prediction,
    velocity_to_prediction,
    x0_to_prediction,
)

NUM_STEPS = 10
SHAPE = (2, 4, 5)
CONVERTERS = {"epsilon": epsilon_to_prediction, "v_prediction": v_to_prediction}
SILENT = torch.zeros(NUM_STEPS, *SHAPE)


def assert_same_samples(
    scheduler: Any,
    levels: list[Level],
    to_prediction: Callable[[Tensor, Tensor, Level], Prediction],
    sampler: Sampler,
    strength: float,
    noises: Tensor = SILENT,
    arguments: Callable[[int], dict[str, Any]] = lambda index: {},
) -> None:
    """Both follow the schedule from one latent; the ends agree to 1e-6 of the largest element."""
    generator = torch.Generator().manual_seed(23)
    ours = stock = levels[0].sigma * torch.randn(SHAPE, generator=generator)
    for i, (level, next_level) in enumerate(pairwise(levels)):
        output = torch.randn(SHAPE, generator=generator)
        kernel = sampler(
            DenoisingStep(level=level, next_level=next_level, second_sigma=levels[1].sigma), strength=strength
        )
        ours = kernel_mean(kernel, to_prediction(ours, output, level)) + kernel.std * noises[i]
        stock = scheduler.step(output, scheduler.timesteps[i], stock, return_dict=False, **arguments(i))[0]
    assert len(levels) == NUM_STEPS + 1
    assert ((ours - stock).abs().max() / stock.abs().max()).item() < 1e-6


def flow_levels(scheduler: Any) -> list[Level]:
    return [Level(alpha=1 - sigma, sigma=sigma) for sigma in scheduler.sigmas.tolist()]


def ve_levels(scheduler: Any) -> list[Level]:
    scheduler.is_scale_input_called = True  # scaling the network's input is not part of the step
    return [Level(alpha=1.0, sigma=sigma) for sigma in scheduler.sigmas.tolist()]


def vp_levels(scheduler: Any) -> list[Level]:
    alphabars = [scheduler.alphas_cumprod[t].item() for t in scheduler.timesteps]
    alphabars.append(scheduler.final_alpha_cumprod.item())
    return [Level(alpha=a**0.5, sigma=(1 - a) ** 0.5) for a in alphabars]


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_flow_match_euler(shift: float) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(NUM_STEPS)
    assert_same_samples(scheduler, flow_levels(scheduler), velocity_to_prediction, ddim, 0.0)


def test_stochastic_flow_match_euler_is_cps_of_full_strength() -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, stochastic_sampling=True)
    scheduler.set_timesteps(NUM_STEPS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        noises = torch.stack([torch.randn(SHAPE) for _ in range(NUM_STEPS)])
        torch.manual_seed(0)
        assert_same_samples(scheduler, flow_levels(scheduler), velocity_to_prediction, cps, 1.0, noises)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("set_alpha_to_one", [True, False])
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_ddim(prediction_type: Any, set_alpha_to_one: bool, eta: float) -> None:
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        clip_sample=False,
        set_alpha_to_one=set_alpha_to_one,
        steps_offset=1,
        prediction_type=prediction_type,
    )
    scheduler.set_timesteps(NUM_STEPS)
    noises = torch.randn(NUM_STEPS, *SHAPE, generator=torch.Generator().manual_seed(29))
    assert_same_samples(
        scheduler,
        vp_levels(scheduler),
        CONVERTERS[prediction_type],
        ddim,
        eta,
        noises,
        lambda index: {"eta": eta, "variance_noise": noises[index]},
    )


@pytest.mark.parametrize("karras", [True, False])
@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_euler(prediction_type: Any, karras: bool) -> None:
    scheduler = EulerDiscreteScheduler(prediction_type=prediction_type, use_karras_sigmas=karras)
    scheduler.set_timesteps(NUM_STEPS)
    assert_same_samples(scheduler, ve_levels(scheduler), CONVERTERS[prediction_type], ddim, 0.0)


@pytest.mark.parametrize("prediction_type", ["epsilon", "v_prediction"])
def test_ancestral_euler_is_ddim_of_full_strength(prediction_type: Any) -> None:
    scheduler = EulerAncestralDiscreteScheduler(prediction_type=prediction_type)
    scheduler.set_timesteps(NUM_STEPS)
    theirs, same = torch.Generator().manual_seed(31), torch.Generator().manual_seed(31)
    noises = torch.stack([torch.randn(SHAPE, generator=same) for _ in range(NUM_STEPS)])
    arguments = {"generator": theirs}
    assert_same_samples(
        scheduler, ve_levels(scheduler), CONVERTERS[prediction_type], ddim, 1.0, noises, lambda index: arguments
    )


def test_edm_euler_through_its_own_preconditioning() -> None:
    scheduler = EDMEulerScheduler()
    scheduler.set_timesteps(NUM_STEPS)

    def to_prediction(x: Tensor, output: Tensor, level: Level) -> Prediction:
        x0 = scheduler.precondition_outputs(x, output, torch.tensor(level.sigma))
        return x0_to_prediction(x, x0, level)

    assert_same_samples(scheduler, ve_levels(scheduler), to_prediction, ddim, 0.0)


def test_steps_of_second_order_are_those_of_the_multistep_solver() -> None:
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0, solver_type="midpoint"
    )
    scheduler.set_timesteps(NUM_STEPS)
    levels = flow_levels(scheduler)
    generator = torch.Generator().manual_seed(23)
    ours = stock = torch.randn(SHAPE, generator=generator)
    before: Prediction | None = None
    for i, (level, next_level) in enumerate(pairwise(levels)):
        output = torch.randn(SHAPE, generator=generator)
        step = DenoisingStep(level=level, next_level=next_level, second_sigma=levels[1].sigma)
        prediction = now = velocity_to_prediction(ours, output, level)
        if before is not None:
            now = extrapolated(ours, prediction, before, step, levels[i - 1])
        ours, before = kernel_mean(ddim(step, strength=0.0), now), prediction
        stock = scheduler.step(output, scheduler.timesteps[i], stock, return_dict=False)[0]
    assert ((ours - stock).abs().max() / stock.abs().max()).item() < 1e-6
