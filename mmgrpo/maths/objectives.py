"""The objective: a scalar function of the matrix of log-probabilities, the same for tokens and denoising steps.

    L = sum w l(r, logprob, A) + kl_beta * sum v KL - entropy_bonus * sum v H        over the kept decisions

l is a surrogate, r the ratio at its level, w the aggregate's weight times the step weight (0 where a selection leaves
the decision out), v the aggregate's weight alone. KL is multiplied by a ratio, with grad, if kl_ratio_level names one.
Both weights are exact over the whole job, so slices, micro-batches and ranks add up: values, gradients and diagnostics
alike. A separable objective may be given any slice of rows and columns; one whose ratio couples decisions needs whole
rows. Selections look at whole rows too, or at the whole job, and only set weights: whoever calls applies them first.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.ratios import RATIO_LEVELS, Bounded, recentred_log_ratio
from mmgrpo.maths.selections import Selection
from mmgrpo.maths.surrogates import Surrogate
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

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
        ratio_level: what a ratio is taken over: decision, segment, sequence or trajectory.
        bound: bound of each decision's log-ratio before its level, (log_ratio_BT, advantage_BT) -> Bounded.
        selections: which decisions' surrogate counts, a decision that one leaves out weighing 0; or which the ratio
            is taken over.
        step_weight: further weight of the surrogate alone, (noise, mask_BT) -> weight_BT.
        recentre: whether Gaussian log-ratios are recentred and rescaled first (GRPO-Guard).
        divergence: name of the divergence from the reference that the policy is asked for.
        kl_beta: weight of the divergence in the loss.
        kl_ratio_level: level of the ratio that multiplies the divergence, with grad; None for no ratio. At decision
            level it makes an estimate from the old policy's samples unbiased (DeepSeek-V3.2, arXiv:2512.02556).
        entropy_bonus: weight of the entropy that the loss rewards.
    """

    surrogate: Callable[[Tensor, Tensor, Tensor], Surrogate]
    aggregate: Callable[[Tensor, Totals], Tensor]
    ratio_level: str = "decision"
    bound: Callable[[Tensor, Tensor], Bounded] | None = None
    selections: tuple[Selection, ...] = ()
    step_weight: Callable[[Noise, Tensor], Tensor] | None = None
    recentre: bool = False
    divergence: str | None = None
    kl_beta: float = 0.0
    kl_ratio_level: str | None = None
    entropy_bonus: float = 0.0

    def __post_init__(self) -> None:
        for key in ("ratio_level", "kl_ratio_level"):
            level = getattr(self, key)
            if level is not None and level not in RATIO_LEVELS:
                raise UnknownNameError(f"unknown {key} {level!r}; choose from {', '.join(RATIO_LEVELS)}")
        if self.kl_beta < 0:
            raise ConfigError(f"kl_beta must be 0 or more, got {self.kl_beta}")
        if self.kl_beta > 0 and self.divergence is None:
            raise ConfigError(f"kl_beta={self.kl_beta} needs a divergence: name one, or set kl_beta to 0")
        if self.kl_ratio_level is not None and self.kl_beta == 0:
            raise ConfigError(f"kl_ratio_level={self.kl_ratio_level} weighs the divergence: set kl_beta above 0")
        if self.ratio_level == "decision" and any(selection.of_ratio for selection in self.selections):
            raise ConfigError(
                "a selection of the ratio needs a ratio of several decisions: set ratio_level to sequence, or use "
                "top_entropy in place of ratio_top_entropy"
            )
        if self.kl_ratio_level is not None and self.recentre:
            raise ConfigError("a recentred ratio is no importance weight: leave out kl_ratio_level, or recentre")

    @property
    def separable(self) -> bool:
        """Whether decisions do not depend on each other, so that any slice may be differentiated by itself."""
        return self.ratio_level == "decision" and self.kl_ratio_level in (None, "decision")

    @property
    def needs_values(self) -> bool:
        """Whether values at the weights of now are needed before the first decision can be differentiated."""
        return not self.separable or bool(self.selections)

    @property
    def selects_by_entropy(self) -> bool:
        """Whether a selection reads the entropies of the whole job's update."""
        return any(selection.needs_entropy for selection in self.selections)

    @property
    def rollout_knows_values(self) -> bool:
        """Whether the rollout alone tells the values needed, as long as the weights are those that sampled."""
        asks_more = self.needs_reference or self.needs_entropy
        return not self.selects_by_entropy and (self.separable or not asks_more)

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

    def selected(self, decisions: Decisions, job_entropy_N: Tensor) -> Decisions:
        """The decisions with a weight of 0, or without a part in the ratio, where a selection leaves them out.

        Shapes: whole rows (B, T), (N,) entropies of the job's update -> (B, T).
        """
        keep_BT = ratio_mask_BT = decisions.mask_BT
        for selection in self.selections:
            kept_BT = selection.keep(decisions, job_entropy_N)
            if selection.of_ratio:
                ratio_mask_BT = ratio_mask_BT & kept_BT
            else:
                keep_BT = keep_BT & kept_BT
        return replace(decisions, weight_BT=decisions.weight_BT.where(keep_BT, 0.0), ratio_mask_BT=ratio_mask_BT)

    def contributing(self, decisions: Decisions) -> Tensor:
        """The decisions that the loss depends on: of the others neither the value nor the gradient is needed.

        Where there is a divergence or an entropy term, all kept ones. Elsewhere every surrogate is proportional to the
        advantage, so those with an advantage and a weight, and those whose ratio is coupled to theirs.

        Shapes: whole rows (B, T) -> bool (B, T).
        """
        keep_BT = decisions.mask_BT
        if self.needs_reference or self.needs_entropy:
            return keep_BT
        counts_BT = keep_BT & (decisions.advantage_BT != 0) & (decisions.weight_BT != 0)
        return counts_BT if self.separable else keep_BT & counts_BT.any(1, keepdim=True)

    def __call__(self, decisions: Decisions) -> Loss:
        """The loss of a slice of decisions: see the head of this module.

        Shapes: (B, T) -> scalar.   Units: those of the advantage.
        Raises: ConfigError if the decisions lack what the objective needs.
        """
        keep_BT = decisions.mask_BT
        # masked before any arithmetic: 0 * inf in a backward pass is NaN
        logprob_BT = decisions.logprob_BT.where(keep_BT, 0.0)
        advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
        weight_BT = decisions.weight_BT.where(keep_BT, 0.0)
        each_BT = self._log_ratio(decisions, logprob_BT)
        never_BT = torch.zeros_like(keep_BT)
        bounded = Bounded(each_BT, never_BT, never_BT) if self.bound is None else self.bound(each_BT, advantage_BT)
        ratio_mask_BT = keep_BT if decisions.ratio_mask_BT is None else decisions.ratio_mask_BT & keep_BT
        log_ratio_BT = _at_level(self.ratio_level, bounded.log_ratio_BT, ratio_mask_BT, decisions.segment_BT)
        ratio_BT = _ratio(log_ratio_BT)
        surrogate = self.surrogate(ratio_BT, logprob_BT, advantage_BT)
        surrogate_sum = (weight_BT * surrogate.loss_BT).sum()
        kl_BT = decisions.kl_BT
        if kl_BT is not None and self.kl_ratio_level is not None:
            kl_BT = kl_BT.where(keep_BT, 0.0) * _ratio(
                _at_level(self.kl_ratio_level, each_BT, keep_BT, decisions.segment_BT)
            )
        kl_loss = self._penalty(decisions, kl_BT, self.kl_beta, _MISSING_KL)
        entropy_loss = self._penalty(decisions, decisions.entropy_BT, -self.entropy_bonus, _MISSING_ENTROPY)
        excess_BT = (ratio_BT - 1).detach().where(keep_BT, 0.0).double()
        num_kl, kl_sum = _given(decisions.kl_BT, keep_BT)
        num_entropy, entropy_sum = _given(decisions.entropy_BT, keep_BT)
        diagnostics = Diagnostics(
            num_decisions=total(keep_BT),
            num_weighed=total((weight_BT != 0) & (advantage_BT != 0)),
            ratio_excess_sum=total(excess_BT),
            ratio_excess_square_sum=total(excess_BT.square()),
            clip_low_count=total((surrogate.low_BT | bounded.low_BT) & keep_BT),
            clip_high_count=total((surrogate.high_BT | bounded.high_BT) & keep_BT),
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
        return log_ratio_BT

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


def _at_level(level: str, log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    return RATIO_LEVELS[level](log_ratio_BT, mask_BT, segment_BT)


def _ratio(log_ratio_BT: Tensor) -> Tensor:
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _given(value_BT: Tensor | None, keep_BT: Tensor) -> tuple[Tensor, Tensor]:
    """How many kept decisions have a value, and the sum of their values."""
    if value_BT is None:
        nothing = total(torch.zeros_like(keep_BT))
        return nothing, nothing
    return total(keep_BT), total(value_BT.where(keep_BT, 0.0))
