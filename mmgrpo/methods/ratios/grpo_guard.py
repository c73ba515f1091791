"""GRPO-Guard, arXiv:2510.22319.

The loss of a denoising step is divided by its step size, which otherwise scales its gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.steps import STEP_WEIGHTS, require_mask
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Noise


@STEP_WEIGHTS.register("inverse_step")
def inverse_step_weight(noise: Noise, mask_BT: Tensor) -> Tensor:
    """1 / h on the masked decisions, 0 elsewhere: undoes the factor h that a step's length puts on its gradient.

    Shapes: (B, T) -> (B, T).   Units: 1 / sigma.   Raises: ShapeError if the shapes differ.
    Source: GRPO-Guard, arXiv:2510.22319, and its code. Not normalized, as there: it also scales the loss.
    """
    require_mask(noise, mask_BT)
    return mask_BT / noise.step_BT.where(mask_BT, torch.ones_like(noise.step_BT))
