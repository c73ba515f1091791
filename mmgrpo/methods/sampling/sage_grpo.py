"""SAGE-GRPO, arXiv:2603.21872.

Denoising steps are weighted by the inverse of their gradient scale, relative to its median.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.steps import STEP_WEIGHTS, require_mask
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Noise


@STEP_WEIGHTS.register("equal_gradient")
def equal_gradient_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """The median over the sample of N, over N, 0 elsewhere: no step's gradient is larger only by its position.

    N = |d mean / d velocity| / std = (h + std^2 (1 - sigma) / (2 sigma)) / std, of samplers with a mean of an Euler
    step plus half the variance times the score (``flow_sde``, ``dance_sde``, ``wan_sde``, ``log_sde``). Of an even
    number of steps the lower of the two in the middle is the median; steps without noise weigh 0.

    Shapes: (B, T) -> (B, T).   Units: dimensionless.   Raises: ShapeError if the shapes differ.
    Source: SAGE-GRPO, arXiv:2603.21872, and its code (Tencent-Hunyuan/SAGE-GRPO, ``compute_grad_balancing_factors``).
        Deviation: the median is over the decisions that train, where its code takes all of the schedule.
    """
    require_mask(noise, mask_BT)
    sampled_BT = mask_BT & (noise.std_BT > 0)
    std_BT, level_BT = (
        each_BT.where(sampled_BT, torch.ones_like(each_BT)) for each_BT in (noise.std_BT, noise.level_BT)
    )
    norm_BT = (noise.step_BT + std_BT**2 * (1 - level_BT) / (2 * level_BT)) / std_BT
    median_B1 = norm_BT.where(sampled_BT, torch.nan).nanmedian(1, keepdim=True).values
    return (median_B1 / norm_BT).where(sampled_BT, 0.0)
