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

STEP_WEIGHTS: Registry[Callable[..., Tensor]] = Registry(arguments=("noise", "mask_BT"))


@STEP_WEIGHTS.register("noise_std")
def noise_std_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """std of each masked decision over its mean in the sample, 0 elsewhere: steps that explore more weigh more.

    A sample's weights have mean 1 over its masked decisions; all are 0 where none of them is random.

    Shapes: (B, T) -> (B, T).   Units: dimensionless.   Raises: ShapeError if the shapes differ.
    Source: TempFlow-GRPO, arXiv:2508.04324, weight proportional to s sqrt(h). Deviation: its code multiplies std by a
        fixed 2.25, which gives mean 1 for its own ten steps only.
    """
    require_mask(noise, mask_BT)
    std_BT = noise.std_BT.where(mask_BT, 0.0)
    mean_B1 = std_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True).clamp(min=1)
    return std_BT / mean_B1.where(mean_B1 > 0, torch.ones_like(mean_B1))


def require_mask(noise: Noise, mask_BT: Tensor) -> None:
    """Raises ShapeError for a mask that is not bool or not of the noise's shape."""
    if mask_BT.dtype != torch.bool or mask_BT.shape != noise.std_BT.shape or mask_BT.shape != noise.step_BT.shape:
        raise ShapeError(
            f"mask_BT must be bool of the noise's shape, got {mask_BT.dtype} {tuple(mask_BT.shape)} "
            f"for std {tuple(noise.std_BT.shape)} and step {tuple(noise.step_BT.shape)}"
        )
