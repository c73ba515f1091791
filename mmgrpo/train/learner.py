"""One optimiser update: streams the policy's log-probabilities through the objective.

The objective is a scalar function of the matrix of log-probabilities. Where it treats decisions separately it is
applied to each streamed slice. Where it couples them, its values come first (on policy they are the rollout's own),
it is differentiated with respect to that small matrix, and the policy's backward is streamed with the coefficients.
Either way the gradient is the full graph's, and memory does not grow with T. Selections look at the values first too.

Decisions that the loss does not depend on take no forward: those without an advantage or a weight, and in a coupled
objective those whose coefficients are all 0. The normalisers count them as ever.

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the whole job's update.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from mmgrpo.errors import PolicyError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics
from mmgrpo.maths.objectives import Objective
from mmgrpo.policy import Policy
from mmgrpo.types import Evaluation, Rollout

DIFFERENTIATED = ("logprob_BT", "kl_BT", "entropy_BT", "drift_BT")


@dataclass(frozen=True, slots=True)
class Gradient:
    """What one pass over a minibatch left behind, beside the gradients themselves.

    Attributes:
        diagnostics: sums over those of this rank's decisions that the loss depends on.
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
    gather: Callable[[Tensor], Sequence[Tensor]] = lambda mine: [mine],
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
        gather: one tensor of every rank, on all of them; called as often on each, whatever its rows.

    Returns:
        Diagnostics; the gradients of all ranks are to be summed.
    """
    if objective.needs_reference:
        _settle_reference(policy)
    whole = _decisions(rollout, advantage_B, objective, rows, totals)
    values, num_forwards = whole, 0
    if objective.needs_values:
        values, num_forwards = _values(policy, rollout, whole, objective, on_policy)
    if objective.selections:
        values = objective.selected(values, _job_entropy(values, objective, gather))
        whole = replace(whole, weight_BT=values.weight_BT)
    if objective.separable:
        gradient = _slice_by_slice(policy, rollout, whole, objective)
    else:
        gradient = _values_first(policy, rollout, values, objective)
    return replace(gradient, num_forwards=gradient.num_forwards + num_forwards)


def nonfinite_rows(policy: Policy, rows: Sequence[int], accumulate: Callable[..., Gradient]) -> list[int]:
    """Those of the rows whose own gradient has no finite norm, each tried by itself; for when their sum had none.

    Args:
        policy: what is trained; no gradient is left behind.
        rows: the samples of a minibatch on this rank.
        accumulate: ``accumulate_gradient`` but for its ``rows``; without ``gather``, so that no other rank is waited
            for, and a selection that looks at the whole job's entropies sees those of the row.

    Returns:
        Some of the rows, in their order.
    """
    found = []
    for row in rows:
        _clear(policy)
        accumulate(rows=[row])
        grads = [parameter.grad for parameter in policy.trainable if parameter.grad is not None]
        if not bool(torch.nn.utils.get_total_norm(grads).isfinite()):
            found.append(row)
    _clear(policy)
    return found


@dataclass(frozen=True, slots=True)
class Measured:
    """A rollout whose divergence from the reference is known.

    Attributes:
        rollout: the rollout, its forwards counted with those this took.
        divergence_B: sum over each sample's kept decisions.
    """

    rollout: Rollout
    divergence_B: Tensor


def measured(policy: Policy, rollout: Rollout, divergence: str) -> Measured:
    """Takes each sample's divergence from the reference, without grad, at the weights that sampled."""
    _settle_reference(policy)
    divergence_B, num_forwards = torch.zeros(len(rollout.samples)), rollout.num_forwards
    with torch.no_grad():
        for evaluation in _evaluations(policy, rollout, divergence=divergence, entropy=False):
            if evaluation.kl_BT is None:
                raise PolicyError(f"{type(policy).__name__}.evaluate gave no kl_BT for the divergence {divergence!r}")
            assert evaluation.rows is not None
            kept_BT = evaluation.kl_BT.float().cpu().where(_cells(rollout.mask_BT, evaluation), 0.0)
            divergence_B.index_add_(0, evaluation.rows.cpu(), kept_BT.sum(1))
            num_forwards += evaluation.num_forwards
    return Measured(replace(rollout, num_forwards=num_forwards), divergence_B)


def _settle_reference(policy: Policy) -> None:
    """A full fine-tune copies its weights when the reference is first asked for.

    Every rank has to ask before the weights first move, whether it has rows in this update or not.
    """
    with policy.reference():
        pass


def _clear(policy: Policy) -> None:
    for parameter in policy.trainable:
        parameter.grad = None


def _decisions(
    rollout: Rollout, advantage_B: Tensor, objective: Objective, rows: Sequence[int], totals: Totals
) -> Decisions:
    """The minibatch as the objective sees it, its log-probabilities still those of the rollout; other rows masked."""
    mask_BT = torch.zeros_like(rollout.mask_BT)
    mask_BT[list(rows)] = rollout.mask_BT[list(rows)]
    return Decisions(
        logprob_BT=rollout.old_logprob_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        advantage_BT=advantage_B[:, None].expand(rollout.shape),
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, totals, rollout.noise),
        kl_weight_BT=objective.kl_weights(mask_BT, totals),
        segment_BT=rollout.segment_BT,
        std_BT=None if rollout.noise is None else rollout.noise.std_BT,
    )


def _values(
    policy: Policy, rollout: Rollout, whole: Decisions, objective: Objective, on_policy: bool
) -> tuple[Decisions, int]:
    """The decisions with their values at the weights of now, without grad, and the forwards that took.

    Log-probabilities that nothing depends on stay the rollout's.
    """
    if on_policy and objective.rollout_knows_values:
        return replace(whole, drift_BT=torch.zeros_like(whole.logprob_BT) if objective.needs_drift else None), 0
    coupled = not objective.separable
    read_BT = whole.mask_BT if objective.selects_by_entropy else objective.contributing(whole)
    found: dict[str, Tensor] = {}
    num_forwards = 0
    with torch.no_grad():
        for evaluation in _evaluations(
            policy,
            rollout.keep(read_BT),
            divergence=objective.divergence if coupled and objective.needs_reference else None,
            entropy=objective.selects_by_entropy or (coupled and objective.needs_entropy),
        ):
            num_forwards += evaluation.num_forwards
            for name in DIFFERENTIATED:
                value = getattr(evaluation, name)
                if value is not None:
                    start = whole.logprob_BT.clone() if name == "logprob_BT" else torch.zeros_like(whole.logprob_BT)
                    found.setdefault(name, start)[_index(evaluation)] = value.float().cpu()
    return replace(whole, **found), num_forwards


def _job_entropy(values: Decisions, objective: Objective, gather: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
    """(N,) entropies of the whole job's update; none if no selection reads them."""
    mine = torch.zeros(0)
    if not objective.selects_by_entropy:
        return mine
    if values.entropy_BT is not None:
        mine = values.entropy_BT[values.mask_BT]
    return torch.cat(list(gather(mine)))


def _slice_by_slice(policy: Policy, rollout: Rollout, whole: Decisions, objective: Objective) -> Gradient:
    whole = replace(whole, mask_BT=objective.contributing(whole))
    diagnostics, max_gap, num_forwards = Diagnostics.zero(), 0.0, 0
    with closing(_trained(policy, rollout.keep(whole.mask_BT), objective)) as slices:
        for evaluation in slices:
            decisions = _with_values(_at(whole, evaluation), evaluation)
            loss = objective(decisions)
            loss.value.backward()
            diagnostics += loss.diagnostics
            max_gap = max(max_gap, _gap(decisions))
            num_forwards += evaluation.num_forwards
    return Gradient(diagnostics, max_gap, num_forwards)


def _values_first(policy: Policy, rollout: Rollout, values: Decisions, objective: Objective) -> Gradient:
    values = replace(values, mask_BT=objective.contributing(values))
    if not bool(values.mask_BT.any()):
        return Gradient(Diagnostics.zero(), 0.0, 0)
    needed = [name for name in DIFFERENTIATED if getattr(values, name) is not None]
    leaves = {name: getattr(values, name).detach().clone().requires_grad_() for name in needed}
    loss = objective(replace(values, **leaves))
    grads = torch.autograd.grad(loss.value, list(leaves.values()), allow_unused=True)
    coefficients = {name: grad for name, grad in zip(needed, grads, strict=True) if grad is not None}
    moves_BT = torch.stack([coefficient != 0 for coefficient in coefficients.values()]).any(0)
    max_gap, num_forwards = 0.0, 0
    with closing(_trained(policy, rollout.keep(values.mask_BT & moves_BT), objective)) as slices:
        for evaluation in slices:
            now = _with_values(_at(values, evaluation), evaluation)
            parts = [(_cells(grad, evaluation), getattr(now, name)) for name, grad in coefficients.items()]
            terms = [(coefficient.to(value) * value).sum() for coefficient, value in parts if value is not None]
            sum(terms, start=torch.zeros_like(terms[0])).backward()
            max_gap = max(max_gap, _gap(now))
            num_forwards += evaluation.num_forwards
    return Gradient(loss.diagnostics, max_gap, num_forwards)


def _trained(policy: Policy, rollout: Rollout, objective: Objective) -> Generator[Evaluation, None, None]:
    """The slices to differentiate, with what the objective needs of them."""
    divergence = objective.divergence if objective.needs_reference else None
    return _evaluations(policy, rollout, divergence=divergence, entropy=objective.needs_entropy)


def _evaluations(
    policy: Policy, rollout: Rollout, *, divergence: str | None, entropy: bool
) -> Generator[Evaluation, None, None]:
    """The policy's slices; every kept decision of the rollout in exactly one."""
    rows = rollout.mask_BT.any(1).nonzero().flatten()
    if len(rows) == 0:
        return
    missing_BT = rollout.mask_BT.clone()
    for evaluation in policy.evaluate(rollout, rows.tolist(), divergence=divergence, entropy=entropy):
        if evaluation.rows is None:
            evaluation = replace(evaluation, rows=rows)
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
    matrices = {field.name: getattr(whole, field.name) for field in fields(whole)}
    return replace(
        whole,
        **{name: _cells(matrix, evaluation).to(device) for name, matrix in matrices.items() if matrix is not None},
    )


def _with_values(decisions: Decisions, evaluation: Evaluation) -> Decisions:
    return replace(decisions, **{name: getattr(evaluation, name) for name in DIFFERENTIATED})


def _gap(decisions: Decisions) -> float:
    gap_BT = (decisions.logprob_BT.detach() - decisions.old_logprob_BT).abs()
    return float(gap_BT.where(decisions.mask_BT, 0.0).nan_to_num(nan=float("inf")).max())
