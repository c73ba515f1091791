"""The prediction errors of a denoiser on re-noised samples, as DiffusionNFT weighs them.

x_t = (1 - t) x0 + t eps is a sample with noise at level t; a velocity v predicts eps - x0, so x_t - t v predicts x0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

LEAST_ERROR = 1e-5
"""The mean absolute error that a squared one is divided by is at least this, in latent units."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchingErrors:
    """Errors of the two predictions that an update of some strength implies.

    Attributes:
        positive: error of the prediction toward the current policy, one per sample, with grad.
        negative: error of the prediction in the opposite direction, likewise.
    """

    positive: Tensor
    negative: Tensor


def matching_errors(
    x0: Tensor, noised: Tensor, level: Tensor, velocity: Tensor, old_velocity: Tensor, *, strength: float
) -> MatchingErrors:
    """Errors of two predictions of the sample: one between the old and the current policy, one mirrored.

    v+ = b v + (1 - b) v_old;   v- = (1 + b) v_old - b v;   x+- = x_t - t v+-;
    e+- = mean (x+- - x0)^2 / sg max(mean |x+- - x0|, 1e-5), means over all axes but the first, sg = no gradient.

    Shapes: (B, ...) x 2, (B,) levels, (B, ...) x 2 -> (B,) x 2.   Units: latents; strength b is dimensionless (1, 0.1).
    Raises: ConfigError for a strength of 0 or less.
    Source: DiffusionNFT, arXiv:2509.16117, and its code (NVlabs/DiffusionNFT, ``train_nft_sd3.py``).
    """
    if strength <= 0:
        raise ConfigError(f"the strength of the implied update must be above 0, got {strength}")
    old_velocity = old_velocity.detach()
    level = level.reshape(-1, *[1] * (x0.ndim - 1))
    ahead = strength * velocity + (1 - strength) * old_velocity
    back = (1 + strength) * old_velocity - strength * velocity
    return MatchingErrors(
        positive=_normalized_error(noised - level * ahead - x0), negative=_normalized_error(noised - level * back - x0)
    )


def _normalized_error(error: Tensor) -> Tensor:
    flat = error.flatten(1)
    return flat.square().mean(1) / flat.detach().abs().double().mean(1).clamp(min=LEAST_ERROR).to(flat)
