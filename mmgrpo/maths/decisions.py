"""Decisions as an objective sees them.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from mmgrpo.errors import ShapeError
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions:
    """Any rows and columns of a rollout, as the objective sees them; every tensor has the same shape.

    Values at decisions that ``mask_BT`` leaves out may be anything, NaN and infinity included.

    Attributes:
        logprob_BT: log-probability under the weights of now, with grad.
        old_logprob_BT: log-probability under the policy that sampled.
        advantage_BT: advantage of each decision.
        mask_BT: bool, the decisions to train on.
        weight_BT: weight of each decision's surrogate (``Objective.weights``).
        segment_BT: integer chunk of each decision.
        kl_weight_BT: weight of each decision's divergence and entropy (``Objective.kl_weights``); None means
            ``weight_BT``, which is right only without a step weight.
        kl_BT: divergence from the reference, with grad.
        entropy_BT: entropy, with grad.
        drift_BT: divergence from the policy that sampled, with grad.
        std_BT: standard deviation of each Gaussian decision.
        ratio_mask_BT: bool, the decisions that a ratio above the level of one is taken over; None for ``mask_BT``.
    """

    logprob_BT: Tensor
    old_logprob_BT: Tensor
    advantage_BT: Tensor
    mask_BT: Tensor
    weight_BT: Tensor
    segment_BT: Tensor
    kl_weight_BT: Tensor | None = None
    kl_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    drift_BT: Tensor | None = None
    std_BT: Tensor | None = None
    ratio_mask_BT: Tensor | None = None

    def __post_init__(self) -> None:
        shape = self.logprob_BT.shape
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None and (len(shape) != 2 or tensor.shape != shape):
                raise ShapeError(
                    f"{field.name} must be (B, T) like logprob_BT {tuple(shape)}, got {tuple(tensor.shape)}"
                )
        if self.mask_BT.dtype != torch.bool:
            raise ShapeError(f"mask_BT must be bool, got {self.mask_BT.dtype}")
