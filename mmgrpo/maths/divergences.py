"""Divergences from another policy: estimates from log-probabilities, and closed forms of Gaussian steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import ShapeError
from mmgrpo.maths.gaussian import require_positive
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def k1(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """The log-ratio logprob - other_logprob: unbiased for KL(policy || other), of either sign, of high variance.

    Its gradient is the score, with mean 0: useful in a reward, not as a loss term.

    Shapes: alike; any.   Units: nats.   Source: Schulman, Approximating KL Divergence (2020), joschu.net.
    """
    return logprob - other_logprob


def k2(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """Half the squared log-ratio, (logprob - other_logprob)^2 / 2: never negative, biased, low variance.

    On samples of the policy its gradient is unbiased for that of KL(policy || other).

    Shapes: alike; any.   Units: nats.   Source: Schulman, Approximating KL Divergence (2020), joschu.net.
    """
    return 0.5 * (logprob - other_logprob) ** 2


def k3(logprob: Tensor, other_logprob: Tensor) -> Tensor:
    """exp(d) - 1 - d with d = other_logprob - logprob: unbiased for KL(policy || other), never negative, low variance.

    On samples of the policy its gradient is that of the other direction, KL(other || policy). It is infinite where d is
    above 88 nats in float32; a coefficient of 0 gives a gradient of 0 there too.

    Shapes: alike; any.   Units: nats.
    Source: Schulman, Approximating KL Divergence (2020), joschu.net; DeepSeekMath, arXiv:2402.03300, eq. 4.
    """
    difference = other_logprob - logprob
    return _expm1()(difference) - difference


@cache
def _expm1() -> Callable[[Tensor], Tensor]:
    """``torch.expm1`` with a gradient of 0 where its factor is 0, and not 0 times infinity."""

    class Expm1(torch.autograd.Function):  # made on first use: this module is imported without torch
        @staticmethod
        def forward(ctx: Any, value: Tensor) -> Tensor:
            grown = torch.expm1(value)
            ctx.save_for_backward(grown)
            return grown

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            (gradient,), (grown,) = gradients, ctx.saved_tensors
            return (gradient * (grown + 1)).where(gradient != 0, 0.0)

    return Expm1.apply


LEAST_LOGPROB = -1e30
"""Log-probability of impossible tokens: minus infinity would make 0 times infinity, and NaN in a gradient."""


def generalized_jsd(logits_mV: Tensor, other_mV: Tensor, beta: float) -> Tensor:
    """Generalized Jensen-Shannon divergence of the distribution p of all tokens from another one q.

    D = beta KL(q || m) + (1 - beta) KL(p || m), m = beta q + (1 - beta) p.
    At beta 0 it is instead KL(q || p), the forward divergence if q is a teacher, at beta 1 KL(p || q), the reverse one.

    Shapes: logits (m, V) x 2 -> (m,).   Units: nats; beta is dimensionless, 0 to 1.
    Source: GKD, arXiv:2306.13649, eq. 1, and TRL's ``GKDTrainer.generalized_jsd_loss``, with its limits at 0 and 1.
    """
    logprob_mV, other_logprob_mV = _possible_logprobs(logits_mV), _possible_logprobs(other_mV)
    if beta == 0:
        return _kl(other_logprob_mV, logprob_mV)
    if beta == 1:
        return _kl(logprob_mV, other_logprob_mV)
    mixture_mV = torch.logaddexp(logprob_mV + math.log1p(-beta), other_logprob_mV + math.log(beta))
    return beta * _kl(other_logprob_mV, mixture_mV) + (1 - beta) * _kl(logprob_mV, mixture_mV)


def sorted_distance(logits_mV: Tensor, other_mU: Tensor) -> Tensor:
    """L1 distance of the sorted probabilities of two distributions, whose tokens may be others.

    D = sum_i |p_(i) - q_(i)|, p_(i) the i-th largest probability; the shorter one is padded with 0.

    Shapes: logits (m, V), (m, U) -> (m,).   Units: probability, 0 to 2.
    Source: ULD, arXiv:2402.12030, the Wasserstein distance with equal costs, and TRL's ``ULDLoss``.
    """
    sorted_mV, sorted_mU = (x.softmax(-1).sort(-1, descending=True).values for x in (logits_mV, other_mU))
    V, U = sorted_mV.shape[-1], sorted_mU.shape[-1]
    pad = torch.nn.functional.pad
    return (pad(sorted_mV, (0, max(U - V, 0))) - pad(sorted_mU, (0, max(V - U, 0)))).abs().sum(-1)


def _possible_logprobs(logits_mV: Tensor) -> Tensor:
    logprob_mV = logits_mV.log_softmax(-1)
    return logprob_mV.masked_fill(logprob_mV == -torch.inf, LEAST_LOGPROB)


def _kl(logprob_mV: Tensor, other_mV: Tensor) -> Tensor:
    return (logprob_mV.exp() * (logprob_mV - other_mV)).sum(-1)


LOGPROB_DIVERGENCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"k1": k1, "k2": k2, "k3": k3})


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """One Gaussian step of a policy.

    Attributes:
        mean: mean of the next latent.
        velocity: eps - x0, predicted by the network.
        std: standard deviation of the step: a number is a constant of the schedule, the same for both policies; a
            tensor is predicted by the network (learned variance).
        step: length h of the step in units of sigma.
    """

    mean: Tensor
    velocity: Tensor
    std: float | Tensor
    step: float

    def __post_init__(self) -> None:
        if not self.step >= 0:
            raise ShapeError(f"a step's length h = sigma - sigma_next must not be negative, got {self.step}")


def gaussian(now: Moments, other: Moments) -> Tensor:
    """KL of two Gaussians, element by element: (mean - other mean)^2 / (2 std^2) where they are of equal spread.

    Where the network sets the spread, log(other std / std) + (std^2 + (mean - other mean)^2) / (2 other std^2) - 1 / 2.

    Shapes: as the mean.   Units: nats per element.   Raises: ShapeError for a number std <= 0.
    Source: closed form; the trust region of Flow-DPPO, arXiv:2606.11025, and the drift b of GRPO-Guard,
        arXiv:2510.22319, are its mean over the elements, with the sampling policy as the other.
    """
    require_positive(now.std)
    error = (now.mean - other.mean) ** 2
    if isinstance(now.std, torch.Tensor) and isinstance(other.std, torch.Tensor):
        return (other.std / now.std).log() + (now.std**2 + error) / (2 * other.std**2) - 0.5
    return error / (2 * now.std**2)


def gaussian_no_dt(now: Moments, other: Moments) -> Tensor:
    """The KL times the step's length: (mean - other mean)^2 / (2 std^2 / h).

    For the SDE samplers std^2 / h = s^2, so this leaves dt out; weights of published recipes are meant for it.

    Shapes: as the mean.   Units: nats per element, times h.   Raises: ShapeError for a number std <= 0.
    Source: Flow-GRPO's code for SD3, FLUX and Qwen-Image. Deviation from its paper, which has ``gaussian``.
    """
    return now.step * gaussian(now, other)


def velocity_mse(now: Moments, other: Moments) -> Tensor:
    """Squared difference of the velocities, element by element; does not depend on the sampler or its noise.

    Shapes: as the velocity.   Units: squared latents per element.
    Source: DiffusionNFT's and AWM's code.
    """
    return (now.velocity - other.velocity) ** 2


GAUSSIAN_DIVERGENCES: Mapping[str, Callable[[Moments, Moments], Tensor]] = MappingProxyType(
    {"gaussian": gaussian, "gaussian_no_dt": gaussian_no_dt, "velocity_mse": velocity_mse}
)
