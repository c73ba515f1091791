"""Terms: the summands of an objective, each a scalar function of the decisions.

A term declares the values that it needs, the decisions that its loss couples, and those on which it depends. The sum
over the slices of an update is its loss; a term that couples decisions of a row, or rows of a group, gets them
together.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, of_value, total
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.ratios import RATIO_LEVELS, Bounded, normalized_log_ratio
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.sources import is_from
from mmgrpo.maths.surrogates import Surrogate
from mmgrpo.system.lazy import torch
from mmgrpo.values import DRIFT, ENTROPY, Value

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to +-20 nats before the exponential, as its overflow would turn a zero gradient into NaN."""

DECISION, ROW, GROUP = "decision", "row", "group"
"""The coupling of a loss: none, the decisions of a sample, or the samples of a group."""


TERMS: Registry[Callable[..., Term]] = Registry(arguments=(), decorator="mmgrpo.maths.terms.term")
"""Terms by the name that ``objective.terms`` uses; called with their numbers."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The result of an objective, or of a term of it, for a slice.

    Attributes:
        value: scalar, with grad; the values of the slices of an update add up to its loss.
        diagnostics: its diagnostics.
    """

    value: Tensor
    diagnostics: Diagnostics


def all_unmasked(decisions: Decisions) -> Tensor:
    """All decisions that the mask keeps: the default of a loss for the decisions that it depends on.

    Shapes: (B, T) -> bool (B, T).
    """
    return decisions.mask_BT


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """One term of an objective, its settings bound.

    Attributes:
        name: the key of its loss in the metrics.
        loss: scalar of the decisions, with grad.
        values: values of the decisions that it reads besides the log-probability.
        couples: ``decision`` if any slice may be differentiated separately; ``row``: it takes complete rows; ``group``:
            it takes the complete groups of a minibatch.
        active: complete rows -> the decisions that its loss depends on; the others are not computed.
        through: the views that its gradient goes through; through others no gradient goes.
        unscored: whether it trains samples without a reward, which it does not read.
    """

    name: str
    loss: Callable[[Decisions], Loss]
    values: tuple[Value, ...] = ()
    couples: str = DECISION
    active: Callable[[Decisions], Tensor] = all_unmasked
    through: tuple[str, ...] = ()
    unscored: bool = False


def term(
    *,
    name: Callable[..., str] | str | None = None,
    values: Callable[..., tuple[Value, ...]] | tuple[Value, ...] = (),
    couples: str = DECISION,
    active: Callable[..., Tensor] = all_unmasked,
    through: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    unscored: bool = False,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Decisions, Numbers], Loss]], Callable[Numbers, Term]]:
    """A decorator: a function (decisions, *, numbers) -> Loss becomes a factory of terms.

    Args:
        name: as the attribute of ``Term``, by default the function's name, or a function of the settings that it names;
            so are ``values`` and ``through``.
        values: likewise.
        couples: as the attribute.
        active: as the attribute; settings that it names as keyword-only parameters are bound to it.
        through: likewise.
        unscored: as the attribute.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """

    def decorate(loss: Callable[Concatenate[Decisions, Numbers], Loss]) -> Callable[Numbers, Term]:
        return factory(
            Term,
            "loss",
            check=check,
            functions={"active": active},
            name=loss.__name__ if name is None else name,
            values=values,
            couples=couples,
            through=through,
            unscored=unscored,
        )(loss)

    return decorate


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTerm:
    """The surrogate of the ratio, summed by its weights: ``Objective`` describes the parts.

    With another name it is a second surrogate in addition to the objective's; modulations do not set its bounds.
    """

    surrogate: Callable[..., Surrogate]
    ratio_level: str
    bound: Callable[[Tensor, Tensor], Bounded] | None
    normalized: bool
    name: str = "surrogate"

    def as_term(self) -> Term:
        """The term."""
        coupled = self.ratio_level != "token"
        return Term(
            name=self.name,
            loss=self,
            values=(DRIFT,) if self.normalized else (),
            couples=ROW if coupled else DECISION,
            active=partial(weighted_decisions, coupled=coupled),
        )

    def __call__(self, decisions: Decisions) -> Loss:
        """sum w l(r, logprob, A).

        Shapes: (B, T) -> scalar.   Units: those of the advantage.
        """
        keep_BT = decisions.mask_BT
        # masked before any arithmetic: 0 * inf in a backward pass is NaN
        logprob_BT = decisions.logprob_BT.where(keep_BT, 0.0)
        advantage_BT = decisions.advantage_BT.where(keep_BT, 0.0)
        weight_BT = decisions.weight_BT.where(keep_BT, 0.0)
        each_BT = log_ratio(decisions, normalized=self.normalized)
        never_BT = torch.zeros_like(keep_BT)
        bounded = Bounded(each_BT, never_BT, never_BT) if self.bound is None else self.bound(each_BT, advantage_BT)
        ratio_mask_BT = keep_BT if decisions.ratio_mask_BT is None else decisions.ratio_mask_BT & keep_BT
        log_ratio_BT = at_level(self.ratio_level, bounded.log_ratio_BT, ratio_mask_BT, decisions.segment_BT)
        ratio_BT = ratio_of(log_ratio_BT)
        bounds = _decision_bounds(decisions, ratio_BT) if self.name == "surrogate" else {}
        surrogate = self.surrogate(ratio_BT, logprob_BT, advantage_BT, **bounds)
        surrogate_sum = (weight_BT * surrogate.loss_BT).sum()
        excess_BT = (ratio_BT - 1).detach().where(keep_BT, 0.0).double()
        return Loss(
            surrogate_sum,
            Diagnostics(
                num_weighed=total((weight_BT != 0) & (advantage_BT != 0)),
                ratio_excess_sum=total(excess_BT),
                ratio_excess_square_sum=total(excess_BT.square()),
                clip_low_count=total((surrogate.low_BT | bounded.low_BT) & keep_BT),
                clip_high_count=total((surrogate.high_BT | bounded.high_BT) & keep_BT),
                log_ratio_abs_max=log_ratio_BT.detach().where(keep_BT, 0.0).abs().amax().double(),
                loss_sums={self.name: total(surrogate_sum)},
            ),
        )


def divergence_term(
    value: Value, *, beta: float, ratio_level: str | None = None, normalized: bool = False, name: str = "kl"
) -> Term:
    """beta times the mean of a divergence, times a ratio with grad where a level is named.

    L = beta * sum v r D, v the aggregate's weight, r = 1 without a level.

    Units: beta is the weight of a nat.   Source: GRPO, arXiv:2402.03300, eq. 3; with the ratio DeepSeek-V3.2,
    arXiv:2512.02556.
    """

    def loss(decisions: Decisions) -> Loss:
        keep_BT = decisions.mask_BT
        value_BT = decisions[value]
        times_BT = value_BT
        if ratio_level is not None:
            each_BT = log_ratio(decisions, normalized=normalized)
            times_BT = value_BT.where(keep_BT, 0.0) * ratio_of(
                at_level(ratio_level, each_BT, keep_BT, decisions.segment_BT)
            )
        times_BT = scaled(times_BT, decisions.divergence_factor_BT)
        return _penalty(name, decisions, value, times_BT, beta)

    coupled = ratio_level not in (None, "token")
    return Term(name=name, loss=loss, values=(value,), couples=ROW if coupled else DECISION)


def scaled(value_BT: Tensor, factor_BT: Tensor | None) -> Tensor:
    """Values times a factor; a factor of 0 gives exactly 0, with a gradient of 0, of infinite values too.

    Shapes: (B, T) x 2 -> (B, T).
    """
    return value_BT if factor_BT is None else factor_BT * value_BT.where(factor_BT != 0, 0.0)


def weighted(term: Term, weight: float) -> Term:
    """A term times a number, logged under its name; with the number 0 it depends on nothing, and costs nothing.

    Units: those of the term.   Raises: ConfigError for a weight that is not finite.
    """
    if not math.isfinite(weight):
        raise ConfigError(f"the weight of {term.name} must be finite, got {weight}")
    if weight == 0:
        return Term(name=term.name, loss=partial(_zero_loss, name=term.name), active=_no_decision)

    def loss(decisions: Decisions) -> Loss:
        result = term.loss(decisions)
        value = weight * result.value
        read = dict(zip((term.name,), result.diagnostics.value_sums.values(), strict=False))
        return Loss(value, replace(result.diagnostics, loss_sums={term.name: total(value)}, value_sums=read))

    return replace(term, loss=loss)


def from_sources(term: Term, sources: Sequence[int]) -> Term:
    """A term that reads only the rows of some sources; means over the update stay means over all rows.

    Args:
        term: any.
        sources: numbers of ``Source``; decisions without a source were sampled.

    Returns:
        The term, active on those rows.
    """

    def of_source(decisions: Decisions) -> Decisions:
        return replace(decisions, mask_BT=decisions.mask_BT & is_from(decisions, sources))

    return replace(
        term,
        loss=lambda decisions: term.loss(of_source(decisions)),
        active=lambda decisions: term.active(of_source(decisions)),
    )


def _zero_loss(decisions: Decisions, *, name: str) -> Loss:
    zero = decisions.logprob_BT.new_zeros(())
    return Loss(zero, Diagnostics(loss_sums={name: total(zero)}))


def _no_decision(decisions: Decisions) -> Tensor:
    return torch.zeros_like(decisions.mask_BT)


def entropy_term(*, bonus: float) -> Term:
    """The mean entropy, rewarded: L = -bonus * sum v H, v the aggregate's weight, over all kept decisions.

    Units: bonus is the weight of a nat.
    Source: A3C, arXiv:1602.01783, sec. 4; verl's ``entropy_coeff`` (``agg_loss`` of the entropies); TRL's
        ``entropy_coef``. Deviations from TRL 1.16: it takes the mean over the tokens of a micro-batch with
        every ``loss_type``, which is this term with the aggregate ``token_mean`` alone (``loss_type`` dapo or bnpo),
        and with ``top_entropy_quantile`` it takes the mean over the selected tokens, where here selections leave the
        entropy alone.
    """
    return Term(
        name="entropy",
        loss=lambda decisions: _penalty("entropy", decisions, ENTROPY, decisions[ENTROPY], -bonus),
        values=(ENTROPY,),
    )


def log_ratio(decisions: Decisions, *, normalized: bool = False) -> Tensor:
    """Log-ratio of the current policy to the behavior policy, 0 where the mask is False.

    Shapes: (B, T) -> (B, T).   Units: nats; times latent units where it is normalized (``normalized_log_ratio``).
    Raises: ConfigError for a normalized ratio of decisions without a spread.
    """
    keep_BT = decisions.mask_BT
    logprob_BT = decisions.logprob_BT.where(keep_BT, 0.0)
    log_ratio_BT = logprob_BT - decisions.old_logprob_BT.detach().where(keep_BT, 0.0)
    if not normalized:
        return log_ratio_BT
    if decisions.std_BT is None:
        raise ConfigError(
            "normalize_ratio needs the noise of denoising steps, and these decisions have none: leave it out"
        )
    drift_BT, std_BT = decisions[DRIFT].where(keep_BT, 0.0), decisions.std_BT.where(keep_BT, 0.0)
    return normalized_log_ratio(log_ratio_BT, drift_BT, std_BT)


def at_level(level: str, log_ratio_BT: Tensor, mask_BT: Tensor, segment_BT: Tensor) -> Tensor:
    """Log-ratios at a level of ``RATIO_LEVELS``.

    Shapes: (B, T) x 3 -> (B, T).   Units: nats.
    """
    return RATIO_LEVELS[level](log_ratio_BT, mask_BT, segment_BT)


def ratio_of(log_ratio_BT: Tensor) -> Tensor:
    """The ratio of a log-ratio clamped to 20 nats.

    Shapes: any -> same.   Units: nats -> dimensionless.
    """
    return log_ratio_BT.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def _decision_bounds(decisions: Decisions, ratio_BT: Tensor) -> dict[str, Tensor]:
    """The bounds of the decisions, such that 1 - low and 1 + high are those of a number."""
    bounds = {}
    if decisions.low_BT is not None:
        bounds["low"] = 1 - (1 - decisions.low_BT).to(ratio_BT)
    if decisions.high_BT is not None:
        bounds["high"] = (1 + decisions.high_BT).to(ratio_BT) - 1
    return bounds


def weighted_decisions(decisions: Decisions, *, coupled: bool) -> Tensor:
    """Decisions with a weight and an advantage, to which every surrogate is proportional; and those coupled to them.

    Shapes: (B, T) -> bool (B, T).
    """
    keep_BT = decisions.mask_BT
    counts_BT = keep_BT & (decisions.advantage_BT != 0) & (decisions.weight_BT != 0)
    return keep_BT & counts_BT.any(1, keepdim=True) if coupled else counts_BT


def _penalty(name: str, decisions: Decisions, value: Value, times_BT: Tensor, factor: float) -> Loss:
    keep_BT = decisions.mask_BT
    loss = factor * (decisions.plain_weight_BT.where(keep_BT, 0.0) * times_BT.where(keep_BT, 0.0)).sum()
    diagnostics = Diagnostics(loss_sums={name: total(loss)}, value_sums=of_value(name, decisions[value], keep_BT))
    return Loss(loss, diagnostics)
