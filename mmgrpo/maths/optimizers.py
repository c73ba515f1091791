"""Optimizers: the update of the trained weights from their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.system.extras import required
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

OptimizerFactory = Callable[[Sequence["Tensor"], float], "Optimizer"]
"""(parameters, learning rate) -> the optimizer of torch."""

OPTIMIZERS: Registry[Callable[..., OptimizerFactory]] = Registry(arguments=())
"""Optimizers by the name that ``update.optimizer`` uses; called with their numbers, they return an OptimizerFactory.

A factory may have ``is_elementwise``: whether each entry of a weight moves by its gradients alone, as sharded weights
need; and ``state_bytes``, the bytes of its state for a weight of a shape. Without them it counts as AdamW.
"""


def _adamw_bytes(shape: Sequence[int]) -> int:
    return 8 * math.prod(shape) + 4


def _require_numbers(name: str, *, betas: Sequence[float], eps: float, weight_decay: float) -> None:
    """Raises ConfigError for a number out of its range."""
    if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
        raise ConfigError(f"betas of {name} must be two numbers from 0 to below 1, got {list(betas)}")
    if not eps > 0:
        raise ConfigError(f"eps of {name} must be above 0, got {eps}")
    if not weight_decay >= 0:
        raise ConfigError(f"weight_decay of {name} must be at least 0, got {weight_decay}")


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
        _require_numbers("adamw", betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

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


@OPTIMIZERS.register("adamw_8bit")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW8bit:
    """AdamW of bitsandbytes with moments in 8 bit, in blocks of 256 values with a scale each.

    Source: Dettmers et al., 8-bit Optimizers via Block-wise Quantization, arXiv:2110.02861.

    Attributes:
        betas: decay of the first and of the second moment, each in [0, 1).
        eps: added to the denominator, above 0.
        weight_decay: decoupled weight decay, in units of the learning rate; it applies to all weights.
        min_8bit_size: weights with fewer entries have moments in float32.
        paged: whether moments are in unified memory, which the driver moves to the host if the GPU is full.
    """

    is_elementwise: ClassVar[bool] = False
    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    min_8bit_size: int = 4096
    paged: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a number out of its range."""
        _require_numbers("adamw_8bit", betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Optimizer:
        """As ``AdamW``. Raises MissingPackageError without bitsandbytes."""
        optim = required("bitsandbytes.optim", "update.optimizer adamw_8bit")
        return optim.AdamW8bit(
            parameters,
            lr=lr,
            betas=tuple(self.betas),
            eps=self.eps,
            weight_decay=self.weight_decay,
            min_8bit_size=self.min_8bit_size,
            is_paged=self.paged,
        )

    def state_bytes(self, shape: Sequence[int]) -> int:
        """Two moments of a byte with a float32 scale for each 256 values, and two tables of 256 values."""
        size = math.prod(shape)
        return 2 * (size + 4 * -(-size // 256) + 4 * 256) if size >= self.min_8bit_size else 8 * size


@OPTIMIZERS.register("adafactor")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Adafactor:
    """Adafactor of transformers at the learning rate of the run: second moments of matrices by their rows and columns.

    Source: Shazeer and Stern, Adafactor, arXiv:1804.04235, algorithm 4, without its relative step size.

    Attributes:
        eps: added to the squared gradient; and the minimum of a weight's root mean square with ``scale_parameter``.
        clip_threshold: maximum root mean square of an update, before the learning rate.
        decay_rate: c of the decay 1 - t^c of second moments at update t.
        beta1: decay of a first moment; null: none.
        weight_decay: decoupled weight decay, in units of the learning rate.
        scale_parameter: multiply the learning rate by the root mean square of the weight.
    """

    is_elementwise: ClassVar[bool] = False
    eps: Sequence[float] = (1e-30, 1e-3)
    clip_threshold: float = 1.0
    decay_rate: float = -0.8
    beta1: float | None = None
    weight_decay: float = 0.0
    scale_parameter: bool = False

    def __post_init__(self) -> None:
        """Raises ConfigError for a number out of its range."""
        if len(self.eps) != 2 or not all(eps > 0 for eps in self.eps):
            raise ConfigError(f"eps of adafactor must be two numbers above 0, got {list(self.eps)}")
        if not self.clip_threshold > 0 or not self.decay_rate < 0 or not self.weight_decay >= 0:
            raise ConfigError(
                "adafactor needs clip_threshold above 0, decay_rate below 0 and weight_decay of at least 0, got "
                f"{self.clip_threshold}, {self.decay_rate} and {self.weight_decay}"
            )
        if self.beta1 is not None and not 0 <= self.beta1 < 1:
            raise ConfigError(f"beta1 of adafactor must be from 0 to below 1, or null, got {self.beta1}")

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Optimizer:
        """As ``AdamW``."""
        optimization = required("transformers.optimization", "update.optimizer adafactor")
        return optimization.Adafactor(
            parameters,
            lr=lr,
            eps=tuple(self.eps),
            clip_threshold=self.clip_threshold,
            decay_rate=self.decay_rate,
            beta1=self.beta1,
            weight_decay=self.weight_decay,
            scale_parameter=self.scale_parameter,
            relative_step=False,
        )

    def state_bytes(self, shape: Sequence[int]) -> int:
        """A float32 number for each row and each column of a matrix, for each entry of a vector."""
        size = math.prod(shape)
        second = size if len(shape) < 2 else size // max(shape[-1], 1) + size // max(shape[-2], 1)
        return 4 * (second + (0 if self.beta1 is None else size))


@OPTIMIZERS.register("muon")
@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Muon:
    """Muon of torch for matrices, AdamW for all other weights: vectors, convolutions, embeddings and output heads.

    Muon orthogonalizes the momentum of a matrix by Newton-Schulz iterations. Both factors of an adapter are matrices.

    Source: Jordan et al., Muon, kellerjordan.github.io/posts/muon, for the weights that AdamW takes; Liu et al., Muon
    is Scalable for LLM Training, arXiv:2502.16982, for ``match_rms_adamw``, with which both use one learning rate.

    Attributes:
        momentum: of Muon.
        nesterov: whether it is Nesterov's.
        ns_steps: Newton-Schulz iterations.
        adjust_lr_fn: factor on the learning rate of an (m, n) matrix; match_rms_adamw: 0.2 sqrt(max(m, n)); original:
            sqrt(max(1, m / n)).
        betas: of AdamW.
        eps: of AdamW.
        weight_decay: decoupled weight decay, in units of the learning rate, of all weights.
    """

    is_elementwise: ClassVar[bool] = False
    momentum: float = 0.95
    nesterov: bool = True
    ns_steps: int = 5
    adjust_lr_fn: str = "match_rms_adamw"
    betas: Sequence[float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Raises ConfigError for a number out of its range."""
        _require_numbers("muon", betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        if not 0 <= self.momentum < 1 or not 0 < self.ns_steps < 100:
            raise ConfigError(
                "muon needs momentum from 0 to below 1 and ns_steps from 1 to 99, got "
                f"{self.momentum} and {self.ns_steps}"
            )

    def __call__(self, parameters: Sequence[Tensor], lr: float) -> Optimizer:
        """As ``AdamW``. Raises ConfigError for an unknown ``adjust_lr_fn``."""
        matrices = [parameter for parameter in parameters if self._is_matrix(parameter)]
        others = [parameter for parameter in parameters if not self._is_matrix(parameter)]
        adamw = AdamW(betas=self.betas, eps=self.eps, weight_decay=self.weight_decay)
        if not matrices:
            return adamw(others, lr)
        try:
            muon = torch.optim.Muon(
                matrices,
                lr=lr,
                weight_decay=self.weight_decay,
                momentum=self.momentum,
                nesterov=self.nesterov,
                ns_steps=self.ns_steps,
                adjust_lr_fn=self.adjust_lr_fn,
            )
        except ValueError as error:
            raise ConfigError(f"update.optimizer muon: {error}; it is match_rms_adamw or original") from error
        if not others:
            return muon
        from mmgrpo.system.joint_optimizer import JointOptimizer

        return JointOptimizer([muon, adamw(others, lr)])

    def state_bytes(self, shape: Sequence[int]) -> int:
        """A float32 momentum of a matrix; of other weights, the state of AdamW. Embeddings count as matrices."""
        return 4 * math.prod(shape) if len(shape) == 2 else _adamw_bytes(shape)

    @staticmethod
    def _is_matrix(parameter: Tensor) -> bool:
        from mmgrpo.system.embedding_weights import is_embedding

        return parameter.ndim == 2 and not is_embedding(parameter)
