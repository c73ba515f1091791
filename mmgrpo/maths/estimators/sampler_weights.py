"""Importance weights between the trainer and the program that sampled, for ``rollout.engine``.

An engine computes log-probabilities in another order and precision than the trainer. The ratio of the surrogate is the
trainer's on both sides; these functions weigh or leave out decisions that the engine sampled with another probability.

Axes: B samples, T decisions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.estimators import ESTIMATORS, estimator
from mmgrpo.maths.feedback import Feedback
from mmgrpo.maths.filters import FILTERS, sample_filter
from mmgrpo.values import SAMPLER_LOGPROB

if TYPE_CHECKING:
    from torch import Tensor

Level = Literal["token", "sequence"]


def sampler_weight(feedback: Feedback, level: Level) -> Tensor:
    """The probability of each decision under the trainer, over that under the program that sampled it.

    w = exp(log pi_old - log mu), of the decision; at the level ``sequence`` of all kept decisions of the row together.

    Shapes: -> (B, T).   Units: dimensionless.
    """
    log_weight_BT = (feedback.old_logprob_BT - feedback[SAMPLER_LOGPROB]).where(feedback.mask_BT, 0.0)
    if level == "sequence":
        log_weight_BT = log_weight_BT.sum(1, keepdim=True).expand_as(log_weight_BT)
    return log_weight_BT.exp()


def _check_truncated_weight(cap: float, level: str) -> None:
    if not cap >= 1:
        raise ConfigError(f"sampler_weight_truncated needs a cap of at least 1, got {cap}")
    _require_level(level)


def _check_weight_bounds(low: float, high: float, level: str) -> None:
    if not 0 <= low < 1 < high:
        raise ConfigError(f"sampler_weight_within needs 0 <= low < 1 < high, got {low} and {high}")
    _require_level(level)


def _require_level(level: str) -> None:
    if level not in ("token", "sequence"):
        raise ConfigError(f"level is token or sequence, got {level!r}")


@ESTIMATORS.register
@estimator(values=(SAMPLER_LOGPROB,), check=_check_truncated_weight)
def sampler_weight_truncated(
    feedback: Feedback, advantage_BT: Tensor, *, cap: float = 2.0, level: Level = "token"
) -> Tensor:
    """Truncated importance sampling (TIS): advantages times the probability ratio of trainer and engine.

    A_t <- A_t min(w_t, cap), w = pi_old / mu of the decision, or of the row at the level ``sequence``.

    Units: cap is dimensionless.   Raises: ConfigError for a cap below 1 or an unknown level.
    Source: Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training" (2025), C = 2; verl,
        ``rollout_is`` token or sequence with ``rollout_is_threshold`` 2. The weight is that of the sampling policy, so
        it stays the same in later updates of the step.
    """
    return advantage_BT * sampler_weight(feedback, level).clamp(max=cap).to(advantage_BT)


@FILTERS.register
@sample_filter(values=(SAMPLER_LOGPROB,), check=_check_weight_bounds)
def sampler_weight_within(
    feedback: Feedback, advantage_BT: Tensor, *, low: float = 0.0, high: float = 2.0, level: Level = "token"
) -> Tensor:
    """The mask of masked importance sampling (MIS): only decisions with a probability ratio in bounds train.

    keep = low <= w_t <= high, w = pi_old / mu of the decision, or of the row at the level ``sequence``. Alone it is
    rejection sampling; MIS also weighs the decisions by w, which is ``sampler_weight_truncated`` with ``cap: high`` at
    the same level. IcePop is MIS of tokens with bounds on both sides.

    Units: low and high are dimensionless.   Raises: ConfigError for bounds without 1 between them, or an unknown level.
    Source: MIS, Liu et al., "When Speed Kills Stability" (2025); verl, ``rollout_rs``. IcePop, Ling Team, "Every Step
        Evolves" (Ring-1T), arXiv:2510.18855; verl, ``rollout_is_threshold: 0.5_5.0``. With
        ``filtered_samples: drop`` means count the kept decisions, as those of ``rollout_rs`` do; with ``mask`` they
        count all decisions, as those of IcePop do.
    """
    del advantage_BT
    weight_BT = sampler_weight(feedback, level)
    return feedback.mask_BT & (weight_BT >= low) & (weight_BT <= high)
