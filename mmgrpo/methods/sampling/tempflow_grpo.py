"""TempFlow-GRPO (one branching step at a time), arXiv:2508.04324.

Denoising steps are weighted by the standard deviation of their noise, times a fixed factor.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.maths.steps import STEP_WEIGHTS, require_mask

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Noise


@STEP_WEIGHTS.register("scaled_noise_std")
def scaled_noise_std_weight(noise: Noise, mask_BT: Tensor, *, factor: float) -> Tensor:
    """factor times the std of each masked decision, 0 elsewhere: ``noise_std`` with a fixed number for its mean.

    Steps of different rollouts are weighed against each other too, which a mean over the sample's own cannot do where a
    sample has one random step.

    Shapes: (B, T) -> (B, T).   Units: factor is 1 / latent (2.25).   Raises: ShapeError if the shapes differ.
    Source: TempFlow-GRPO, arXiv:2508.04324, and its code (Shredded-Pork/TempFlow-GRPO, ``train_sd3_pr.py``).
    """
    require_mask(noise, mask_BT)
    return factor * noise.std_BT.where(mask_BT, 0.0)
