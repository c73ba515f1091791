"""One optimiser update: streams the policy's log-probabilities through the objective.

The objective is a scalar function of the matrix of log-probabilities. Where it treats decisions separately it is
applied to each streamed slice. Where it couples them, its values come first (on policy they are the rollout's own),
it is differentiated with respect to that small matrix, and the policy's backward is streamed with the coefficients.
Either way the gradient is the full graph's, and memory does not grow with T.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.objectives import Decisions, Objective
from mmgrpo.policy import Policy
from mmgrpo.types import Evaluation, Rollout


@dataclass(frozen=True, slots=True)
class Gradient:
    """What one pass over a minibatch left behind, beside the gradients themselves.

    Attributes:
        diagnostics: sums over this rank's decisions.
        max_gap: largest |log-probability now - at rollout|: the on-policy gap, where the weights have not moved.
        num_forwards: model forwards spent, in rows of one sample.
    """

    diagnostics: Diagnostics
    max_gap: float
    num_forwards: int


def accumulate_gradient(
    policy: Policy,
    rollout: Rollout,
    advantage_B: Tensor,
    objective: Objective,
    *,
    rows: Sequence[int],
    totals: Totals,
    on_policy: bool,
) -> Gradient:
    """Adds the objective's gradient over ``rows`` to the trainable parameters' ``grad``.

    Args:
        policy: what is trained.
        rollout: what it drew.
        advantage_B: advantage of each sample of the rollout.
        objective: the loss.
        rows: the samples of this minibatch on this rank.
        totals: what the loss averages over, counted over all ranks' rows.
        on_policy: whether the weights are still those that sampled.

    Returns:
        Diagnostics; the gradients of all ranks are to be summed.
    """
    if not rows:
        return Gradient(Diagnostics.zero(), 0.0, 0)
    whole = _decisions(rollout, advantage_B, objective, totals)
    if objective.separable:
        return _slice_by_slice(policy, rollout, whole, objective, rows)
    return _values_first(policy, rollout, whole, objective, rows, on_policy)


def _decisions(rollout: Rollout, advantage_B: Tensor, objective: Objective, totals: Totals) -> Decisions:
    """The whole rollout as the objective sees it, its log-probabilities still those of the rollout."""
    return Decisions(
        logprob_BT=rollout.old_logprob_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        advantage_BT=advantage_B[:, None].expand(rollout.shape),
        mask_BT=rollout.mask_BT,
        weight_BT=objective.weights(rollout.mask_BT, totals, rollout.noise),
        kl_weight_BT=objective.kl_weights(rollout.mask_BT, totals),
        segment_BT=rollout.segment_BT,
        std_BT=None if rollout.noise is None else rollout.noise.std_BT,
    )


def _slice_by_slice(
    policy: Policy, rollout: Rollout, whole: Decisions, objective: Objective, rows: Sequence[int]
) -> Gradient:
    diagnostics, max_gap, num_forwards = Diagnostics.zero(), 0.0, 0
    with closing(_evaluations(policy, rollout, objective, rows)) as slices:
        for evaluation in slices:
            decisions = _with_values(_at(whole, evaluation), evaluation)
            loss = objective(decisions)
            loss.value.backward()
            diagnostics += loss.diagnostics
            max_gap = max(max_gap, _gap(decisions))
            num_forwards += evaluation.num_forwards
    return Gradient(diagnostics, max_gap, num_forwards)


def _values_first(
    policy: Policy, rollout: Rollout, whole: Decisions, objective: Objective, rows: Sequence[int], on_policy: bool
) -> Gradient:
    index = torch.as_tensor(rows)
    values, num_forwards = _on_policy_values(whole, objective), 0
    if values is None or not on_policy:
        values, num_forwards = _computed_values(policy, rollout, whole, objective, rows)
    needed = [name for name in DIFFERENTIATED if getattr(values, name) is not None]
    leaves = [getattr(values, name)[index].detach().requires_grad_() for name in needed]
    loss = objective(replace(_rows(values, index), **dict(zip(needed, leaves, strict=True))))
    coefficients = torch.autograd.grad(loss.value, leaves, allow_unused=True)
    spread = {
        name: torch.zeros(rollout.shape).index_copy(0, index, torch.zeros_like(leaf) if grad is None else grad)
        for name, leaf, grad in zip(needed, leaves, coefficients, strict=True)
    }
    max_gap = 0.0
    with closing(_evaluations(policy, rollout, objective, rows)) as slices:
        for evaluation in slices:
            now = _with_values(_at(whole, evaluation), evaluation)
            parts = [(_cells(spread[name], evaluation), getattr(now, name)) for name in needed]
            terms = [(coefficient.to(value) * value).sum() for coefficient, value in parts if value is not None]
            sum(terms, start=torch.zeros_like(terms[0])).backward()
            max_gap = max(max_gap, _gap(now))
            num_forwards += evaluation.num_forwards
    return Gradient(loss.diagnostics, max_gap, num_forwards)


DIFFERENTIATED = ("logprob_BT", "kl_BT", "entropy_BT", "drift_BT")


def _on_policy_values(whole: Decisions, objective: Objective) -> Decisions | None:
    """The values at the weights that sampled, where the rollout alone tells them; None if the objective asks more."""
    if objective.needs_reference or objective.needs_entropy:
        return None
    drift_BT = torch.zeros_like(whole.logprob_BT) if objective.needs_drift else None
    return replace(whole, drift_BT=drift_BT)


def _computed_values(
    policy: Policy, rollout: Rollout, whole: Decisions, objective: Objective, rows: Sequence[int]
) -> tuple[Decisions, int]:
    """The values at the weights of now, by one pass without grad."""
    found: dict[str, Tensor] = {}
    num_forwards = 0
    with torch.no_grad():
        for evaluation in _evaluations(policy, rollout, objective, rows):
            num_forwards += evaluation.num_forwards
            for name in DIFFERENTIATED:
                value = getattr(evaluation, name)
                if value is not None:
                    matrix = found.setdefault(
                        name, whole.logprob_BT.clone() if name == "logprob_BT" else torch.zeros_like(whole.logprob_BT)
                    )
                    matrix[_index(evaluation)] = value.float().cpu()
    return replace(whole, **found), num_forwards


def _evaluations(
    policy: Policy, rollout: Rollout, objective: Objective, rows: Sequence[int]
) -> Generator[Evaluation, None, None]:
    """The policy's slices; every kept decision of ``rows`` in exactly one."""
    divergence = objective.divergence if objective.needs_reference else None
    missing_BT = torch.zeros_like(rollout.mask_BT)
    missing_BT[list(rows)] = rollout.mask_BT[list(rows)]
    for evaluation in policy.evaluate(rollout, rows, divergence=divergence, entropy=objective.needs_entropy):
        if evaluation.rows is None:
            evaluation = replace(evaluation, rows=torch.as_tensor(rows))
        index = _index(evaluation)
        if not bool(missing_BT[index].eq(rollout.mask_BT[index]).all()):
            raise PolicyError(f"{type(policy).__name__}.evaluate gave a decision twice")
        missing_BT[index] = False
        yield evaluation
    if bool(missing_BT.any()):
        raise PolicyError(f"{type(policy).__name__}.evaluate left out {int(missing_BT.sum())} decisions")


def _index(evaluation: Evaluation) -> tuple[Tensor, Tensor]:
    assert evaluation.rows is not None
    return evaluation.rows[:, None], torch.as_tensor(list(evaluation.columns))[None, :]


def _cells(matrix_BT: Tensor, evaluation: Evaluation) -> Tensor:
    return matrix_BT[_index(evaluation)]


def _at(whole: Decisions, evaluation: Evaluation) -> Decisions:
    """The slice's rows and columns, on its device."""
    device = evaluation.logprob_BT.device
    return _each(whole, lambda matrix_BT: _cells(matrix_BT, evaluation).to(device))


def _rows(whole: Decisions, index: Tensor) -> Decisions:
    return _each(whole, lambda matrix_BT: matrix_BT[index])


def _each(whole: Decisions, change: Callable[[Tensor], Tensor]) -> Decisions:
    """The decisions with each of their matrices changed."""
    matrices = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return replace(whole, **{name: change(matrix) for name, matrix in matrices.items() if matrix is not None})


def _with_values(decisions: Decisions, evaluation: Evaluation) -> Decisions:
    return replace(decisions, **{name: getattr(evaluation, name) for name in DIFFERENTIATED})


def _gap(decisions: Decisions) -> float:
    gap_BT = (decisions.logprob_BT.detach() - decisions.old_logprob_BT).abs()
    return float(gap_BT.where(decisions.mask_BT, 0.0).nan_to_num(nan=float("inf")).max())
