"""The objective: a scalar function of the matrix of log-probabilities, the same for tokens and denoising steps.

    L = sum w l(r, logprob, A) + kl_beta * sum v KL - entropy_bonus * sum v H + further terms, over the kept decisions

It is a sum of terms: the surrogate's, the divergence's, the entropy's and any others. l is a surrogate, r the ratio at
its level, w the aggregate's weight times the step weight (0 where a selection leaves the decision out), v the
aggregate's weight alone. KL is multiplied by a ratio, with grad, if kl_ratio_level names one. Both weights are exact
over all processes, so slices, micro-batches and ranks add up: values, gradients and diagnostics alike. A separable
objective accepts any slice of rows and columns; one with a term that couples decisions or rows needs those together.
Selections
read complete rows too, or all processes, and only set weights: the caller applies them first.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.changes import changed_count, modulation_changed
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum, total
from mmgrpo.maths.modulations import Modulated, Modulation
from mmgrpo.maths.ratios import RATIO_LEVELS, Bounded
from mmgrpo.maths.selections import Selection
from mmgrpo.maths.sources import OFF_POLICY, ON_POLICY
from mmgrpo.maths.surrogates import Surrogate
from mmgrpo.maths.terms import (
    DECISION,
    Loss,
    SurrogateTerm,
    Term,
    all_unmasked,
    divergence_term,
    entropy_term,
    from_sources,
    weighted,
)
from mmgrpo.values import ACROSS_TOKENIZERS, DRIFT, ENTROPY, OF_TWO_DISTRIBUTIONS, Value, from_reference

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Noise


ZERO_ON_POLICY = frozenset((DRIFT,))
"""Values that are 0 as long as the weights are those that sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OffPolicySurrogate:
    """The surrogate of rows that were not sampled at this step.

    Attributes:
        surrogate: as the objective's; modulations do not set its bounds.
        ratio_level: level of the ratio to the policy that stored the row; rows without a log-probability take that of
            the current policy, and the ratio 1.
        weight: of their loss.
    """

    surrogate: Callable[..., Surrogate]
    ratio_level: str = "token"
    weight: float = 1.0

    def as_term(self) -> Term:
        """The term, of off-policy rows only."""
        surrogate = SurrogateTerm(
            surrogate=self.surrogate, ratio_level=self.ratio_level, bound=None, normalized=False, name="off_policy"
        )
        return weighted(from_sources(surrogate.as_term(), OFF_POLICY), self.weight)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A policy objective, composed of independent named parts.

    Attributes:
        surrogate: loss of a decision, (ratio_BT, logprob_BT, advantage_BT) -> Surrogate, bound to its settings; None
            leaves that term out.
        aggregate: weight of a decision, (mask_BT, totals) -> weight_BT, bound to its settings.
        ratio_level: level of the ratio: decision, segment, sequence or trajectory.
        bound: bound of each decision's log-ratio before its level, (log_ratio_BT, advantage_BT) -> Bounded.
        selections: choose the decisions that count in the surrogate, the others have weight 0; or in the
            ratio.
        step_weight: further weight of the surrogate alone, (noise, mask_BT) -> weight_BT.
        normalize_ratio: whether Gaussian log-ratios are centered and rescaled first (GRPO-Guard's RatioNorm).
        divergence: name of the divergence from the reference that the policy computes.
        kl_beta: weight of the divergence in the loss.
        kl_ratio_level: level of the ratio that multiplies the divergence, with grad; None for no ratio. At decision
            level it makes an estimate from the old policy's samples unbiased (DeepSeek-V3.2, arXiv:2512.02556).
        entropy_bonus: weight of the entropy that the loss rewards.
        modulations: numbers of the surrogate and of the divergence that differ from decision to decision, in order.
        further: terms besides the surrogate's, the divergence's and the entropy's.
        off_policy: the surrogate of off-policy rows; None: that of the objective.
    """

    surrogate: Callable[[Tensor, Tensor, Tensor], Surrogate] | None
    aggregate: Callable[[Tensor, Totals], Tensor]
    ratio_level: str = "token"
    bound: Callable[[Tensor, Tensor], Bounded] | None = None
    selections: tuple[Selection, ...] = ()
    step_weight: Callable[[Noise, Tensor], Tensor] | None = None
    normalize_ratio: bool = False
    divergence: str | None = None
    kl_beta: float = 0.0
    kl_ratio_level: str | None = None
    entropy_bonus: float = 0.0
    modulations: tuple[Modulation, ...] = ()
    further: tuple[Term, ...] = ()
    off_policy: OffPolicySurrogate | None = None

    def __post_init__(self) -> None:
        for key in ("ratio_level", "kl_ratio_level"):
            level = getattr(self, key)
            if level is not None and level not in RATIO_LEVELS:
                raise UnknownNameError(f"unknown {key} {level!r}; choose from {', '.join(RATIO_LEVELS)}")
        if self.off_policy is not None and self.off_policy.ratio_level not in RATIO_LEVELS:
            raise UnknownNameError(
                f"unknown ratio_level {self.off_policy.ratio_level!r} of off-policy rows; choose from "
                f"{', '.join(RATIO_LEVELS)}"
            )
        if self.kl_beta < 0:
            raise ConfigError(f"kl_beta must be 0 or more, got {self.kl_beta}")
        if self.kl_beta > 0 and self.divergence is None:
            raise ConfigError(
                f"objective.kl.beta={self.kl_beta:g} needs objective.kl.divergence: name one, or set beta to 0"
            )
        if self.kl_ratio_level is not None and self.kl_beta == 0:
            raise ConfigError(
                f"objective.kl.ratio_level={self.kl_ratio_level} weights the divergence: set objective.kl.beta above 0"
            )
        if self.ratio_level == "token" and any(selection.of_ratio for selection in self.selections):
            raise ConfigError(
                "a selection of the ratio needs a ratio of several decisions: set ratio_level to sequence, or use "
                "top_entropy in place of ratio_top_entropy"
            )
        if self.kl_ratio_level is not None and self.normalize_ratio:
            raise ConfigError(
                "a normalized ratio is no importance weight: leave out kl_ratio_level, or normalize_ratio"
            )
        names = [term.name for term in self.terms]
        if len(set(names)) < len(names):
            raise ConfigError(f"terms are logged by name, and {names} repeat: give each a label")
        if not self.terms:
            raise ConfigError("the objective has no term: name a surrogate, or terms of another kind")

    @property
    def terms(self) -> tuple[Term, ...]:
        """The terms of the loss, in order."""
        return tuple(self._terms())

    def _terms(self) -> Iterator[Term]:
        if self.surrogate is not None:
            surrogate = SurrogateTerm(
                surrogate=self.surrogate,
                ratio_level=self.ratio_level,
                bound=self.bound,
                normalized=self.normalize_ratio,
            ).as_term()
            yield surrogate if self.off_policy is None else from_sources(surrogate, (ON_POLICY,))
        if self.off_policy is not None:
            yield self.off_policy.as_term()
        if self.kl_beta > 0 and self.divergence is not None:
            value = from_reference(self.divergence)
            yield divergence_term(value, beta=self.kl_beta, ratio_level=self.kl_ratio_level)
        if self.entropy_bonus != 0:
            yield entropy_term(bonus=self.entropy_bonus)
        yield from self.further

    @property
    def separable(self) -> bool:
        """Whether decisions do not depend on each other, so that any slice may be differentiated separately."""
        return all(term.couples == DECISION for term in self.terms) and not self.through

    @property
    def skips(self) -> bool:
        """Whether there may be kept decisions that no term depends on, which then take no forward."""
        return all(term.active is not all_unmasked for term in self.terms)

    @property
    def values(self) -> frozenset[Value]:
        """The values that the terms read besides the log-probability."""
        return frozenset(value for term in self.terms for value in term.values)

    @property
    def views(self) -> frozenset[str]:
        """The other policies that the values are of."""
        return frozenset(value.view for value in self.values if value.view is not None)

    @property
    def views_with_logits(self) -> frozenset[str]:
        """The views whose distributions of all tokens are read in each pass of the policy."""
        pairs = (value for value in self.values | self.first_values if value.name in OF_TWO_DISTRIBUTIONS)
        return frozenset(str(value.view) for value in pairs)

    @property
    def retokenized_views(self) -> frozenset[str]:
        """The views that may have another tokenizer, by all values that are read of them."""
        values = self.values | self.first_values
        by_token = {value.view for value in values if value.name not in ACROSS_TOKENIZERS}
        return frozenset(str(value.view) for value in values if value.view not in by_token)

    @property
    def through(self) -> frozenset[str]:
        """The views that gradients go through: their values are then computed first, as for terms that couple
        decisions."""
        return frozenset(view for term in self.terms for view in term.through)

    @property
    def first_values(self) -> frozenset[Value]:
        """The values of all decisions, without grad, that are needed before the first can be differentiated."""
        values = frozenset(value for modulation in self.modulations for value in modulation.values)
        values |= frozenset((ENTROPY,)) if self.selects_by_entropy else frozenset()
        return values if self.separable else values | self.values

    @property
    def needs_values(self) -> bool:
        """Whether values under the current weights are needed before the first decision can be differentiated."""
        return not self.separable or bool(self.selections) or bool(self.modulations)

    @property
    def selects_by_entropy(self) -> bool:
        """Whether a selection reads the entropies of the update on all processes."""
        return any(selection.needs_entropy for selection in self.selections)

    @property
    def looks_at_all(self) -> bool:
        """Whether the values computed first are needed of every kept decision, not only of those that contribute."""
        return self.selects_by_entropy or bool(self.modulations)

    @property
    def job_values(self) -> tuple[Value, ...]:
        """The values of the kept decisions of the update on all processes that selections and modulations need, in
        order."""
        values = {value for modulation in self.modulations for value in modulation.job}
        return tuple(sorted(values | ({ENTROPY} if self.selects_by_entropy else set()), key=str))

    @property
    def rollout_knows_values(self) -> bool:
        """Whether the rollout has those values, as long as the weights are those of the behavior policy."""
        return self.first_values <= ZERO_ON_POLICY

    def mean_weights(self, mask_BT: Tensor, totals: Totals) -> Tensor:
        """Weight of each decision in a mean over the update: the aggregate's, 0 where the mask is False.

        Shapes: bool (B, T), complete rows -> (B, T).
        """
        return self.aggregate(mask_BT, totals).where(mask_BT, 0.0)

    def weights(self, mask_BT: Tensor, totals: Totals, noise: Noise | None = None) -> Tensor:
        """Weight of each decision's surrogate: the aggregate's times the step weight, 0 where the mask is False.

        Shapes: bool (B, T), complete rows -> (B, T).   Raises: ConfigError if a step weight has no noise to read.
        """
        weight_BT = self.mean_weights(mask_BT, totals)
        if self.step_weight is None:
            return weight_BT
        if noise is None:
            raise ConfigError(
                "step_weight reads the noise of denoising steps, and this rollout has none: "
                "leave step_weight out, or train a denoising policy"
            )
        return weight_BT * self.step_weight(noise, mask_BT).where(mask_BT, 0.0)

    def adjusted(self, decisions: Decisions, job_values: Mapping[Value, Tensor]) -> Adjusted:
        """The decisions after all modulations, then after all selections, and how many of them each changed.

        Shapes: complete rows (B, T), (N,) values of the job's update -> (B, T).
        """
        modulations = [modulation.of(decisions, job_values) for modulation in self.modulations]
        modulated = _modulated(decisions, modulations)
        keeps = self._keeps(modulated, job_values)
        mask_BT, bounds = decisions.mask_BT, _bounds_of(self.surrogate)
        changes = {
            f"modulations/{modulation.name}": modulation_changed(result, mask_BT, bounds)
            for modulation, result in zip(self.modulations, modulations, strict=True)
        }
        changes |= {
            f"selections/{selection.name}": changed_count(~keep_BT, mask_BT)
            for selection, keep_BT in zip(self.selections, keeps, strict=True)
        }
        return Adjusted(decisions=self._selected(modulated, keeps), changes=changes)

    def modulated(self, decisions: Decisions, job_values: Mapping[Value, Tensor]) -> Decisions:
        """The decisions with their modulated numbers, computed from values under the current weights.

        Shapes: complete rows (B, T), (N,) values of the job's update -> (B, T).
        """
        return _modulated(decisions, [modulation.of(decisions, job_values) for modulation in self.modulations])

    def selected(self, decisions: Decisions, job_values: Mapping[Value, Tensor]) -> Decisions:
        """The decisions with a weight of 0, or without a part in the ratio, where a selection leaves them out.

        Shapes: complete rows (B, T), (N,) values of the job's update -> (B, T).
        """
        return self._selected(decisions, self._keeps(decisions, job_values))

    def _keeps(self, decisions: Decisions, job_values: Mapping[Value, Tensor]) -> list[Tensor]:
        entropy_N = job_values.get(ENTROPY, decisions.logprob_BT.new_zeros(0))
        return [selection.keep(decisions, entropy_N) for selection in self.selections]

    def _selected(self, decisions: Decisions, keeps: Sequence[Tensor]) -> Decisions:
        keep_BT = ratio_mask_BT = decisions.mask_BT
        for selection, selected_BT in zip(self.selections, keeps, strict=True):
            if selection.of_ratio:
                ratio_mask_BT = ratio_mask_BT & selected_BT
            else:
                keep_BT = keep_BT & selected_BT
        return replace(decisions, weight_BT=decisions.weight_BT.where(keep_BT, 0.0), ratio_mask_BT=ratio_mask_BT)

    def contributing(self, decisions: Decisions) -> Tensor:
        """The decisions that any term depends on: of the others neither the value nor the gradient is needed.

        Shapes: complete rows (B, T) -> bool (B, T).
        """
        active_BT = decisions.mask_BT & False
        for term in self.terms:
            active_BT = active_BT | term.active(decisions)
        return active_BT

    def __call__(self, decisions: Decisions) -> Loss:
        """The loss of a slice of decisions: see the head of this module.

        Shapes: (B, T) -> scalar.   Units: those of the advantage.
        Raises: ConfigError if the decisions lack a value that a term needs.
        """
        of_means = len(self.terms) - (self.surrogate is not None) - (self.off_policy is not None)
        if of_means and self.step_weight is not None and decisions.mean_weight_BT is None:
            raise ConfigError(
                "a divergence or entropy term with a step_weight needs mean_weight_BT: "
                "fill it from Objective.mean_weights"
            )
        parts = [term.loss(decisions) for term in self.terms]
        value, diagnostics = parts[0].value, parts[0].diagnostics
        for part in parts[1:]:
            value, diagnostics = value + part.value, diagnostics + part.diagnostics
        return Loss(value, diagnostics + Diagnostics(num_decisions=total(decisions.mask_BT)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Adjusted:
    """Decisions after the modulations and selections of an objective.

    Attributes:
        decisions: with the weights, bounds and factors that these set.
        changes: how many decisions each of them changed, by the key of its metric.
    """

    decisions: Decisions
    changes: Mapping[str, ValueSum]


def _modulated(decisions: Decisions, modulations: Sequence[Modulated]) -> Decisions:
    combined = Modulated()
    for modulation in modulations:
        combined = modulation.after(combined)
    weight_BT = decisions.weight_BT if combined.loss_BT is None else decisions.weight_BT * combined.loss_BT
    return replace(
        decisions,
        weight_BT=weight_BT,
        low_BT=combined.low_BT,
        high_BT=combined.high_BT,
        divergence_factor_BT=combined.divergence_BT,
    )


def _bounds_of(surrogate: Callable[..., Surrogate] | None) -> dict[str, float | None]:
    """The numbers ``low`` and ``high`` of a surrogate that has them."""
    parameters = {} if surrogate is None else inspect.signature(surrogate).parameters
    return {name: parameters[name].default for name in ("low", "high") if name in parameters}
