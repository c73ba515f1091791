"""Terms of other views: other weights, or the same ones with another prompt; divergences are in ``losses``.

Each is a mean over the update: v is the aggregate's weight (``Decisions.plain_weight_BT``).

Axes: B samples, T decisions.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, of_value, total
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.terms import TERMS, Loss, Term, log_ratio, ratio_of, scaled, term
from mmgrpo.values import OLD, Value, of_view

if TYPE_CHECKING:
    from torch import Tensor


def values_of(view: str | None) -> tuple[Value, ...]:
    """The log-probability of a view; nothing for the current policy and the behavior policy."""
    return () if view in (None, OLD) else (of_view(view),)


def view_mask(decisions: Decisions, *, view: str | None) -> Tensor:
    """The decisions whose rows have the view: bool (B, T)."""
    return decisions.view_mask(view)


def _check_negative_logprob(view: str | None, grad: bool) -> None:
    if view is None and grad:
        raise ConfigError("negative_logprob of the current policy always has a gradient: leave out grad")


@TERMS.register
@term(
    name=lambda view: "negative_logprob" if view is None else f"negative_logprob@{view}",
    values=values_of,
    active=view_mask,
    through=lambda view, grad: (view,) if grad else (),
    check=_check_negative_logprob,
)
def negative_logprob(decisions: Decisions, *, view: str | None = None, grad: bool = False) -> Loss:
    """The mean of minus the log-probability, of the current policy or of a view: an estimate of its entropy.

    L = sum v (-logprob).

    Units: nats.   Raises: ConfigError for ``grad`` without a view.
    Source: PAPO's double entropy loss, arXiv:2507.06448, and its code, at 0.02 to 0.03 on both views. There the view is
        without grad, and only reported, unless RECOMPUTE_AUG_LOG_PROBS is set: ``grad`` here.
    """
    if view is None:
        return mean_of("negative_logprob", decisions, -decisions.logprob_BT)
    return mean_of(f"negative_logprob@{view}", decisions, -in_view(decisions, view, grad=grad), view=view)


def estimated_divergence(form: str, *, view: str, grad: bool = False) -> Term:
    """The mean of an estimate of the divergence of the current policy from a view, by their log-probabilities.

    L = sum v f D(logprob, logprob_view), f the decision's factor of divergences, 1 if no modulation sets it.

    Units: nats.   Source: ``divergences``.
    """
    name = f"{form}_{view}"

    def loss(decisions: Decisions) -> Loss:
        keep_BT = decisions.view_mask(view)
        now_BT = decisions.logprob_BT.where(keep_BT, 0.0)
        divergence_BT = LOGPROB_DIVERGENCES[form](now_BT, in_view(decisions, view, grad=grad))
        times_BT = scaled(divergence_BT, decisions.divergence_factor_BT)
        return mean_of(name, decisions, times_BT, read_BT=divergence_BT.detach(), view=view)

    return Term(
        name=name,
        loss=loss,
        values=values_of(view),
        active=partial(view_mask, view=view),
        through=(view,) if grad else (),
    )


def _check_distillation(most: float | None) -> None:
    if most is not None and most <= 0:
        raise ConfigError(f"the ratio's limit must be above 0, got {most}; leave it out for no ratio")


@TERMS.register
@term(name=lambda view: f"distillation@{view}", values=values_of, active=view_mask, check=_check_distillation)
def distillation(decisions: Decisions, *, view: str, most: float | None = None) -> Loss:
    """The reverse divergence from a teacher, on the policy's own samples, by its gradient.

    L = sum v sg(c (logprob - logprob_teacher)) logprob, c = 1, or where there is a limit min(r, most).
    r is the ratio to the behavior policy; sg = no gradient.

    Units: square nats; most is a ratio.   Raises: ConfigError for a limit of 0 or less.
    Source: on-policy distillation with the sampled token, and SDPO, arXiv:2601.20802, and its code (lasgroup/SDPO,
        ``compute_self_distillation_loss``), where the teacher is the policy with more in its prompt.
    """
    logprob_BT = decisions.logprob_BT.where(decisions.view_mask(view), 0.0)
    difference_BT = logprob_BT.detach() - in_view(decisions, view)
    if most is not None:
        difference_BT = difference_BT * ratio_of(log_ratio(decisions)).detach().clamp(max=most)
    return mean_of(f"distillation@{view}", decisions, difference_BT * logprob_BT, read_BT=difference_BT, view=view)


def mean_of(
    name: str,
    decisions: Decisions,
    value_BT: Tensor,
    *,
    factor: float = 1.0,
    read_BT: Tensor | None = None,
    view: str | None = None,
) -> Loss:
    """The mean of a value over the update, times a factor; the mean of it, or of the value that is read, is reported.

    Decisions of rows without the view count as zeros, and are left out of the reported mean.

    Shapes: (B, T) -> scalar.
    """
    keep_BT = decisions.view_mask(view)
    value = factor * (decisions.plain_weight_BT.where(keep_BT, 0.0) * value_BT.where(keep_BT, 0.0)).sum()
    value_sums = of_value(name, value_BT.detach() if read_BT is None else read_BT, keep_BT)
    return Loss(value, Diagnostics(loss_sums={name: total(value)}, value_sums=value_sums))


def in_view(decisions: Decisions, view: str, *, grad: bool = False) -> Tensor:
    """The view's log-probability, 0 in rows without the view; the behavior policy is the view ``old``.

    Shapes: -> (B, T).   Units: nats.
    """
    view_logprob_BT = decisions.old_logprob_BT if view == OLD else decisions[of_view(view)]
    logprob_BT = view_logprob_BT.where(decisions.view_mask(view), 0.0)
    return logprob_BT if grad else logprob_BT.detach()
