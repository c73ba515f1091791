"""Noise levels of diffusers schedulers, and the meaning of the network's output, by family.

All samplers of mmgrpo use x = alpha * x0 + sigma * eps. This module derives (alpha, sigma) and (x0_hat, eps_hat) from
the stock schedulers, family by family; if the step is not of first order but a function of the network's output alone
(flow maps), from the step itself. With strength 0 the resulting step is the stock first-order step;
``scheduler_check.first_step_gap`` measures this on the user's scheduler, so a wrong family raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.maths.transitions import (
    DenoisingStep,
    Level,
    Prediction,
    epsilon_to_prediction,
    v_to_prediction,
    velocity_to_prediction,
    x0_to_prediction,
)

CLIPPING = ("DDIM", "DDPM", "LCM", "UnCLIP")  # their step uses clip_sample; others have the key and ignore it
POSTERIOR = ("DDPM", "UnCLIP")  # their mean depends on the state and the clipped clean sample
CONSISTENCY = ("LCM", "TCD", "SCM", "FlowMatchLCM", "CMStochastic")
LISTED_STEPS = (*CONSISTENCY, "UnCLIP")  # the next timestep is the next of ``timesteps``
FLOW_MAPS = ("FlowMap", "Piflow")


@dataclass(frozen=True, slots=True)
class Family:
    """A family of schedulers.

    Attributes:
        name: for messages.
        step: (scheduler, index, timestep) -> the noise levels at and after the step.
        predict: (scheduler, model output, sample, level) -> clean sample and noise, float32; None: from the stock step.
    """

    name: str
    step: Callable[[Any, int, Any], DenoisingStep]
    predict: Callable[[Any, Tensor, Tensor, Level], Prediction] | None


def family_of(scheduler: Any) -> Family:
    """The family of a scheduler. Raises PolicyError for an unknown class."""
    name = type(scheduler).__name__
    config = scheduler.config
    if callable(getattr(scheduler, "precondition_outputs", None)):
        return EDM
    if name.startswith(FLOW_MAPS):
        return FLOW_MAP
    if name.startswith("FlowMatch"):
        return _flow_match(scheduler)
    if callable(getattr(scheduler, "_sigma_to_alpha_sigma_t", None)):
        if not config.get("use_flow_sigmas"):
            return VARIANCE_PRESERVING
        return FLOW if config.prediction_type == "flow_prediction" else FLOW_LEVELS
    if name.startswith("Euler"):
        return VARIANCE_EXPLODING
    if name.startswith("IPNDM"):
        return TRIGONOMETRIC
    if getattr(scheduler, "alphas_cumprod", None) is not None and "prediction_type" in config:
        return DISCRETE
    raise PolicyError(
        f"scheduler {name} is not supported (flow, flow map, DDIM-like, Euler-like, DPM/UniPC-like and EDM are); use "
        "sampler 'native' if it samples its own noise, or replace it by a first-order scheduler"
    )


def fitting_sampler(scheduler: Any) -> str:
    """The default sampler of a scheduler, by its noise levels.

    Consistency schedulers, and those with ``stochastic_sampling``, sample their own noise, for which the model was
    distilled: "native", which is also the default of unknown families. Flow levels use "flow_sde"; flow maps, whose
    network predicts a mean velocity and no score, "cps"; all others, also flow models on levels above 1 (Cosmos 2),
    "ddim".
    """
    if type(scheduler).__name__.startswith(CONSISTENCY) or scheduler.config.get("stochastic_sampling"):
        return "native"
    try:
        family = family_of(scheduler)
    except PolicyError:
        return "native"
    if family is FLOW_MAP:
        return "cps"
    return "flow_sde" if family in (FLOW, INVERTED_FLOW, FLOW_LEVELS) else "ddim"


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


def num_steps(scheduler: Any) -> int:
    """Steps of the schedule; some schedulers list the end of the last one as a further timestep (SCM, Wuerstchen)."""
    listed = len(scheduler.timesteps)
    lists_end = float(scheduler.timesteps[-1]) == 0.0 and getattr(scheduler, "num_inference_steps", None) != listed
    return listed - 1 if lists_end and listed > 1 else listed


def advance(scheduler: Any) -> None:
    """Advances the scheduler's index past a step that its ``step`` did not take."""
    if getattr(scheduler, "_step_index", None) is not None:
        scheduler._step_index += 1


def _sigma(scheduler: Any, index: int) -> float:
    return float(scheduler.sigmas[min(index, len(scheduler.sigmas) - 1)])


def _step_from(level: Callable[[Any, int], Level]) -> Callable[[Any, int, Any], DenoisingStep]:
    def step(scheduler: Any, index: int, timestep: Any) -> DenoisingStep:
        return DenoisingStep(
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


def _trigonometric_level(scheduler: Any, index: int) -> Level:
    return Level(alpha=float(scheduler.alphas[index]), sigma=float(scheduler.betas[index]))


def _exploding_level(scheduler: Any, index: int) -> Level:
    return Level(alpha=1.0, sigma=_sigma(scheduler, index))


def _solver_level(scheduler: Any, index: int) -> Level:
    alpha, sigma = scheduler._sigma_to_alpha_sigma_t(torch.tensor(_sigma(scheduler, index), dtype=torch.float64))
    return Level(alpha=float(alpha), sigma=float(sigma))


def _discrete_step(scheduler: Any, index: int, timestep: Any) -> DenoisingStep:
    current = int(timestep)
    if type(scheduler).__name__.startswith(LISTED_STEPS):
        next_timestep = int(scheduler.timesteps[index + 1]) if index + 1 < len(scheduler.timesteps) else -1
    elif callable(getattr(scheduler, "previous_timestep", None)):
        next_timestep = int(scheduler.previous_timestep(current))
    else:
        next_timestep = current - scheduler.config.num_train_timesteps // scheduler.num_inference_steps
    final = float(getattr(scheduler, "final_alpha_cumprod", 1.0))
    next_alpha_cumprod = float(scheduler.alphas_cumprod[next_timestep]) if next_timestep >= 0 else final
    level = _from_alpha_cumprod(float(scheduler.alphas_cumprod[current]))
    return DenoisingStep(level=level, next_level=_from_alpha_cumprod(next_alpha_cumprod), second_sigma=level.sigma)


def _from_alpha_cumprod(value: float) -> Level:
    return Level(alpha=value**0.5, sigma=(1.0 - value) ** 0.5)


def _velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return velocity_to_prediction(sample, output, level)


def _inverted_velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return velocity_to_prediction(sample, -output, level)


def _exploding_velocity(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return epsilon_to_prediction(sample, output, level)  # dx/dsigma is the noise itself where alpha is 1


def _trigonometric(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    noise = v_to_prediction(sample, output, level).noise
    return Prediction(
        (sample - level.sigma * noise) / max(level.alpha, 1e-8), noise
    )  # zero for pure noise, like the stock scheduler


def _preconditioned(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    return x0_to_prediction(sample, scheduler.precondition_outputs(sample, output, level.sigma), level)


def _discrete(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    convert = {"epsilon": epsilon_to_prediction, "v_prediction": v_to_prediction, "sample": x0_to_prediction}
    prediction = convert[scheduler.config.prediction_type](sample, output, level)
    name = type(scheduler).__name__
    if not name.startswith(CLIPPING):
        return prediction
    x0 = _bounded(scheduler, prediction.x0)
    if x0 is prediction.x0 or not name.startswith(POSTERIOR):
        return Prediction(x0=x0, noise=prediction.noise)
    return x0_to_prediction(sample, x0, level)


def _solver(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    kind, alpha, sigma = scheduler.config.prediction_type, level.alpha, level.sigma
    if kind == "epsilon" and not scheduler.config.get("thresholding"):
        return epsilon_to_prediction(sample, output, level)
    x0 = {
        "epsilon": lambda: epsilon_to_prediction(sample, output, level).x0,
        "v_prediction": lambda: alpha * sample - sigma * output,
        "flow_prediction": lambda: sample - sigma / alpha * output,  # at the level before variance-preserving scaling
        "sample": lambda: output,
    }[kind]()
    return x0_to_prediction(sample, _bounded(scheduler, x0), level)


def _bounded(scheduler: Any, x0: Tensor) -> Tensor:
    """The clean sample, limited by the scheduler's configuration."""
    if scheduler.config.get("thresholding"):
        return scheduler._threshold_sample(x0)
    if not scheduler.config.get("clip_sample"):
        return x0
    limit = scheduler.config.get("clip_sample_range", 1.0)
    return x0.clamp(-limit, limit)


def _exploding(scheduler: Any, output: Tensor, sample: Tensor, level: Level) -> Prediction:
    kind = scheduler.config.prediction_type
    if kind == "epsilon":
        return epsilon_to_prediction(sample, output, level)
    if kind == "v_prediction":  # v is defined on the variance-preserving sample, sample / sqrt(sigma^2 + 1)
        scale = 1.0 / (level.sigma**2 + 1.0)
        return x0_to_prediction(sample, sample * scale - output * level.sigma * scale**0.5, level)
    return x0_to_prediction(sample, output, level)


def _flow_match(scheduler: Any) -> Family:
    if scheduler.config.get("invert_sigmas"):
        return INVERTED_FLOW
    # Cosmos 2 sets sigma_max in the configuration of a scheduler that computes its levels in the call
    if max(float(scheduler.sigmas.max()), float(scheduler.config.get("sigma_max") or 0.0)) > 1.0 + 1e-3:
        return EXPLODING_FLOW
    return FLOW


FLOW = Family("flow", _step_from(_flow_level), _velocity)
FLOW_MAP = Family("flow map", _step_from(_flow_level), None)
INVERTED_FLOW = Family("inverted flow", _step_from(_inverted_flow_level), _inverted_velocity)
EXPLODING_FLOW = Family("variance-exploding flow", _step_from(_exploding_level), _exploding_velocity)
TRIGONOMETRIC = Family("trigonometric", _step_from(_trigonometric_level), _trigonometric)
EDM = Family("EDM", _step_from(_exploding_level), _preconditioned)
VARIANCE_EXPLODING = Family("variance exploding", _step_from(_exploding_level), _exploding)
VARIANCE_PRESERVING = Family("variance preserving", _step_from(_solver_level), _solver)
FLOW_LEVELS = Family("flow levels without flow prediction", _step_from(_solver_level), _solver)
DISCRETE = Family("discrete variance preserving", _discrete_step, _discrete)
