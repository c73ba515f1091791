"""One denoising step as a Gaussian: the prediction of the network, and the samplers of the next latent.

x = alpha x0 + sigma eps is the latent at a noise level; a prime marks the next, less noisy one; h = sigma - sigma'.
Every sampler samples x' ~ N(signal x0 + noise eps, std^2), so a sampler is three numbers per step (a ``Kernel``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_FLOW_TOLERANCE = 1e-6  # schedules are float32: alpha = 1 - sigma holds to rounding only
_NEAR_ONE = 1e-3
_LOG_MAX = 1 - 3e-3
_ROUNDING = 1e-9  # relative tolerance of a sum of squares


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A noise level, x = alpha x0 + sigma eps. Flow: alpha = 1 - sigma; VP: alpha^2 = 1 - sigma^2; VE, EDM: alpha = 1.

    Attributes:
        alpha: weight of the clean sample.
        sigma: weight of the noise.
    """

    alpha: float
    sigma: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.alpha) and math.isfinite(self.sigma)):
            raise ShapeError(f"a noise level must be finite, got {self}")
        if self.sigma < 0 or self.alpha < -_FLOW_TOLERANCE or self.sigma + self.alpha <= 0:
            raise ShapeError(f"a noise level needs alpha >= 0 and sigma >= 0, not both 0; got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DenoisingStep:
    """One step of a schedule.

    Attributes:
        level: where the step starts.
        next_level: where it ends, at less noise.
        second_sigma: sigma at index 1 of the complete schedule, used in place of sigma = 1 where that divides by zero.
    """

    level: Level
    next_level: Level
    second_sigma: float

    def __post_init__(self) -> None:
        if self.level.sigma < self.next_level.sigma:
            raise ShapeError(
                f"a denoising step must lower sigma, got {self.level.sigma} -> {self.next_level.sigma}; "
                "pass the levels in sampling order"
            )
        if not (math.isfinite(self.second_sigma) and self.second_sigma >= 0):
            raise ShapeError(f"second_sigma must be finite and not negative, got {self.second_sigma}")

    @property
    def length(self) -> float:
        """h = sigma - sigma'; 0 where a schedule repeats its last level: such a step changes and samples nothing."""
        return self.level.sigma - self.next_level.sigma


@dataclass(frozen=True, slots=True)
class Prediction:
    """The prediction of the network for a latent, at least float32.

    Attributes:
        x0: the clean sample.
        noise: the noise, so that x = alpha x0 + sigma noise.
    """

    x0: Tensor
    noise: Tensor


@dataclass(frozen=True, slots=True)
class Kernel:
    """The Gaussian of one step: x' ~ N(signal x0 + noise eps, std^2).

    Attributes:
        signal: coefficient of the predicted clean sample.
        noise: coefficient of the predicted noise.
        std: standard deviation; 0 means the step is deterministic and has no density.
    """

    signal: float
    noise: float
    std: float

    def excess_noise(self, step: DenoisingStep) -> float:
        """The excess of noise in the next latent over its level, predicted and fresh noise together.

        sqrt(noise^2 + std^2) - sigma'. A few-step network was trained on no latent with more.

        Units: latent.
        """
        return math.hypot(self.noise, self.std) - step.next_level.sigma


class Sampler(Protocol):
    """How much of a step is random, and how its mean makes up for that."""

    def __call__(self, step: DenoisingStep, *, strength: float) -> Kernel:
        """The Gaussian of the step; ``strength`` = 0 is the deterministic sampler."""
        ...


def kernel_mean(kernel: Kernel, prediction: Prediction) -> Tensor:
    """Mean of the next latent, signal x0 + noise eps.

    Shapes: any, as the latent.   Units: latent.
    """
    return kernel.signal * prediction.x0 + kernel.noise * prediction.noise


def extrapolated(
    x: Tensor, prediction: Prediction, before: Prediction, step: DenoisingStep, level_before: Level
) -> Prediction:
    """The clean sample that makes a deterministic first-order step one of second order, from the previous prediction.

    x0 + (h / 2 h') (x0 - x0'), a prime marking the step before, h the step's length in log(alpha / sigma). Noise and
    clean sample give x as before. A step that ends on the clean sample does not change, nor does one after a step
    from pure noise.

    Shapes: all as the latent.   Units: latent.
    Source: DPM-Solver++, arXiv:2211.01095, algorithm 2 (2M), its midpoint form.
    """
    length = _log_snr(step.next_level) - _log_snr(step.level)
    length_before = _log_snr(step.level) - _log_snr(level_before)
    if math.isinf(length) or math.isinf(length_before):
        return prediction
    clean = prediction.x0 + length / (2 * length_before) * (prediction.x0 - before.x0)
    return x0_to_prediction(x, clean, step.level)


def _log_snr(level: Level) -> float:
    """Half of the logarithm of the ratio of the powers of signal and noise."""
    if level.sigma <= 0 or level.alpha <= 0:
        return math.inf if level.sigma <= 0 else -math.inf
    return math.log(level.alpha / level.sigma)


def velocity_to_prediction(x: Tensor, velocity: Tensor, level: Level) -> Prediction:
    """Reads a flow model's velocity v = eps - x0: x0 = x - sigma v, eps = x + alpha v.

    Shapes: x and velocity alike; any.   Units: latent.   Raises: ConfigError unless alpha = 1 - sigma.
    Source: rectified flow, arXiv:2209.03003; the sign is that of diffusers' flow models.
    """
    _require_flow(level, "a velocity", "use the converter of the scheduler's prediction_type")
    x, velocity = _upcast(x), _upcast(velocity)
    return Prediction(x - level.sigma * velocity, x + level.alpha * velocity)


def epsilon_to_prediction(x: Tensor, epsilon: Tensor, level: Level) -> Prediction:
    """Reads a noise prediction: x0 = (x - sigma eps) / alpha.

    Shapes: x and epsilon alike; any.   Units: latent.   Raises: ConfigError at alpha = 0, where x is independent of x0.
    Source: DDPM, arXiv:2006.11239, eq. 9 to 11.
    """
    if level.alpha <= 0:
        raise ConfigError(
            f"a noise prediction gives no clean sample at alpha = {level.alpha} (pure noise, zero terminal SNR); "
            "use a v- or sample-predicting model, or a schedule that starts below pure noise"
        )
    x, epsilon = _upcast(x), _upcast(epsilon)
    return Prediction((x - level.sigma * epsilon) / level.alpha, epsilon)


def v_to_prediction(x: Tensor, v: Tensor, level: Level) -> Prediction:
    """Reads a v-prediction: x0 = alpha x / r^2 - sigma v / r, eps = sigma x / r^2 + alpha v / r.

    r^2 = alpha^2 + sigma^2, and the network's v = (alpha eps - sigma x0) / r is that of the variance-preserving latent
    x / r. A VP schedule has r = 1: x0 = alpha x - sigma v, eps = sigma x + alpha v. On a VE one this equals diffusers'
    Euler samplers.

    Shapes: x and v alike; any.   Units: latent.
    Source: Progressive Distillation, arXiv:2202.00512, app. D, for r = 1.
    """
    r = math.hypot(level.alpha, level.sigma)
    alpha, sigma = level.alpha / r, level.sigma / r
    x, v = _upcast(x), _upcast(v)
    return Prediction(alpha / r * x - sigma * v, sigma / r * x + alpha * v)


def x0_to_prediction(x: Tensor, x0: Tensor, level: Level) -> Prediction:
    """Reads a prediction of the clean sample: eps = (x - alpha x0) / sigma.

    Shapes: x and x0 alike; any.   Units: latent.   Raises: ConfigError at sigma = 0, where there is no noise to read.
    Source: the definition of the level.
    """
    if level.sigma <= 0:
        raise ConfigError("a clean latent (sigma = 0) holds no noise to predict; leave the last level out")
    x, x0 = _upcast(x), _upcast(x0)
    return Prediction(x0, (x - level.alpha * x0) / level.sigma)


def secant_to_prediction(x: Tensor, next_x: Tensor, step: DenoisingStep) -> Prediction:
    """Reads any deterministic step: the clean sample and noise that x and x' have in common.

    x = alpha x0 + sigma eps and x' = alpha' x0 + sigma' eps, solved for x0 and eps. Of a flow schedule these are
    x - sigma u and x + alpha u with u = (x - x') / h, the mean velocity of a flow map.

    Shapes: x and next_x alike; any.   Units: latent.   Raises: ConfigError for levels with an SNR that does not rise.
    Source: the definition of the levels; MeanFlow, arXiv:2505.13447, for the mean velocity.
    """
    now, after = step.level, step.next_level
    rise = after.alpha * now.sigma - now.alpha * after.sigma
    if not rise > 0:
        raise ConfigError(f"a step is read where its signal-to-noise ratio rises, got {now} -> {after}")
    x, next_x = _upcast(x), _upcast(next_x)
    return Prediction((now.sigma * next_x - after.sigma * x) / rise, (after.alpha * x - now.alpha * next_x) / rise)


def flow_sde(step: DenoisingStep, *, strength: float) -> Kernel:
    """Flow-GRPO's sampler: s = strength sqrt(sigma / (1 - sigma)), std = s sqrt(h), noise = sigma' - std^2 / (2 sigma).

    The same mean as the published x (1 + s^2 dt / (2 sigma)) + v (1 + s^2 (1 - sigma) / (2 sigma)) dt, dt = -h.

    Units: strength is dimensionless; published 0.7 (SD3) to 1.2 (Qwen-Image).
    Raises: ConfigError off a flow schedule, for negative strength, or when the schedule's second sigma is 1 as well.
    Source: Flow-GRPO, arXiv:2505.05470, and its code. Deviations: where 1 - sigma < 1e-3 the denominator takes the
        schedule's second sigma if that is smaller (the code does so at sigma == 1 exactly and explodes just below it;
        sigma elsewhere in the formula is kept, as there); the step to sigma' = 0 is deterministic.
    """
    _require_flow_step(step, "flow_sde")
    sigma = step.level.sigma
    safe = min(sigma, step.second_sigma) if 1 - sigma < _NEAR_ONE else sigma
    if safe >= 1:
        raise ConfigError(f"flow_sde needs a schedule with a second sigma below 1, got {step.second_sigma}")
    return _euler_maruyama(step, strength, strength * math.sqrt(sigma / (1 - safe)))


def dance_sde(step: DenoisingStep, *, strength: float) -> Kernel:
    """DanceGRPO's sampler: constant diffusion s = strength, std = s sqrt(h), noise = sigma' - std^2 / (2 sigma).

    Units: strength is dimensionless; published 0.3 (FLUX), 0.25 (HunyuanVideo).
    Raises: ConfigError off a flow schedule or for negative strength.
    Source: DanceGRPO, arXiv:2505.07818, and its code. Deviation: the step to sigma' = 0 is deterministic.
    """
    _require_flow_step(step, "dance_sde")
    return _euler_maruyama(step, strength, strength)


def wan_sde(step: DenoisingStep, *, strength: float) -> Kernel:
    """Flow-GRPO's sampler for Wan: s = strength (sigma_min + (sigma_max - sigma_min) sigma), std = s sqrt(h).

    sigma_max is the schedule's second sigma and sigma_min = 0, its last; noise = sigma' - std^2 / (2 sigma).

    Units: strength is dimensionless; published 1.
    Raises: ConfigError off a flow schedule or for negative strength.
    Source: Flow-GRPO's code for Wan 2.1. Deviations: the factor strength; the step to sigma' = 0 is deterministic.
    """
    _require_flow_step(step, "wan_sde")
    return _euler_maruyama(step, strength, strength * step.second_sigma * step.level.sigma)


def log_sde(step: DenoisingStep, *, strength: float) -> Kernel:
    """``flow_sde`` integrated over the step: std = strength sqrt(log((1 - sigma') / (1 - sigma)) - h).

    noise = sigma' - std^2 / (2 sigma), sigma clamped below 1 - 3e-3 within the logarithm. ``flow_sde`` takes the rate
    at the beginning of the step, strength^2 sigma / (1 - sigma), which is the highest, for all of it.

    Units: strength is dimensionless; published 0.5 (HunyuanVideo 1.5).
    Raises: ConfigError off a flow schedule, for negative strength, or for a step so short below sigma = 1 that it ends
        where sigma is clamped.
    Source: SAGE-GRPO, arXiv:2603.21872, and its code (Tencent-Hunyuan/SAGE-GRPO, ``sde_step_with_logprob``). Deviation:
        the step to sigma' = 0 is deterministic.
    """
    _require_flow_step(step, "log_sde")
    if _is_deterministic(step, strength):
        return _deterministic(step)
    area = math.log((1 - step.next_level.sigma) / (1 - min(step.level.sigma, _LOG_MAX))) - step.length
    if not area > 0:
        raise ConfigError(
            f"log_sde holds sigma below {_LOG_MAX}, and this step ends at {step.next_level.sigma}: take fewer steps, "
            "a smaller shift, or sampler flow_sde"
        )
    return _with_score(step, strength * math.sqrt(area))


def cps(step: DenoisingStep, *, strength: float) -> Kernel:
    """Coefficients-preserving sampling: std = sigma' sin(strength pi / 2), noise = sqrt(sigma'^2 - std^2).

    signal = alpha'. Predicted and fresh noise together weigh exactly sigma' at any step length. Serves every schedule.
    Does not keep the marginals: the prediction of the noise spreads less than the noise, and nothing compensates for
    it. For standard normal data and an exact network on even flow levels, samples at 0.8 have a std of 0.72 in 10 steps
    and 0.81 in 1,000, where those without noise have 0.88 and 1.00.

    Units: strength in [0, 1], the share of the noise that is fresh; published 0.8.
    Raises: ConfigError for strength outside [0, 1].
    Source: Coefficients-Preserving Sampling, arXiv:2509.05952. Deviation: stated for flow, here for any (alpha, sigma).
    """
    _require_strength(strength)
    if strength > 1:
        raise ConfigError(f"cps takes a strength in [0, 1], the share of the noise that is fresh; got {strength}")
    if strength == 0 or step.length == 0:
        return _deterministic(step)
    angle, sigma = strength * math.pi / 2, step.next_level.sigma
    return Kernel(step.next_level.alpha, sigma * math.cos(angle), sigma * math.sin(angle))


def ddim(step: DenoisingStep, *, strength: float) -> Kernel:
    """DDIM with eta = strength: std = eta (sigma' / sigma) sqrt(sigma^2 - (alpha / alpha')^2 sigma'^2).

    noise = sqrt(sigma'^2 - std^2), signal = alpha'. Serves every schedule: on VE and EDM, eta = 1 is ancestral Euler.

    Units: strength is dimensionless; 0 is DDIM (Euler on flow, VE and EDM), 1 is DDPM's posterior.
    Raises: ConfigError for negative strength, one so large that std > sigma', or levels with an SNR that does not rise.
    Source: DDIM, arXiv:2010.02502, eq. 12 and 16, written in (alpha, sigma). Deviation: last level as the schedule
        gives it (the DDPO code reads alphabar of timestep 0 instead of the scheduler's final one).
    """
    if _is_deterministic(step, strength):
        return _deterministic(step)
    alpha, sigma = step.level.alpha, step.level.sigma
    next_alpha, next_sigma = step.next_level.alpha, step.next_level.sigma
    scaled_next_sigma = alpha * next_sigma / next_alpha if next_alpha > 0 else math.inf
    if scaled_next_sigma > sigma * (1 + _ROUNDING):
        raise ConfigError(
            f"ddim needs levels with an increasing signal-to-noise ratio, got {step.level} -> {step.next_level}"
        )
    std = strength * next_sigma / sigma * math.sqrt(max(sigma**2 - scaled_next_sigma**2, 0.0))
    if std > next_sigma * (1 + _ROUNDING):
        raise ConfigError(
            f"ddim would add noise of std {std:.6g} where the next level holds {next_sigma:.6g}; "
            f"from {step.level} lower the strength to {strength * next_sigma / std:.4g} or less, it is {strength}"
        )
    return Kernel(next_alpha, math.sqrt(max(next_sigma**2 - std**2, 0.0)), std)


SAMPLERS: Mapping[str, Sampler] = MappingProxyType(
    {"flow_sde": flow_sde, "dance_sde": dance_sde, "wan_sde": wan_sde, "log_sde": log_sde, "cps": cps, "ddim": ddim}
)


def _is_deterministic(step: DenoisingStep, strength: float) -> bool:
    """Whether the step is deterministic: at strength 0, and in a step that ends without noise or changes nothing."""
    _require_strength(strength)
    return strength == 0 or step.next_level.sigma == 0 or step.length == 0


def _deterministic(step: DenoisingStep) -> Kernel:
    return Kernel(step.next_level.alpha, step.next_level.sigma, 0.0)


def _euler_maruyama(step: DenoisingStep, strength: float, diffusion: float) -> Kernel:
    """The step of dx = (v + s^2 eps / (2 sigma)) dt + s dw, taken from sigma to sigma'."""
    if _is_deterministic(step, strength):
        return _deterministic(step)
    return _with_score(step, diffusion * math.sqrt(step.length))


def _with_score(step: DenoisingStep, std: float) -> Kernel:
    """The Euler step plus half the variance times the score, -eps / sigma."""
    return Kernel(step.next_level.alpha, step.next_level.sigma - std**2 / (2 * step.level.sigma), std)


def _upcast(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _require_strength(strength: float) -> None:
    if not (math.isfinite(strength) and strength >= 0):
        raise ConfigError(f"a sampler's strength must be finite and not negative, got {strength}; 0 is deterministic")


def _require_flow(level: Level, what: str, fix: str) -> None:
    if abs(level.alpha - (1 - level.sigma)) > _FLOW_TOLERANCE:
        raise ConfigError(f"{what} needs a flow schedule (alpha = 1 - sigma), got {level}; {fix}")


def _require_flow_step(step: DenoisingStep, sampler: str) -> None:
    for level in (step.level, step.next_level):
        _require_flow(level, sampler, "ddim and cps work on every schedule")
