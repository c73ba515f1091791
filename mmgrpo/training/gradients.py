"""The gradient of an update: streams the policy's log-probabilities through the objective.

The objective is a scalar function of the matrix of log-probabilities. Where it treats decisions separately it is
applied to each streamed slice. Where it couples them, its values are computed first (on policy they are the rollout's
own), it is differentiated with respect to that small matrix, and the policy's backward is streamed with the
coefficients. Either way the gradient is that of the full graph, and memory does not grow with T. Selections read the
values first too.

Views of the configuration are auxiliary forward passes of the same decisions. Their values are computed first, without
grad; where a term is differentiated by them, their backward is streamed as the policy's is.

Decisions that the loss does not depend on take no forward: those without an advantage or a weight, and in a coupled
objective those whose coefficients are all 0. The normalizers count them.

Thresholds do not separate equal decisions: values of one state, computed in different batches, differ by rounding
errors, so selections compare the value of the first decision of each state (``shared``).

Axes: B samples, T decisions (tokens or denoising steps), N kept decisions of the update of the job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from mmgrpo.differentiating import backward
from mmgrpo.distributed.job import Job
from mmgrpo.distributed.parameter_shards import assign_gradients, local_shards
from mmgrpo.errors import ShapeError
from mmgrpo.maths.aggregates import Totals
from mmgrpo.maths.changes import term_key, terms_changed
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.maths.modulations import detached
from mmgrpo.maths.objectives import ZERO_ON_POLICY, Objective
from mmgrpo.policy import Policy
from mmgrpo.training.streaming import cells, evaluations, index_of
from mmgrpo.training.views import ViewRows, evaluate_views, policy_values, with_view_logits
from mmgrpo.types import Evaluation, Rollout
from mmgrpo.values import OF_STATE, REFERENCE, Value, of_view

NO_VIEWS: Mapping[str, ViewRows] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Gradient:
    """The results of one pass over a minibatch, besides the gradients.

    Attributes:
        diagnostics: sums over those of this rank's decisions that the loss depends on.
        max_gap: largest |log-probability now - at rollout| of decisions recorded under the weights of the step: the
            on-policy gap, before these move; None: there were no such decisions.
        num_forwards: model forwards spent, in rows of one sample.
    """

    diagnostics: Diagnostics
    max_gap: float | None
    num_forwards: float

    def merge(self, other: Gradient) -> Gradient:
        """The sum of both."""
        return Gradient(
            self.diagnostics + other.diagnostics,
            largest_gap(self.max_gap, other.max_gap),
            self.num_forwards + other.num_forwards,
        )


def largest_gap(*gaps: float | None) -> float | None:
    """The largest of the measured gaps; None if there are none."""
    return max((gap for gap in gaps if gap is not None), default=None)


def accumulate_gradient(
    policy: Policy,
    rollout: Rollout,
    advantage_BT: Tensor,
    objective: Objective,
    *,
    rows: Sequence[int],
    totals: Totals,
    reward_B: Tensor | None = None,
    gather: Callable[[Tensor], Sequence[Tensor]] = lambda tensor: [tensor],
    views: Mapping[str, ViewRows] = NO_VIEWS,
) -> Gradient:
    """Adds the objective's gradient over ``rows`` to the trainable parameters' ``grad``.

    Args:
        policy: the trained policy.
        rollout: its rollout; the ages tell whether the weights are still those of the behavior policy.
        advantage_BT: advantage of each decision of the rollout.
        objective: the loss.
        rows: the samples of this minibatch on this rank.
        totals: the counts that the loss averages over, over the rows of all ranks.
        reward_B: reward of each sample, for terms that compare the samples of a group themselves.
        gather: one tensor of every rank, on all of them; called equally often on each rank, for any rows.
        views: the rows as the views of the configuration see them.

    Returns:
        Diagnostics; the gradients of all ranks are to be summed.
    """
    if advantage_BT.shape != rollout.shape:
        raise ShapeError(f"advantage_BT must be {rollout.shape} like the rollout, got {tuple(advantage_BT.shape)}")
    if REFERENCE in objective.views:
        _ensure_reference(policy)
    decisions = _decisions(rollout, advantage_BT, objective, rows, totals, reward_B)
    rollout = with_view_logits(rollout, objective.values | objective.first_values, views)
    in_views = evaluate_views(rollout.keep(decisions.mask_BT), objective.values | objective.first_values, views)
    values = decisions = replace(decisions, values=in_views.values)
    num_forwards = in_views.num_forwards
    num_decisions = float(decisions.mask_BT.sum())
    changes = {term_key(term.name): ValueSum(num_decisions, 0.0) for term in objective.terms}
    if objective.needs_values:
        values, spent = _values(policy, rollout, decisions, objective, views)
        num_forwards += spent
    if objective.selections or objective.modulations:
        compared = shared(values, rollout) if objective.looks_at_all else values
        job_values = _job_values(compared, objective, gather)
        adjusted = objective.adjusted(compared, job_values)
        changes |= adjusted.changes
        values = replace(adjusted.decisions, logprob_BT=values.logprob_BT, values=values.values)
        decisions = replace(values, logprob_BT=decisions.logprob_BT, values=decisions.values)
    if objective.separable:
        gradient = _slice_by_slice(policy, rollout, decisions, objective, views)
    else:
        gradient = _values_first(policy, rollout, values, objective, views)
    diagnostics = gradient.diagnostics + Diagnostics(change_sums=changes)
    return replace(gradient, diagnostics=diagnostics, num_forwards=gradient.num_forwards + num_forwards)


def nonfinite_rows(policy: Policy, rows: Sequence[int], accumulate: Callable[..., Gradient], job: Job) -> list[int]:
    """Those of the rows with a gradient of no finite norm, each tried separately; used when their sum had none.

    Args:
        policy: the trained policy; its gradients are cleared.
        rows: the samples of a minibatch on this rank.
        accumulate: ``accumulate_gradient`` without its ``rows``; without ``gather``, so that no other rank is waited
            for, and a selection that reads the entropies of all processes reads those of the row.
        job: the processes, which take turns where gradients are those of all of them.

    Returns:
        Some of the rows, in their order.
    """
    parameters, bad_rows = policy.trainable, []
    parts = local_shards(parameters)
    turns = [(rank, row) for rank, rows in enumerate(job.gather(list(rows))) for row in rows]
    for rank, row in turns if job.is_sharded else [(job.rank, row) for row in rows]:
        _clear(policy)
        if rank == job.rank:
            accumulate(rows=[row])
        job.finish_sharded_calls()
        assign_gradients(parameters, parts)
        total_norm = torch.nn.utils.get_total_norm([part.grad for part in parts if part.grad is not None])
        if (
            not all(norm.isfinite() for norm in (job.gather(total_norm) if job.is_sharded else [total_norm]))
            and rank == job.rank
        ):
            bad_rows.append(row)
    _clear(policy)
    return bad_rows


def with_values(
    policy: Policy, rollout: Rollout, values: Collection[Value], views: Mapping[str, ViewRows] = NO_VIEWS
) -> Rollout:
    """The rollout with these values of its decisions known, taken without grad at the weights that sampled.

    Args:
        policy: the policy that sampled it, with unchanged weights.
        rollout: the rollout of the decisions; values that it has are not computed again.
        values: the values to compute; 0 where the mask is False.
        views: the rows as the views of the configuration see them.

    Returns:
        The rollout, its forwards counted with those this took.
    """
    missing = [value for value in values if value not in rollout.values]
    if not missing:
        return rollout
    in_views = evaluate_views(rollout, missing, views)
    evaluated = with_view_logits(rollout, missing, views)
    num_forwards = rollout.num_forwards + in_views.num_forwards
    rollout = replace(rollout, values={**rollout.values, **in_views.values}, num_forwards=num_forwards)
    missing = policy_values(missing, views)
    if not missing:
        return rollout
    if any(value.view == REFERENCE for value in missing):
        _ensure_reference(policy)
    computed = {value: torch.zeros(rollout.shape) for value in missing}
    num_forwards = rollout.num_forwards
    with torch.no_grad():
        for evaluation in evaluations(policy, evaluated, missing):
            part_mask_BT = cells(rollout.mask_BT, evaluation)
            for value in missing:
                computed[value][index_of(evaluation)] = evaluation.values[value].float().cpu().where(part_mask_BT, 0.0)
            num_forwards += evaluation.num_forwards
    return replace(rollout, values={**rollout.values, **computed}, num_forwards=num_forwards)


def _ensure_reference(policy: Policy) -> None:
    """A full fine-tune copies its weights on the first use of the reference.

    Every rank must call this before the weights first move, with or without rows in this update.
    """
    with policy.reference():
        pass


def _clear(policy: Policy) -> None:
    for parameter in policy.trainable:
        parameter.grad = None


def _decisions(
    rollout: Rollout,
    advantage_BT: Tensor,
    objective: Objective,
    rows: Sequence[int],
    totals: Totals,
    reward_B: Tensor | None,
) -> Decisions:
    """The minibatch as the objective sees it, its log-probabilities still those of the rollout; other rows masked."""
    mask_BT = torch.zeros_like(rollout.mask_BT)
    mask_BT[list(rows)] = rollout.mask_BT[list(rows)]
    return Decisions(
        logprob_BT=rollout.old_logprob_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        advantage_BT=advantage_BT,
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, totals, rollout.noise),
        mean_weight_BT=objective.mean_weights(mask_BT, totals),
        segment_BT=rollout.segment_BT,
        std_BT=None if rollout.noise is None else rollout.noise.std_BT,
        reward_BT=None if reward_B is None else reward_B[:, None].expand(rollout.shape),
        group_BT=rollout.prompt_index_B[:, None].expand(rollout.shape),
        source_BT=None if rollout.source_B is None else rollout.source_B[:, None].expand(rollout.shape),
        unchanged_BT=rollout.unchanged_B[:, None].expand(rollout.shape),
        num_groups=max(totals.num_groups, 1),
    )


def _values(
    policy: Policy, rollout: Rollout, decisions: Decisions, objective: Objective, views: Mapping[str, ViewRows]
) -> tuple[Decisions, float]:
    """The decisions with their values under the current weights, without grad, and the number of forwards.

    Log-probabilities that nothing depends on stay the rollout's.
    """
    requested, nothing_BT = policy_values(objective.first_values, views), torch.zeros_like(decisions.logprob_BT)
    if rollout.on_policy:
        on_policy_values = dict.fromkeys(ZERO_ON_POLICY, nothing_BT) | dict(rollout.values)
        if all(value in on_policy_values for value in requested):
            return replace(
                decisions, values={**decisions.values, **{value: on_policy_values[value] for value in requested}}
            ), 0
    read_BT = decisions.mask_BT if objective.looks_at_all else objective.contributing(decisions)
    logprob_BT, computed, num_forwards = (
        decisions.logprob_BT.clone(),
        {value: nothing_BT.clone() for value in requested},
        0,
    )
    with torch.no_grad():
        for evaluation in evaluations(policy, rollout.keep(read_BT), requested):
            num_forwards += evaluation.num_forwards
            logprob_BT[index_of(evaluation)] = evaluation.logprob_BT.float().cpu()
            for value, computed_BT in computed.items():
                computed_BT[index_of(evaluation)] = evaluation.values[value].float().cpu()
    return replace(decisions, logprob_BT=logprob_BT, values={**decisions.values, **computed}), num_forwards


def _job_values(
    values: Decisions, objective: Objective, gather: Callable[[Tensor], Sequence[Tensor]]
) -> dict[Value, Tensor]:
    """(N,) values of the kept decisions of the update on all processes: those that selections and modulations read."""
    return {value: torch.cat(list(gather(detached(values, value)[values.mask_BT]))) for value in objective.job_values}


def _slice_by_slice(
    policy: Policy, rollout: Rollout, batch: Decisions, objective: Objective, views: Mapping[str, ViewRows]
) -> Gradient:
    batch = replace(batch, mask_BT=objective.contributing(batch))
    diagnostics, num_forwards = Diagnostics(), 0
    max_gap: float | None = None
    requested = policy_values(objective.values, views)
    with closing(evaluations(policy, rollout.keep(batch.mask_BT), requested)) as slices:
        for evaluation in slices:
            decisions = _with_values(batch, evaluation)
            loss = objective(decisions)
            backward(loss.value)
            diagnostics += loss.diagnostics + Diagnostics(change_sums=terms_changed(objective.terms, decisions))
            max_gap = largest_gap(max_gap, _gap(decisions))
            num_forwards += evaluation.num_forwards
    return Gradient(diagnostics, max_gap, num_forwards)


def _values_first(
    policy: Policy, rollout: Rollout, values: Decisions, objective: Objective, views: Mapping[str, ViewRows]
) -> Gradient:
    values = replace(values, mask_BT=objective.contributing(values))
    if not bool(values.mask_BT.any()):
        return Gradient(Diagnostics(), None, 0)
    logprob_BT = values.logprob_BT.detach().clone().requires_grad_()
    policy_value_names = policy_values(objective.values, views)
    through = {of_view(name): views[name] for name in sorted(objective.through)}
    leaves = {value: values[value].detach().clone().requires_grad_() for value in (*policy_value_names, *through)}
    decisions = replace(values, logprob_BT=logprob_BT, values={**values.values, **leaves})
    loss = objective(decisions)
    diagnostics = loss.diagnostics + Diagnostics(change_sums=terms_changed(objective.terms, decisions))
    grads = torch.autograd.grad(loss.value, [logprob_BT, *leaves.values()], allow_unused=True)
    of_logprob_BT, of_value = grads[0], dict(zip(leaves, grads[1:], strict=True))
    policy_grads = [of_logprob_BT, *(of_value[value] for value in policy_value_names)]
    moves_BT = torch.stack(
        [torch.zeros_like(values.mask_BT), *(grad != 0 for grad in policy_grads if grad is not None)]
    )
    num_forwards = 0
    max_gap: float | None = None
    with closing(evaluations(policy, rollout.keep(values.mask_BT & moves_BT.any(0)), policy_value_names)) as slices:
        for evaluation in slices:
            parts = [(of_logprob_BT, evaluation.logprob_BT)]
            parts += [(of_value[value], evaluation.values[value]) for value in policy_value_names]
            _backward(parts, evaluation)
            max_gap = largest_gap(max_gap, _gap(_with_values(values, evaluation)))
            num_forwards += evaluation.num_forwards
    for value, view_rows in through.items():
        grad_BT = of_value[value]
        if grad_BT is not None:
            num_forwards += _through(view_rows, grad_BT.where(values.view_mask(value.view), 0.0))
    return Gradient(diagnostics, max_gap, num_forwards)


def _through(view_rows: ViewRows, grad_BT: Tensor) -> float:
    """Streams a view's backward with the coefficients of its log-probabilities; gives the forwards that took."""
    num_forwards = 0
    with closing(evaluations(view_rows.policy, view_rows.rollout.keep(grad_BT != 0), ())) as slices:
        for evaluation in slices:
            _backward([(grad_BT, evaluation.logprob_BT)], evaluation)
            num_forwards += evaluation.num_forwards
    return num_forwards


def _backward(parts: Sequence[tuple[Tensor | None, Tensor]], evaluation: Evaluation) -> None:
    """The backward of a slice: of its computed values, times the coefficients."""
    terms = [
        (cells(grad_BT, evaluation).to(current) * current).sum() for grad_BT, current in parts if grad_BT is not None
    ]
    backward(sum(terms, start=torch.zeros_like(terms[0])))


def _with_values(batch: Decisions, evaluation: Evaluation) -> Decisions:
    """The decisions of a slice, on its device, with their log-probabilities and values at the current weights."""
    decisions = batch.at(index_of(evaluation), evaluation.logprob_BT.device)
    return replace(decisions, logprob_BT=evaluation.logprob_BT, values={**decisions.values, **evaluation.values})


def _gap(decisions: Decisions) -> float | None:
    gap_BT = (decisions.logprob_BT.detach() - decisions.old_logprob_BT).abs()
    unchanged_BT = decisions.mask_BT if decisions.unchanged_BT is None else decisions.mask_BT & decisions.unchanged_BT
    gap = float(gap_BT.nan_to_num(nan=float("inf")).where(unchanged_BT, -1.0).max())
    return None if gap < 0 else gap


def shared(decisions: Decisions, rollout: Rollout) -> Decisions:
    """The decisions with the value of the first of each state, in the order of rows and columns, on all of the state.

    A state is one of the rollout's under the same sampling settings. Values of the distribution are shared by state,
    log-probabilities by state and token; all others are left as they are, those of views among them, which may have
    another prompt for each row.

    Args:
        decisions: of complete rows, with values at the current weights, without grad.
        rollout: whose decisions they are.

    Returns:
        The decisions, for comparisons alone.
    """
    keep_BT = decisions.mask_BT
    if not bool(keep_BT.any()):
        return decisions
    sampling_BT = _sampling(rollout)[:, None].expand(rollout.shape)
    state_N2 = torch.stack([sampling_BT[keep_BT], rollout.state_BT[keep_BT]], dim=1)
    first_N = _first(state_N2)
    values = {
        value: _taken(matrix_BT, keep_BT, first_N) if value.view is None and value.name in OF_STATE else matrix_BT
        for value, matrix_BT in decisions.values.items()
    }
    logprob_BT = decisions.logprob_BT
    if rollout.token_BT is not None:
        first_N = _first(torch.cat([state_N2, rollout.token_BT[keep_BT][:, None]], dim=1))
        logprob_BT = _taken(logprob_BT, keep_BT, first_N)
    return replace(decisions, logprob_BT=logprob_BT, values=values)


def _sampling(rollout: Rollout) -> Tensor:
    """(B,) a number of each row's sampling settings; 0 for all where no record holds them."""
    records = rollout.record_B or [None] * len(rollout.samples)
    keys = [repr(None if record is None else record.get("settings")) for record in records]
    number = {key: n for n, key in enumerate(dict.fromkeys(keys))}
    return torch.tensor([number[key] for key in keys])


def _taken(matrix_BT: Tensor, keep_BT: Tensor, index_N: Tensor) -> Tensor:
    return matrix_BT.masked_scatter(keep_BT, matrix_BT[keep_BT][index_N])


def _first(key_Nk: Tensor) -> Tensor:
    """The place of the first key that equals each.

    Shapes: (N, k) -> (N,).
    """
    number_N = key_Nk.unique(dim=0, return_inverse=True)[1]
    index_N = torch.arange(len(number_N))
    first_K = torch.full_like(index_N, len(index_N)).scatter_reduce(0, number_N, index_N, reduce="amin")
    return first_K[number_N]
