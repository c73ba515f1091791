"""What the stock ``step`` itself gives, run on the side: its own noise, and whether its schedule is read rightly."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmgrpo.maths.transitions import (
    Kernel,
    Prediction,
    Step,
    ddim,
    kernel_mean,
    secant_to_prediction,
    x0_to_prediction,
)

from .pipeline_run import StepCall
from .scheduler_families import Family, schedule_index

UNIFORM_STD = 1e-2  # relative; rounding of a large state shows in the difference of two results
LEARNED = ("learned", "learned_range")


class _FixedNoise(TorchFunctionMode):
    """Within it every Gaussian draw gives the same constant."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in (torch.randn, torch.randn_like):
            return func(*args, **(kwargs or {}))
        like = {key: value for key, value in (kwargs or {}).items() if key != "generator"}  # whose state stays put
        empty = torch.empty if func is torch.randn else torch.empty_like
        return empty(*args, **like).fill_(self.value)


def network_output(call: StepCall) -> Tensor:
    """What the network says of the state, in the state's own shape and the sign of the schedule, float32.

    A learned variance comes along as further channels. Given a timestep per token, the stock step takes steps of
    positive length, so that pipelines hand it the velocity with its sign turned.
    """
    output, channels = call.model_output.float(), call.sample.shape[1]
    if output.shape[1] == 2 * channels and call.scheduler.config.get("variance_type") in LEARNED:
        output = output[:, :channels]
    return output if call.token_timesteps is None else -output


def prediction_of(family: Family, call: StepCall, step: Step) -> Prediction:
    """The clean sample and the noise, by the family, by the stock step, or as the pipeline has them already."""
    if family.predict is None:
        sample = call.sample.float()
        return secant_to_prediction(sample, _on_copy(call, call.model_output.float(), sample, 0.0), step)
    if call.clean is not None:
        return x0_to_prediction(call.sample.float(), call.clean.float(), step.level)
    return family.predict(call.scheduler, network_output(call), call.sample.float(), step.level)


def stepped_elements(call: StepCall) -> Tensor | None:
    """The elements whose tokens stand at the level of the step, shaped as the state; None where all do."""
    if call.token_timesteps is None:
        return None
    stepped = (call.token_timesteps - float(call.timestep)).abs() <= 1e-3
    return None if stepped.all() else stepped[..., None].expand_as(call.sample)


def stock_result(call: StepCall) -> Tensor:
    """The stock step's own next state without its noise, float32; the scheduler is left before the step."""
    with torch.no_grad():
        return _on_copy(call, call.model_output.float(), call.sample.float(), 0.0)


def native_mean_and_std(
    scheduler: Any, stock_step: Callable[..., Any], output: Tensor, sample: Tensor
) -> tuple[Tensor, float | Tensor]:
    """Mean and standard deviation of a stock step that draws its own noise: its results with noise 0 and noise 1.

    ``stock_step`` is run twice from the same scheduler state; the scheduler is left after the step. The deviation is
    one number, unless the network sets it element by element (learned variance): then it carries a graph as the mean.
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
    """Largest relative difference between our first step and the stock one, where ours adds as much noise.

    Multistep solvers begin with a first-order step, so the first step of a schedule tells for every family. The stock
    step is given float32, so that a pipeline in half precision is read as well as any.
    """
    raw, sample = call.model_output.detach().float(), call.sample.detach().float()
    with torch.no_grad():
        mean, shifted = (_on_copy(call, raw, sample, noise) for noise in (0.0, 1.0))
    step = family.step(call.scheduler, schedule_index(call.scheduler, call.timestep), call.timestep)
    with torch.no_grad():
        prediction = prediction_of(family, call, step)
    stepped = stepped_elements(call)
    gaps = []
    for kernel in _kernels(step, float((shifted - mean).mean())):
        error = (kernel_mean(kernel, prediction) - mean).abs()
        gaps.append(float((error if stepped is None else error[stepped]).max()))
    return min(gaps) / float(mean.abs().max().clamp_min(1e-12))


def _kernels(step: Step, std: float) -> list[Kernel]:
    """Ours of the same noise; a scheduler that adds more than its posterior's keeps the posterior's mean."""
    if std == 0.0:
        return [ddim(step, strength=0.0)]
    left = math.sqrt(max(step.next_level.sigma**2 - std**2, 0.0))
    return [Kernel(step.next_level.alpha, left, std), ddim(step, strength=1.0)]


def _on_copy(call: StepCall, output: Tensor, sample: Tensor, noise: float) -> Tensor:
    twin = copy.copy(call.scheduler)
    twin.__dict__.update(_state_of(call.scheduler))
    if "noise_sampler" in twin.__dict__:  # a Brownian tree, of the schedulers of stable-audio and k-diffusion
        twin.noise_sampler = lambda *levels: torch.full_like(sample, noise)
    with _FixedNoise(noise):
        return _next_sample(call.stock(twin, model_output=output, sample=sample)).float()


def _state_of(scheduler: Any) -> dict[str, Any]:
    """The scheduler's attributes, with the lists that multistep solvers write into copied."""
    return {key: list(value) if isinstance(value, list) else value for key, value in scheduler.__dict__.items()}


def _next_sample(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result.prev_sample
