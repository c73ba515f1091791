"""The objective: a scalar function of the matrix of log-probabilities, the same for tokens and denoising steps.

    L = sum w l(r, logprob, A) + kl_beta * sum v KL - entropy_bonus * sum v H        over the kept decisions

l is a surrogate, r the ratio at its level, w the aggregate's weight times the step weight, v the aggregate's weight
alone. Both weights are exact over the whole job, so slices, micro-batches and ranks add up: values, gradients and
diagnostics alike. A separable objective may be given any slice of rows and columns; one whose ratio couples decisions
needs whole rows.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError, UnknownNameError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.ratios import RATIO_LEVELS, recentred_log_ratio
from mmgrpo.maths.surrogates import Surrogate
from mmgrpo.types import Noise

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are held within +-20 nats before the exponential, whose overflow would turn a zero gradient into NaN."""

_MISSING_KL = (
    "kl_beta is above 0, but the decisions carry no kl_BT: ask Policy.evaluate for the objective's divergence, "
    "or set kl_beta to 0"
)
_MISSING_ENTROPY = (
    "entropy_bonus is not 0, but the decisions carry no entropy_BT: this policy has no entropy to give; "
    "set entropy_bonus to 0"
)


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


@dataclass(frozen=True, slots=True)
class Loss:
    """What an objective gives for a slice.

    Attributes:
        value: scalar, with grad; the values of the slices of an update add up to its loss.
        diagnostics: what was measured on the way.
    """

    value: Tensor
    diagnostics: Diagnostics


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A policy objective, composed of named parts that know nothing of each other.

    Attributes:
        surrogate: loss of a decision, (ratio_BT, logprob_BT, advantage_BT) -> Surrogate, bound to its numbers.
        aggregate: weight of a decision, (mask_BT, totals) -> weight_BT, bound to its numbers.
        ratio_level: what a ratio is taken over: decision, segment or sequence.
        step_weight: further weight of the surrogate alone, (noise, mask_BT) -> weight_BT.
        recentre: whether Gaussian log-ratios are recentred and rescaled first (GRPO-Guard).
        divergence: name of the divergence from the reference that the policy is asked for.
        kl_beta: weight of the divergence in the loss.
        entropy_bonus: weight of the entropy that the loss rewards.
    """

    surrogate: Callable[[Tensor, Tensor, Tensor], Surrogate]
    aggregate: Callable[[Tensor, Totals], Tensor]
    ratio_level: str = "decision"
    step_weight: Callable[[Noise, Tensor], Tensor] | None = None
    recentre: bool = False
    divergence: str | None = None
    kl_beta: float = 0.0
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        if self.ratio_level not in RATIO_LEVELS:
            raise UnknownNameError(f"unknown ratio_level {self.ratio_level!r}; choose from {', '.join(RATIO_LEVELS)}")
        if self.kl_beta < 0:
            raise ConfigError(f"kl_beta must be 0 or more, got {self.kl_beta}")
        if self.kl_beta > 0 and self.divergence is None:
            raise ConfigError(f"kl_beta={self.kl_beta} needs a divergence: name one, or set kl_beta to 0")

    @property
    def separable(self) -> bool:
        """Whether decisions do not depend on each other, so that any slice may be differentiated by itself."""
        return self.ratio_level == "decision"

    @property
    def needs_drift(self) -> bool:
        """Whether decisions must carry their divergence from the policy that sampled, and their spread."""
        return self.recentre

    @property
    def needs_reference(self) -> bool:
        """Whether decisions must carry their divergence from the reference."""
        return self.kl_beta > 0

    @property
    def needs_entropy(self) -> bool:
        """Whether decisions must carry their entropy."""
        return self.entropy_bonus != 0

    def kl_weights(self, mask_BT: Tensor, totals: Totals) -> Tensor:
        """Weight of each decision's divergence and entropy: the aggregate's, 0 where the mask is False.

        Shapes: bool (B, T), whole rows -> (B, T).
        """
        return self.aggregate(mask_BT, totals).where(mask_BT, 0.0)

    def weights(self, mask_BT: Tensor, totals: Totals, noise: Noise | None = None) -> Tensor:
        """Weight of each decision's surrogate: the aggregate's times the step weight, 0 where the mask is False.

        Shapes: bool (B, T), whole rows -> (B, T).   Raises: ConfigError if a step weight has no noise to read.
        """
        weight_BT = self.kl_weights(mask_BT, totals)
        if self.step_weight is None:
            return weight_BT
        if noise is None:
            raise ConfigError(
                "step_weight reads the noise of denoising steps, and this rollout has none: "
                "leave step_weight out, or train a denoising policy"
            )
        return weight_BT * self.step_weight(noise, mask_BT).where(mask_BT, 0.0)

    def __call__(self, decisions: Decisions) -> Loss:
        """The loss of a slice of decisions: see the head of this module.

        Shapes: (B, T) -> scalar.   Units: those of the advantage.
        Raises: ConfigError if the decisions lack what the objective needs.
        """
        keep_BT = decisions.mask_BT
        # masked before any arithmetic: 0 * inf in a backward pass is NaN
        logprob_BT = decisions.logprob_BT.where(keep_BT, 0.0)
        advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
        log_ratio_BT = self._log_ratio(decisions, logprob_BT)
        ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        surrogate = self.surrogate(ratio_BT, logprob_BT, advantage_BT)
        surrogate_sum = (decisions.weight_BT.where(keep_BT, 0.0) * surrogate.loss_BT).sum()
        kl_loss = self._penalty(decisions, decisions.kl_BT, self.kl_beta, _MISSING_KL)
        entropy_loss = self._penalty(decisions, decisions.entropy_BT, -self.entropy_bonus, _MISSING_ENTROPY)
        excess_BT = (ratio_BT - 1).detach().where(keep_BT, 0.0).double()
        num_kl, kl_sum = _given(decisions.kl_BT, keep_BT)
        num_entropy, entropy_sum = _given(decisions.entropy_BT, keep_BT)
        diagnostics = Diagnostics(
            num_decisions=total(keep_BT),
            ratio_excess_sum=total(excess_BT),
            ratio_excess_square_sum=total(excess_BT.square()),
            clip_low_count=total(surrogate.low_BT & keep_BT),
            clip_high_count=total(surrogate.high_BT & keep_BT),
            num_kl=num_kl,
            kl_sum=kl_sum,
            num_entropy=num_entropy,
            entropy_sum=entropy_sum,
            surrogate_sum=total(surrogate_sum),
            kl_loss_sum=total(kl_loss),
            entropy_loss_sum=total(entropy_loss),
            log_ratio_abs_max=log_ratio_BT.detach().where(keep_BT, 0.0).abs().amax().double(),
        )
        return Loss(surrogate_sum + kl_loss + entropy_loss, diagnostics)

    def _log_ratio(self, decisions: Decisions, logprob_BT: Tensor) -> Tensor:
        keep_BT = decisions.mask_BT
        log_ratio_BT = logprob_BT - decisions.old_logprob_BT.detach().where(keep_BT, 0.0)
        if self.recentre:
            if decisions.drift_BT is None or decisions.std_BT is None:
                raise ConfigError(
                    "recentre needs drift_BT and std_BT, which denoising policies give where the plan keeps the means: "
                    "set Plan.keep_mean, or recentre to false"
                )
            drift_BT, std_BT = decisions.drift_BT.where(keep_BT, 0.0), decisions.std_BT.where(keep_BT, 0.0)
            log_ratio_BT = recentred_log_ratio(log_ratio_BT, drift_BT, std_BT)
        return RATIO_LEVELS[self.ratio_level](log_ratio_BT, keep_BT, decisions.segment_BT)

    def _penalty(self, decisions: Decisions, value_BT: Tensor | None, factor: float, missing: str) -> Tensor:
        if factor == 0:
            return decisions.logprob_BT.new_zeros(())
        if value_BT is None:
            raise ConfigError(missing)
        weight_BT = decisions.kl_weight_BT
        if weight_BT is None and self.step_weight is not None:
            raise ConfigError(
                "a divergence or entropy term beside a step_weight needs kl_weight_BT: "
                "fill it from Objective.kl_weights"
            )
        if weight_BT is None:
            weight_BT = decisions.weight_BT
        return factor * (weight_BT.where(decisions.mask_BT, 0.0) * value_BT.where(decisions.mask_BT, 0.0)).sum()


def _given(value_BT: Tensor | None, keep_BT: Tensor) -> tuple[Tensor, Tensor]:
    """How many kept decisions have a value, and the sum of their values."""
    if value_BT is None:
        nothing = total(torch.zeros_like(keep_BT))
        return nothing, nothing
    return total(keep_BT), total(value_BT.where(keep_BT, 0.0))
