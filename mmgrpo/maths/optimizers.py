"""Optimizers: the update of the trained weights from their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OptimizerFactory = Callable[[Sequence["Tensor"], float], "Optimizer"]
"""(parameters, learning rate) -> the optimizer of torch."""

OPTIMIZERS: Registry[Callable[..., OptimizerFactory]] = Registry()
"""Optimizers by the name that ``update.optimizer`` uses; called with their numbers, they return an OptimizerFactory."""


@OPTIMIZERS.register("adamw")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW:
    """AdamW of torch, fused where all weights are on CPUs or CUDA devices.

    Attributes:
        betas: decay of the first and of the second moment, each in [0, 1).
        eps: added to the denominator, above 0.
        weight_decay: decoupled weight decay, in units of the learning rate; it applies to all weights.
    """

    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError for a number out of its range."""
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas of adamw must be two numbers from 0 to below 1, got {list(self.betas)}")
        if not self.eps > 0:
            raise ConfigError(f"eps of adamw must be above 0, got {self.eps}")
        if not self.weight_decay >= 0:
            raise ConfigError(f"weight_decay of adamw must be at least 0, got {self.weight_decay}")

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Optimizer:
        """The optimizer.

        Args:
            parameters: the trained weights, or the shards of this process.
            lr: learning rate, before its schedule.

        Returns:
            The optimizer of torch.
        """
        fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
        b1, b2 = self.betas
        return torch.optim.AdamW(
            parameters, lr=lr, betas=(b1, b2), eps=self.eps, weight_decay=self.weight_decay, fused=fused
        )
