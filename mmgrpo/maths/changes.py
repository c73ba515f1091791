"""How many decisions a mechanism changes: a method's reward, an estimator, a filter, a selection, a modulation, a term.

A mechanism that changes no decision in a run is not part of the run, even if the configuration names it. Counts are
detached sums, so that slices, minibatches and processes add up, and nothing here touches a gradient of the update.

Axes: B samples, T decisions (tokens or denoising steps).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import ValueSum, total
from mmgrpo.maths.modulations import Modulated
from mmgrpo.maths.terms import Term
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

ROUNDING = 1e-6
"""Relative difference up to which two advantages are the same: several times the rounding of float32."""

CHANGED_FRAC = "changed_frac"
"""The last part of a metric's name that is the share of the decisions that a mechanism changed."""


def mechanism_labels(names: Sequence[str]) -> tuple[str, ...]:
    """A label for each mechanism: its name, of ``python:module:function`` the function; repeated ones are numbered.

    Shapes: any number of names -> as many labels, all different.
    """
    short_names, counts, labels = [name.rpartition(":")[2] for name in names], Counter[str](), []
    for name in short_names:
        counts[name] += 1
        labels.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return tuple(labels)


def changed_count(changed_BT: Tensor, mask_BT: Tensor) -> ValueSum:
    """The kept decisions, and how many of them are changed.

    Shapes: bool, broadcast to (B, T), bool (B, T) -> scalars.
    """
    return ValueSum(total(mask_BT), total(changed_BT & mask_BT))


def advantages_changed(before_BT: Tensor, after_BT: Tensor, mask_BT: Tensor, *, size: float = 0.0) -> ValueSum:
    """The kept decisions, and those whose advantage differs after a mechanism; a relative 1e-6 is rounding.

    Shapes: (B, T) x 2, bool (B, T) -> scalars.   Units: ``size`` in those of the advantages: 1e-6 of it is rounding as
    well, where both advantages are differences from a mean, of which one near 0 is not exact.
    """
    same_BT = torch.isclose(after_BT, before_BT, rtol=ROUNDING, atol=ROUNDING * size, equal_nan=True)
    return changed_count(~same_BT, mask_BT)


def modulation_changed(modulated: Modulated, mask_BT: Tensor, bounds: Mapping[str, float | None]) -> ValueSum:
    """The kept decisions, and those whose weight, divergence or bound differs by a modulation.

    Args:
        modulated: the result of the modulation, of tensors (B, T).
        mask_BT: the kept decisions.
        bounds: the surrogate's ``low`` and ``high`` without modulations; missing or None where it has none.

    Returns:
        Scalars.
    """
    changed_BT = torch.zeros_like(mask_BT)
    for factor_BT in (modulated.loss_BT, modulated.divergence_BT):
        if factor_BT is not None:
            changed_BT = changed_BT | (factor_BT != 1)
    for name, bound_BT in (("low", modulated.low_BT), ("high", modulated.high_BT)):
        default = bounds.get(name)
        if bound_BT is not None:
            changed_BT = changed_BT | (torch.ones_like(mask_BT) if default is None else bound_BT != default)
    return changed_count(changed_BT, mask_BT)


def moved_by(term: Term, decisions: Decisions) -> Tensor:
    """The kept decisions that a term of the loss has a gradient for.

    A decision counts if the term's derivative by its log-probability is not 0, or by another value that depends on the
    weights and is itself not 0: a divergence of exactly 0 is at its minimum, an entropy of 0 too.
    The term is differentiated by copies of these (B, T) matrices; no forward or backward of the model is involved.

    Shapes: (B, T) -> bool (B, T).
    """
    logprob_BT = decisions.logprob_BT.detach().requires_grad_()
    leaves = {
        v: value_BT.detach().requires_grad_() for v, value_BT in decisions.values.items() if value_BT.requires_grad
    }
    loss = term.loss(replace(decisions, logprob_BT=logprob_BT, values={**decisions.values, **leaves})).value
    moved_BT = torch.zeros_like(decisions.mask_BT)
    if not loss.requires_grad:
        return moved_BT
    by_logprob_BT, *by_values = torch.autograd.grad(loss, [logprob_BT, *leaves.values()], allow_unused=True)
    if by_logprob_BT is not None:
        moved_BT = moved_BT | (by_logprob_BT != 0)
    for value_BT, by_value_BT in zip(leaves.values(), by_values, strict=True):
        if by_value_BT is not None:
            moved_BT = moved_BT | ((by_value_BT != 0) & (value_BT.detach() != 0))
    return moved_BT & decisions.mask_BT


def terms_changed(terms: Sequence[Term], decisions: Decisions) -> dict[str, ValueSum]:
    """How many decisions of a slice each term has a gradient for, by the key of its metric; the kept ones not counted.

    Shapes: (B, T) -> scalars.
    """
    return {term_key(term.name): ValueSum(0.0, total(moved_by(term, decisions))) for term in terms}


def term_key(name: str) -> str:
    """The key of the metric of a term."""
    return f"terms/{name}"


def changed_fracs(changes: Mapping[str, ValueSum]) -> dict[str, float]:
    """Metrics: the share of the decisions that each mechanism changed; none where there were no decisions.

    Shapes: scalars by the key of the metric -> numbers between 0 and 1 by its name.
    """
    return {
        f"{key}/{CHANGED_FRAC}": float(change.total / change.count) for key, change in changes.items() if change.count
    }
