"""The density of a Gaussian step, element by element, and how the elements of a sample become one log-probability.

D = number of elements of a latent that count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


def gaussian_logdensity(sample: Tensor, mean: Tensor, std: float | Tensor) -> Tensor:
    """Log-density of each element of a step: -(x - mean)^2 / (2 std^2) - log std - log(2 pi) / 2.

    Pass the sample detached: the gradient is meant to reach the mean only.

    Shapes: sample and mean alike; std a number or broadcastable.   Units: latents -> nats per element.
    Raises: ShapeError for a number std <= 0: a deterministic step has no density; mask it.
    Source: DDPO, arXiv:2305.13301, and every Gaussian-step method since.
    """
    require_positive(std)
    log_std = std.log() if isinstance(std, torch.Tensor) else math.log(std)
    return -((sample - mean) ** 2) / (2 * std**2) - log_std - _HALF_LOG_TWO_PI


def squared_error_logdensity(sample: Tensor, mean: Tensor, std: float | Tensor) -> Tensor:
    """Minus the squared error of each element, -(x - mean)^2; ``std`` is accepted and unused.

    Not a normalization of the Gaussian: without the factor 1 / (2 std^2) a step of small std no longer weighs more than
    one of large std, that is, each step's log-ratio is multiplied by 2 std^2. Ratios are much closer to 1, and clip
    ranges are correspondingly smaller.

    Shapes: sample and mean alike.   Units: latents -> squared latents per element.
    Source: the code released with Coefficients-Preserving Sampling, arXiv:2509.05952.
    """
    return -((sample - mean) ** 2)


DENSITIES: Mapping[str, Callable[[Tensor, Tensor, float | Tensor], Tensor]] = MappingProxyType(
    {"gaussian": gaussian_logdensity, "squared_error": squared_error_logdensity}
)


def element_mean(total_B: Tensor, count: int | Tensor) -> Tensor:
    """Mean over a sample's D elements, total / D; 0 for a sample of no elements.

    A change of weights that moves every element alike moves this log-ratio with a spread of about 1 / sqrt(D), so the
    clip range has to shrink with the resolution: 1e-4 for a 512^2 image is not 1e-4 for a video.

    Shapes: (B,) and an int or (B,) -> (B,).   Units: nats per sample -> nats per element.
    Raises: ShapeError for a count below 1 that is an int.
    Source: Flow-GRPO's and DanceGRPO's code.
    """
    return total_B / _divisor(count, total_B.dtype)


def element_sum_sqrt(total_B: Tensor, count: int | Tensor) -> Tensor:
    """Sum over a sample's D elements divided by sqrt(D); 0 for a sample of no elements.

    The spread of this log-ratio does not depend on D, so one clip range serves every resolution and length.

    Shapes: (B,) and an int or (B,) -> (B,).   Units: nats per sample -> nats per sqrt(element).
    Raises: ShapeError for a count below 1 that is an int.
    Source: own.
    """
    return total_B / _divisor(count, total_B.dtype) ** 0.5


REDUCTIONS: Mapping[str, Callable[[Tensor, int | Tensor], Tensor]] = MappingProxyType(
    {"mean": element_mean, "sum_sqrt": element_sum_sqrt}
)


def require_positive(std: float | Tensor) -> None:
    """Rejects a number that is no standard deviation; a tensor is trusted, since reading it would wait for the device.

    Raises: ShapeError.
    """
    if not isinstance(std, torch.Tensor) and not std > 0:
        raise ShapeError(f"a Gaussian step needs std > 0, got {std}; mask deterministic steps out")


def _divisor(count: int | Tensor, dtype: torch.dtype) -> int | Tensor:
    if isinstance(count, torch.Tensor):
        return count.to(dtype).clamp(min=1)
    if count < 1:
        raise ShapeError(f"a sample needs at least one element, got count = {count}")
    return count
