"""What a diffusers scheduler says about a step: its noise levels, and the meaning of the network's output.

Every sampler of ours works on x = alpha * x0 + sigma * eps. This module reads (alpha, sigma) and (x0_hat, eps_hat) off
the stock schedulers, family by family. With strength 0 the step built from them is the stock first-order step;
``first_order_gap`` measures that on the user's own scheduler, so a family read wrongly is refused, not trained on.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmgrpo.errors import PolicyError
from mmgrpo.maths.transitions import (
    Level,
    Prediction,
    Step,
    ddim,
    epsilon_to_prediction,
    kernel_mean,
    v_to_prediction,
    velocity_to_prediction,
    x0_to_prediction,
)

UNIFORM_STD = 1e-2  # relative; rounding of a large state shows in the difference of two results
UNUSABLE = ("PNDM", "LMS", "IPNDM", "Heun", "FlowMatchHeun", "KDPM2", "SASolver", "DPMSolverSDE")


@dataclass(frozen=True, slots=True)
class Family:
    """How one family of schedulers is read.

    Attributes:
        name: for messages.
        step: (scheduler, index, timestep) -> the noise levels at and after the step.
        predict: (scheduler, model output, sample, level) -> clean sample and noise, float32.
    """

    name: str
    step: Callable[[Any, int, Any], Step]
    predict: Callable[[Any, Tensor, Tensor, Level], Prediction]


def require_decisions(scheduler: Any) -> None:
    """Refuses a scheduler whose steps are not decisions.

    Raises PolicyError if the class interleaves evaluations, repeats timesteps or mixes in old outputs.
    """
    name = type(scheduler).__name__
    if name.startswith(UNUSABLE):
        cure = "FlowMatchEulerDiscreteScheduler" if name.startswith("FlowMatch") else "DDIMScheduler"
        unclipped = "" if name.startswith("FlowMatch") else ", clip_sample=False"
        raise PolicyError(
            f"{name} evaluates the model several times per step or repeats timesteps, so its steps are not decisions. "
            f"Replace it before wrapping the pipeline: pipe.scheduler = {cure}.from_config(pipe.scheduler.config"
            f"{unclipped})"
        )


def family_of(scheduler: Any) -> Family:
    """The family a scheduler belongs to.

    Raises PolicyError if the class is not known, or clips in a way that is not read here.
    """
    name = type(scheduler).__name__
    config = scheduler.config
    if config.get("thresholding"):
        raise PolicyError(f"{name} with thresholding=True rescales x0 per sample; set thresholding=False")
    if name.startswith("EDM"):
        return EDM
    if name.startswith("FlowMatch"):
        return _flow_match(scheduler)
    if config.get("prediction_type") == "flow_prediction":
        return FLOW
    if callable(getattr(scheduler, "_sigma_to_alpha_sigma_t", None)):
        return VARIANCE_PRESERVING
    if name.startswith("Euler"):
        return VARIANCE_EXPLODING
    if getattr(scheduler, "alphas_cumprod", None) is not None:
        return DISCRETE
    raise PolicyError(
        f"scheduler {name} is of no family known here (flow, DDIM-like, Euler-like, DPM/UniPC-like, EDM); "
        "use sampler 'native' if it draws its own noise, or replace it by a first-order scheduler"
    )


def schedule_index(scheduler: Any, timestep: Any) -> int:
    """Position of the step in the schedule, without advancing it."""
    if callable(getattr(scheduler, "_init_step_index", None)):
        if scheduler._step_index is None:
            scheduler._init_step_index(timestep)
        return int(scheduler.step_index)
    matches = (scheduler.timesteps == torch.as_tensor(timestep, device=scheduler.timesteps.device)).nonzero()
    if len(matches) == 0:
        raise PolicyError(f"timestep {timestep} is not in the schedule of {type(scheduler).__name__}")
    return int(matches[0])


def advance(scheduler: Any) -> None:
    """Moves the scheduler's own index past a step that its ``step`` did not take."""
    if getattr(scheduler, "_step_index", None) is not None:
        scheduler._step_index += 1


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


def native_mean_and_std(
    scheduler: Any, stock_step: Callable[..., Any], output: Tensor, sample: Tensor
) -> tuple[Tensor, float | Tensor]:
    """Mean and standard deviation of a stock step that draws its own noise: its results with noise 0 and noise 1.

    ``stock_step`` is run twice from the same scheduler state; the scheduler is left after the step. The deviation is
    one number, unless the network sets it element by element (learned variance).
    """
    before = _state_of(scheduler)
    with _FixedNoise(0.0):
        mean = _next_sample(stock_step(model_output=output, sample=sample))
    scheduler.__dict__.clear()
    scheduler.__dict__.update(before)
    with _FixedNoise(1.0), torch.no_grad():
        std = _next_sample(stock_step(model_output=output, sample=sample)) - mean.detach()
    typical = std.mean()
    uniform = bool(((std - typical).abs() <= UNIFORM_STD * typical).all())
    return mean, float(typical) if uniform else std


def first_order_gap(
    family: Family, scheduler: Any, stock_step: Callable[..., Any], output: Tensor, sample: Tensor, timestep: Any
) -> float | None:
    """Largest relative difference between our step at strength 0 and the stock first step; None if stock is random.

    Multistep solvers begin with a first-order step, so the first step of a schedule tells for every family. The stock
    step is given float32, so that a pipeline in half precision is read as well as any.
    """
    output, sample = output.detach().float(), sample.detach().float()
    stock_a, stock_b = (_stock_on_copy(scheduler, stock_step, output, sample, noise) for noise in (0.0, 1.0))
    if not torch.equal(stock_a, stock_b):
        return None
    step = family.step(scheduler, schedule_index(scheduler, timestep), timestep)
    ours = kernel_mean(ddim(step, strength=0.0), family.predict(scheduler, output, sample, step.level))
    return float((ours - stock_a).abs().max() / stock_a.abs().max().clamp_min(1e-12))


def _stock_on_copy(
    scheduler: Any, stock_step: Callable[..., Any], output: Tensor, sample: Tensor, noise: float
) -> Tensor:
    twin = copy.copy(scheduler)
    twin.__dict__.update(_state_of(scheduler))
    with _FixedNoise(noise), torch.no_grad():
        return _next_sample(stock_step(twin, model_output=output, sample=sample)).float()


def _state_of(scheduler: Any) -> dict[str, Any]:
    """The scheduler's attributes, with the lists that multistep solvers write into copied."""
    return {key: list(value) if isinstance(value, list) else value for key, value in scheduler.__dict__.items()}


def _next_sample(result: Any) -> Tensor:
    return result[0] if isinstance(result, tuple) else result.prev_sample


def _sigma(scheduler: Any, index: int) -> float:
    return float(scheduler.sigmas[min(index, len(scheduler.sigmas) - 1)])


def _step_from(level: Callable[[Any, int], Level]) -> Callable[[Any, int, Any], Step]:
    def step(scheduler: Any, index: int, timestep: Any) -> Step:
        return Step(
            level=level(scheduler, index),
            next_level=level(scheduler, index + 1),
            second_sigma=level(scheduler, 1).sigma,
        )

    return step


def _flow_level(scheduler: Any, index: int) -> Level:
    sigma = _sigma(scheduler, index)
    return Level(alpha=1.0 - sigma, sigma=sigma)


def _inverted_flow_level(scheduler: Any, index: int) -> Level:
    clean = _sigma(scheduler, index)
    return Level(alpha=clean, sigma=1.0 - clean)


def _exploding_level(scheduler: Any, index: int) -> Level:
    return Level(alpha=1.0, sigma=_sigma(scheduler, index))


def _preserving_level(scheduler: Any, index: int) -> Level:
    sigma = _sigma(scheduler, index)
    alpha = (1.0 + sigma * sigma) ** -0.5
    return Level(alpha=alpha, sigma=sigma * alpha)


def _discrete_step(scheduler: Any, index: int, timestep: Any) -> Step:
    now = int(timestep)
    if callable(getattr(scheduler, "previous_timestep", None)):
        following = int(scheduler.previous_timestep(now))
    else:
        following = now - scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    final = float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    after = float(scheduler.alphas_cumprod[following]) if following >= 0 else final
    level = _from_alpha_cumprod(float(scheduler.alphas_cumprod[now]))
    return Step(level=level, next_level=_from_alpha_cumprod(after), second_sigma=level.sigma)


def _from_alpha_cumprod(value: float) -> Level:
    return Level(alpha=value**0.5, sigma=(1.0 - value) ** 0.5)


def _velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return velocity_to_prediction(sample, output, level)


def _inverted_velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return velocity_to_prediction(sample, -output, level)


def _exploding_velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return epsilon_to_prediction(sample, output, level)  # dx/dsigma is the noise itself where alpha is 1


def _preconditioned(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return x0_to_prediction(sample, scheduler.precondition_outputs(sample, output, level.sigma), level)


def _preserving(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    convert = {"epsilon": epsilon_to_prediction, "v_prediction": v_to_prediction, "sample": x0_to_prediction}
    prediction = convert[scheduler.config.prediction_type](sample, output, level)
    if not scheduler.config.get("clip_sample"):
        return prediction
    limit = scheduler.config.get("clip_sample_range", 1.0)
    return Prediction(x0=prediction.x0.clamp(-limit, limit), noise=prediction.noise)


def _exploding(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return epsilon_to_prediction(sample, output, level)
    if kind == "v_prediction":  # the network's v lives on the variance-preserving sample, sample / sqrt(sigma^2 + 1)
        scale = 1.0 / (level.sigma**2 + 1.0)
        return x0_to_prediction(sample, sample * scale - output * level.sigma * scale**0.5, level)
    return x0_to_prediction(sample, output, level)


def _flow_match(scheduler: Any) -> Family:
    if scheduler.config.get("invert_sigmas"):
        return INVERTED_FLOW
    if float(scheduler.sigmas.max()) > 1.0 + 1e-3:
        return EXPLODING_FLOW
    return FLOW


FLOW = Family("flow", _step_from(_flow_level), _velocity)
INVERTED_FLOW = Family("inverted flow", _step_from(_inverted_flow_level), _inverted_velocity)
EXPLODING_FLOW = Family("variance-exploding flow", _step_from(_exploding_level), _exploding_velocity)
EDM = Family("EDM", _step_from(_exploding_level), _preconditioned)
VARIANCE_EXPLODING = Family("variance exploding", _step_from(_exploding_level), _exploding)
VARIANCE_PRESERVING = Family("variance preserving", _step_from(_preserving_level), _preserving)
DISCRETE = Family("discrete variance preserving", _discrete_step, _preserving)
