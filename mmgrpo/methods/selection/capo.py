"""CAPO (curvature-aware), arXiv:2510.00819.

Decisions are left out if their last-layer gradient step would move the objective or the policy too far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter
from mmgrpo.values import GRADIENT_CURVATURE, GRADIENT_SQUARE

if TYPE_CHECKING:
    from torch import Tensor


def _check_within_curvature(shift: float, divergence: float, lr: float | None) -> None:
    if not min(1.0 if lr is None else lr, shift, divergence) > 0:
        raise ConfigError(f"within_curvature needs numbers above 0, got {lr}, {shift}, {divergence}")


@FILTERS.register
@sample_filter(values=(GRADIENT_SQUARE, GRADIENT_CURVATURE), check=_check_within_curvature)
def within_curvature(
    feedback: Feedback, advantage_BT: Tensor, *, shift: float, divergence: float, lr: float | None = None
) -> Tensor:
    """Decisions with a step of gradient ascent in the last layer that would move the objective and the policy little.

    keep = |lr A^2 a + lr^2 A^3 c / 2| < shift and lr^2 A^2 a^2 / 2 < divergence.

    a is the squared gradient of the log-probability and c the curvature along it; the step is lr A times the gradient.

    Units: lr is the step, by default ``update.optimizer.lr``; shift in those of the objective; divergence in nats.
    Raises: ConfigError unless all three are above 0.
    Source: CAPO, arXiv:2510.00819, eq. 10, and its code (luckeciano/stable-pg-llm, ``grpo_entropy_trainer.py``,
        ``sparse_sgd_model.py``, hessian_symmetric_clipping).
    """
    if lr is None:
        raise ConfigError("within_curvature needs lr, the learning rate of the update: bind it by advantage_of(config)")
    square_BT, step_BT = feedback[GRADIENT_SQUARE].double(), lr * advantage_BT.double()
    moved_BT = advantage_BT * (step_BT * square_BT + step_BT.square() * feedback[GRADIENT_CURVATURE] / 2)
    return (moved_BT.abs() < shift) & ((step_BT * square_BT).square() / 2 < divergence)
