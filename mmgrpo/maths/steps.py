"""Weights of the denoising steps in the loss, from the step sizes of a rollout.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Noise


def inverse_step_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """1 / h on the masked decisions, 0 elsewhere: undoes the factor h that a step's length puts on its gradient.

    Shapes: (B, T) -> (B, T).   Units: 1 / sigma.   Raises: ShapeError if the shapes differ.
    Source: GRPO-Guard, arXiv:2510.22319, and its code. Not normalised, as there: it also scales the loss.
    """
    _require_mask(noise, mask_BT)
    return mask_BT / noise.step_BT.where(mask_BT, torch.ones_like(noise.step_BT))


def noise_std_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """std of each masked decision over its mean in the sample, 0 elsewhere: steps that explore more weigh more.

    A sample's weights have mean 1 over its masked decisions; all are 0 where none of them is random.

    Shapes: (B, T) -> (B, T).   Units: dimensionless.   Raises: ShapeError if the shapes differ.
    Source: TempFlow-GRPO, arXiv:2508.04324, weight proportional to s sqrt(h). Deviation: its code multiplies std by a
        fixed 2.25, which gives mean 1 for its own ten steps only.
    """
    _require_mask(noise, mask_BT)
    std_BT = noise.std_BT * mask_BT
    mean_B1 = std_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    return std_BT / mean_B1.where(mean_B1 > 0, torch.ones_like(mean_B1))


def scaled_noise_std_weight(noise: Noise, mask_BT: Tensor, *, factor: float) -> Tensor:
    """factor times the std of each masked decision, 0 elsewhere: ``noise_std`` with a fixed number for its mean.

    Steps of different rollouts are weighed against each other too, which a mean over the sample's own cannot do where a
    sample has one random step.

    Shapes: (B, T) -> (B, T).   Units: factor is 1 / latent (2.25).   Raises: ShapeError if the shapes differ.
    Source: TempFlow-GRPO, arXiv:2508.04324, and its code (Shredded-Pork/TempFlow-GRPO, ``train_sd3_pr.py``).
    """
    _require_mask(noise, mask_BT)
    return factor * noise.std_BT * mask_BT


def equal_gradient_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """The median over the sample of N, over N, 0 elsewhere: no step's gradient is larger by its place alone.

    N = |d mean / d velocity| / std = (h + std^2 (1 - sigma) / (2 sigma)) / std, of samplers whose mean is an Euler step
    plus half the variance times the score (``flow_sde``, ``dance_sde``, ``wan_sde``, ``log_sde``). Of an even number of
    steps the lower of the two in the middle is the median; steps without noise weigh 0.

    Shapes: (B, T) -> (B, T).   Units: dimensionless.   Raises: ShapeError if the shapes differ.
    Source: SAGE-GRPO, arXiv:2603.21872, and its code (Tencent-Hunyuan/SAGE-GRPO, ``compute_grad_balancing_factors``).
        Deviation: the median is over the decisions that train, where its code takes all of the schedule.
    """
    _require_mask(noise, mask_BT)
    drawn_BT = mask_BT & (noise.std_BT > 0)
    std_BT, level_BT = (each_BT.where(drawn_BT, torch.ones_like(each_BT)) for each_BT in (noise.std_BT, noise.level_BT))
    norm_BT = (noise.step_BT + std_BT**2 * (1 - level_BT) / (2 * level_BT)) / std_BT
    median_B1 = norm_BT.where(drawn_BT, torch.nan).nanmedian(1, keepdim=True).values
    return (median_B1 / norm_BT).where(drawn_BT, 0.0)


STEP_WEIGHTS: Registry[Callable[..., Tensor]] = Registry(
    {
        "inverse_step": inverse_step_weight,
        "noise_std": noise_std_weight,
        "scaled_noise_std": scaled_noise_std_weight,
        "equal_gradient": equal_gradient_weight,
    }
)


def _require_mask(noise: Noise, mask_BT: Tensor) -> None:
    if mask_BT.dtype != torch.bool or mask_BT.shape != noise.std_BT.shape or mask_BT.shape != noise.step_BT.shape:
        raise ShapeError(
            f"mask_BT must be bool of the noise's shape, got {mask_BT.dtype} {tuple(mask_BT.shape)} "
            f"for std {tuple(noise.std_BT.shape)} and step {tuple(noise.step_BT.shape)}"
        )
