"""Results of the stock ``step``: its noise, and a check that mmgrpo reads its schedule correctly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmgrpo.maths.transitions import (
    DenoisingStep,
    Kernel,
    Prediction,
    ddim,
    kernel_mean,
    secant_to_prediction,
    x0_to_prediction,
)

from .pipeline_run import StepCall
from .scheduler_families import Family, schedule_index

UNIFORM_STD = 1e-2  # relative; the difference of two results has the rounding error of a large state
LEARNED = ("learned", "learned_range")


class _FixedNoise(TorchFunctionMode):
    """Makes every Gaussian sample a constant within the context."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.randn, torch.randn_like):
            return func(*args, **(kwargs or {}))
        options = {
            key: value for key, value in (kwargs or {}).items() if key != "generator"
        }  # its state does not advance
        empty = torch.empty if func is torch.randn else torch.empty_like
        return empty(*args, **options).fill_(self.value)


def network_output(call: StepCall) -> Tensor:
    """The network's prediction in the shape of the state and the sign of the schedule, float32.

    Channels of a learned variance are removed. With a timestep per token, the stock step takes steps of positive
    length, and pipelines pass the velocity with its sign inverted.
    """
    output, channels = call.model_output.float(), call.sample.shape[1]
    if output.shape[1] == 2 * channels and call.scheduler.config.get("variance_type") in LEARNED:
        output = output[:, :channels]
    return output if call.token_timesteps is None else -output


def prediction_of(family: Family, call: StepCall, step: DenoisingStep) -> Prediction:
    """The clean sample and the noise, from the family, from the stock step, or as the pipeline passes them."""
    if family.predict is None:
        sample = call.sample.float()
        return secant_to_prediction(sample, _on_copy(call, call.model_output.float(), sample, 0.0), step)
    if call.clean is not None:
        return x0_to_prediction(call.sample.float(), call.clean.float(), step.level)
    return family.predict(call.scheduler, network_output(call), call.sample.float(), step.level)


def stepped_elements(call: StepCall) -> Tensor | None:
    """The elements whose tokens are at the level of the step, in the shape of the state; None if all are."""
    if call.token_timesteps is None:
        return None
    stepped = (call.token_timesteps - float(call.timestep)).abs() <= 1e-3
    return None if stepped.all() else stepped[..., None].expand_as(call.sample)


def stock_result(call: StepCall) -> Tensor:
    """The next state of the stock step without its noise, float32; the scheduler stays before the step."""
    with torch.no_grad():
        return _on_copy(call, call.model_output.float(), call.sample.float(), 0.0)


def native_mean_and_std(
    scheduler: Any, stock_step: Callable[..., Any], output: Tensor, sample: Tensor
) -> tuple[Tensor, float | Tensor]:
    """Mean and standard deviation of a stock step with its own noise: its results with noise 0 and noise 1.

    ``stock_step`` runs twice from the same scheduler state; the scheduler ends after the step. The deviation is one
    number, unless the network predicts it per element (learned variance): then it has a graph, like the mean.
    """
    before = _state_of(scheduler)
    learned = scheduler.config.get("variance_type") in LEARNED
    with _FixedNoise(0.0):
        mean = _next_sample(stock_step(model_output=output, sample=sample))
    scheduler.__dict__.clear()
    scheduler.__dict__.update(before)
    with _FixedNoise(1.0), torch.set_grad_enabled(learned and torch.is_grad_enabled()):
        std = _next_sample(stock_step(model_output=output, sample=sample)) - (mean if learned else mean.detach())
    if learned and bool(std.detach().any()):
        return mean, std
    typical = std.mean()
    uniform = bool(((std - typical).abs() <= UNIFORM_STD * typical).all())
    return mean, float(typical) if uniform else std


def first_step_gap(family: Family, call: StepCall) -> float:
    """Largest relative difference between our first step and the stock one with the same noise.

    Multistep solvers start with a first-order step, so the first step of a schedule tests every family. The stock step
    gets float32, so that the check does not depend on the pipeline's precision.
    """
    raw, sample = call.model_output.detach().float(), call.sample.detach().float()
    with torch.no_grad():
        mean, shifted = (_on_copy(call, raw, sample, noise) for noise in (0.0, 1.0))
    step = family.step(call.scheduler, schedule_index(call.scheduler, call.timestep), call.timestep)
    with torch.no_grad():
        prediction = prediction_of(family, call, step)
    elements = stepped_elements(call)
    gaps = []
    for kernel in _kernels(step, float((shifted - mean).mean())):
        error = (kernel_mean(kernel, prediction) - mean).abs()
        gaps.append(float((error if elements is None else error[elements]).max()))
    return min(gaps) / float(mean.abs().max().clamp_min(1e-12))


def _kernels(step: DenoisingStep, std: float) -> list[Kernel]:
    """Our kernels with the same noise; a scheduler with more noise than its posterior keeps the posterior's mean."""
    if std == 0.0:
        return [ddim(step, strength=0.0)]
    remaining = math.sqrt(max(step.next_level.sigma**2 - std**2, 0.0))
    return [Kernel(step.next_level.alpha, remaining, std), ddim(step, strength=1.0)]


def _on_copy(call: StepCall, output: Tensor, sample: Tensor, noise: float) -> Tensor:
    copied = copy.copy(call.scheduler)
    copied.__dict__.update(_state_of(call.scheduler))
    if "noise_sampler" in copied.__dict__:  # a Brownian tree, in the schedulers of stable-audio and k-diffusion
        copied.noise_sampler = lambda *levels: torch.full_like(sample, noise)
    with _FixedNoise(noise):
        return _next_sample(call.stock(copied, model_output=output, sample=sample)).float()


def _state_of(scheduler: Any) -> dict[str, Any]:
    """The scheduler's attributes, with copies of the lists that multistep solvers modify."""
    return {key: list(value) if isinstance(value, list) else value for key, value in scheduler.__dict__.items()}


def _next_sample(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result.prev_sample
