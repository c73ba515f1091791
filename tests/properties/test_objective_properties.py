"""Properties of the parts of an objective: surrogates, bounds, aggregates, step weights, modulations, selections and
terms.

A surrogate and a bound are tested as the term of an objective, at every level of the ratio.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from mmgrpo.maths.aggregates import count
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.modulations import ADVANTAGE, LOGPROB, OLD_LOGPROB, Modulated
from mmgrpo.maths.ratios import RATIO_LEVELS
from mmgrpo.maths.surrogates import Surrogate, unclipped
from mmgrpo.maths.terms import DECISION, GROUP, SurrogateTerm, Term
from mmgrpo.types import Noise
from mmgrpo.values import ENTROPY, Value
from tests.properties.harness import assert_near, assert_same, assert_unchanged, checks_as_tests, tensors_of
from tests.properties.registered import Case
from tests.properties.row_examples import Rows, decisions_of, junk, rows

LOSSES = ("surrogate", "bound", "terms")
ALL_LEVELS = tuple(RATIO_LEVELS)


def terms_of(case: Case) -> Sequence[Term]:
    """The terms of a case: its own, or those of a surrogate or bound at every level of the ratio."""
    function = case.bind()
    if case.kind == "terms":
        return (function(),)
    surrogate, bound = (function, None) if case.kind == "surrogate" else (unclipped, function)
    return tuple(
        SurrogateTerm(surrogate=surrogate, ratio_level=level, bound=bound, normalized=False).as_term()
        for level in ALL_LEVELS
    )


def sample_case(case: Case, data: st.DataObject, **kinds: Any) -> tuple[Decisions, Sequence[Term], Rows]:
    """Decisions with what a term or a modulation reads, and the terms of the case."""
    terms = terms_of(case) if case.kind in LOSSES else ()
    values = {value for term in terms for value in term.values}
    if case.kind == "modulations":
        values |= set(case.bind()().values)
    if case.kind == "selections":
        values |= {ENTROPY}
    some = data.draw(rows(**kinds))
    return decisions_of(some, sorted(values, key=str)), terms, some


def with_gradients(decisions: Decisions) -> tuple[Decisions, list[Tensor]]:
    """The decisions with their log-probabilities and values as leaves that gradients are taken of."""
    logprob_BT = decisions.logprob_BT.detach().clone().requires_grad_()
    values = {value: tensor.detach().clone().requires_grad_() for value, tensor in decisions.values.items()}
    return replace(decisions, logprob_BT=logprob_BT, values=values), [logprob_BT, *values.values()]


def loss_and_gradients(term: Term, decisions: Decisions) -> tuple[Tensor, list[Tensor]]:
    """The loss of a term, and its gradients with respect to log-probabilities and values."""
    leafy, leaves = with_gradients(decisions)
    value = term.loss(leafy).value
    if not value.requires_grad:
        return value.detach(), [torch.zeros_like(leaf) for leaf in leaves]
    gradients = torch.autograd.grad(value, leaves, allow_unused=True)
    return value.detach(), [
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, gradients, strict=True)
    ]


def job_values(decisions: Decisions) -> Mapping[Value, Tensor]:
    """Values of all kept decisions of the update, for modulations and selections."""
    local = {LOGPROB: decisions.logprob_BT, OLD_LOGPROB: decisions.old_logprob_BT, ADVANTAGE: decisions.advantage_BT}
    return {value: tensor[decisions.mask_BT] for value, tensor in {**local, **decisions.values}.items()}


def changes(case: Case, decisions: Decisions, of_job: Mapping[Value, Tensor]) -> list[Tensor]:
    """What a modulation or a selection gives for each decision."""
    part = case.bind()()
    if case.kind == "selections":
        return [part.keep(decisions, of_job[ENTROPY])]
    return tensors_of(part.of(decisions, of_job))


def junk_decisions(decisions: Decisions) -> Decisions:
    """The decisions with junk wherever the mask leaves them out."""
    masks = {value: tensor for value, tensor in decisions.values.items() if value.name == "view_mask"}
    spoiled = decisions.map(lambda tensor: junk(tensor, decisions.mask_BT))
    return replace(spoiled, values={**spoiled.values, **masks}, reward_BT=decisions.reward_BT)


def loss_and_gradients_are_numbers(case: Case, data: st.DataObject) -> None:
    """A scalar of the dtype of log-probabilities, and numbers for gradients."""
    decisions, terms, _ = sample_case(case, data)
    for term in terms:
        value, gradients = loss_and_gradients(term, decisions)
        assert (value.shape, value.dtype) == ((), decisions.logprob_BT.dtype)
        assert bool(value.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def equal_rewards_give_numbers_for_losses(case: Case, data: st.DataObject) -> None:
    """Numbers where all rewards of a group are equal, and all advantages 0."""
    decisions, terms, _ = sample_case(case, data, rewards="equal")
    for term in terms:
        value, gradients = loss_and_gradients(
            term, replace(decisions, advantage_BT=torch.zeros_like(decisions.advantage_BT))
        )
        assert bool(value.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def far_policies_give_numbers(case: Case, data: st.DataObject) -> None:
    """Numbers where log-probabilities fall or rise by up to 64 nats, down to -200."""
    decisions, terms, _ = sample_case(case, data)
    far_BT = decisions.old_logprob_BT + 64 * (decisions.logprob_BT - decisions.old_logprob_BT)
    for term in terms:
        value, gradients = loss_and_gradients(term, replace(decisions, logprob_BT=far_BT))
        assert bool(value.isfinite())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def junk_does_not_change_a_loss(case: Case, data: st.DataObject) -> None:
    """What a masked decision holds changes no loss, gradient or metric, and has a gradient of 0."""
    decisions, terms, _ = sample_case(case, data)
    for term in terms:
        value, gradients = loss_and_gradients(term, decisions)
        other, others = loss_and_gradients(term, junk_decisions(decisions))
        assert_same(other, value)
        numbers, others_numbers = (
            term.loss(each).diagnostics.as_numbers() for each in (decisions, junk_decisions(decisions))
        )
        assert numbers == others_numbers
        for gradient, expected in zip(others, gradients, strict=True):
            assert_same(gradient, expected)
            assert bool((gradient[~decisions.mask_BT] == 0).all())


def decisions_stay_and_losses_repeat(case: Case, data: st.DataObject) -> None:
    """No input is changed, and a second call gives the same."""
    decisions, terms, _ = sample_case(case, data)
    for term in terms:
        results: list[Tensor] = []
        assert_unchanged([decisions], lambda term=term, results=results: results.append(term.loss(decisions).value))
        assert_same(term.loss(decisions).value, results[0])


def order_of_rows_does_not_change_a_loss(case: Case, data: st.DataObject) -> None:
    """Rows in another order have the same loss and the same gradients."""
    decisions, terms, some = sample_case(case, data, ties=False)
    order = torch.tensor(data.draw(st.permutations(range(len(some.group_B)))))
    for term in terms:
        value, gradients = loss_and_gradients(term, decisions)
        other, others = loss_and_gradients(term, decisions.map(lambda tensor: tensor[order]))
        assert_near(other, value)
        for gradient, expected in zip(others, gradients, strict=True):
            assert_near(gradient, expected[order])


def numbers_of_groups_do_not_change_a_loss(case: Case, data: st.DataObject) -> None:
    """Groups may have any numbers that differ."""
    decisions, terms, _ = sample_case(case, data)
    numbers = torch.tensor(data.draw(st.lists(st.integers(-50, 10**6), min_size=4, max_size=4, unique=True)))
    assert decisions.group_BT is not None
    for term in terms:
        other = term.loss(replace(decisions, group_BT=numbers[decisions.group_BT])).value
        assert_near(other, term.loss(decisions).value)


def slices(term: Term, some: Rows) -> Iterator[Callable[[Tensor], Tensor]]:
    """Parts of the rows that a term may be given one after another."""
    B, T = some.mask_BT.shape
    if term.couples == GROUP:
        for group in sorted(set(some.groups)):
            yield lambda tensor, group=group: tensor[some.group_B == group]
        return
    for row in range(B):
        for start in range(0, T, 2 if term.couples == DECISION else T):
            stop = start + 2 if term.couples == DECISION else T
            yield lambda tensor, row=row, start=start, stop=stop: tensor[row : row + 1, start:stop]


def losses_of_slices_add_up(case: Case, data: st.DataObject) -> None:
    """The losses of the slices that a term allows add up to that of all of them, and so do the gradients."""
    decisions, terms, some = sample_case(case, data)
    for term in terms:
        value, gradients = loss_and_gradients(term, decisions)
        leafy, leaves = with_gradients(decisions)
        total = torch.stack([term.loss(leafy.map(part)).value for part in slices(term, some)]).sum()
        assert_near(total.detach(), value, tolerance=1e-4)
        if total.requires_grad:
            added = torch.autograd.grad(total, leaves, allow_unused=True)
            for gradient, expected in zip(added, gradients, strict=True):
                assert_near(torch.zeros_like(expected) if gradient is None else gradient, expected, tolerance=1e-4)


def inactive_decisions_have_no_gradient(case: Case, data: st.DataObject) -> None:
    """A term depends on no decision of which it says so."""
    decisions, terms, _ = sample_case(case, data)
    for term in terms:
        active_BT = term.active(decisions)
        assert not bool((active_BT & ~decisions.mask_BT).any())
        _, gradients = loss_and_gradients(term, decisions)
        assert all(bool((gradient[~active_BT] == 0).all()) for gradient in gradients)


def precision_does_not_change_a_loss(case: Case, data: st.DataObject) -> None:
    """float32 gives what float64 does, to rounding."""
    decisions, terms, _ = sample_case(case, data)
    for term in terms:
        double = decisions.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
        assert_near(term.loss(decisions).value.double(), term.loss(double).value, tolerance=1e-4)


def elements(data: st.DataObject) -> tuple[Tensor, Tensor, Tensor]:
    """Log-ratios, old log-probabilities and advantages of some decisions, those of a ratio of 1 among them."""
    random = data.draw(st.randoms(use_true_random=False))
    numbers = [
        (
            random.choice([0.0, random.randint(-128, 128) / 64]),
            -random.randint(136, 256) / 64,
            random.randint(-8, 8) / 8,
        )
        for _ in range(12)
    ]
    log_ratio_BT, old_BT, advantage_BT = torch.tensor(numbers, dtype=torch.float64).T[:, None]
    return log_ratio_BT, old_BT, advantage_BT


def gradient_of(surrogate: Callable[..., Surrogate], log_ratio_BT: Tensor, old_BT: Tensor, advantage_BT: Tensor) -> Any:
    """The surrogate, and the gradient of its loss with respect to the log-probability."""
    logprob_BT = (old_BT + log_ratio_BT).requires_grad_()
    result = surrogate((logprob_BT - old_BT).exp(), logprob_BT, advantage_BT)
    (gradient_BT,) = torch.autograd.grad(result.loss_BT.sum(), logprob_BT)
    return result, gradient_BT


def surrogate_is_elementwise(case: Case, data: st.DataObject) -> None:
    """The loss and the flags of a decision do not depend on the others; vectors round otherwise than single numbers."""
    log_ratio_BT, old_BT, advantage_BT = elements(data)
    surrogate = case.bind()
    every = surrogate(log_ratio_BT.exp(), old_BT + log_ratio_BT, advantage_BT)
    half = surrogate(*(each[:, ::2] for each in (log_ratio_BT.exp(), old_BT + log_ratio_BT, advantage_BT)))
    for result, expected in zip(tensors_of(half), tensors_of(every), strict=True):
        assert_near(result, expected[:, ::2])
    assert (every.low_BT.dtype, every.high_BT.dtype) == (torch.bool, torch.bool)


def surrogate_of_no_advantage_is_0(case: Case, data: st.DataObject) -> None:
    """An advantage of 0 gives a loss and a gradient of 0, and no flag: such a decision takes no forward."""
    log_ratio_BT, old_BT, advantage_BT = elements(data)
    result, gradient_BT = gradient_of(case.bind(), log_ratio_BT, old_BT, 0 * advantage_BT)
    assert bool((result.loss_BT == 0).all())
    assert bool((gradient_BT == 0).all())
    assert not bool((result.low_BT | result.high_BT).any())


def surrogate_at_ratio_1_is_the_policy_gradient(case: Case, data: st.DataObject) -> None:
    """The gradient at a ratio of 1, within all bounds, is minus the advantage."""
    log_ratio_BT, old_BT, advantage_BT = elements(data)
    _, gradient_BT = gradient_of(case.bind(), 0 * log_ratio_BT, old_BT, advantage_BT)
    assert_near(gradient_BT, -advantage_BT, tolerance=1e-12)


def flagged_decisions_have_no_gradient(case: Case, data: st.DataObject) -> None:
    """A decision that a bound acted on has a gradient of 0, and no other decision of an advantage has."""
    log_ratio_BT, old_BT, advantage_BT = elements(data)
    result, gradient_BT = gradient_of(case.bind(), log_ratio_BT, old_BT, advantage_BT)
    flagged_BT = result.low_BT | result.high_BT
    assert bool((gradient_BT[flagged_BT] == 0).all())
    assert bool((gradient_BT[~flagged_BT & (advantage_BT != 0)] != 0).all())


def bounds_of_each_decision_are_those_of_a_number(case: Case, data: st.DataObject) -> None:
    """A tensor of one bound for all decisions is the number."""
    bounds = {name: case.numbers[name] for name in ("low", "high") if case.numbers.get(name) is not None}
    if case.kind == "surrogate" and bounds:
        log_ratio_BT, old_BT, advantage_BT = elements(data)
        inputs = (log_ratio_BT.exp(), old_BT + log_ratio_BT, advantage_BT)
        tensors = {name: torch.full_like(log_ratio_BT, number) for name, number in bounds.items()}
        results = tensors_of(case.bind()(*inputs, **tensors))
        for result, expected in zip(results, tensors_of(case.bind()(*inputs)), strict=True):
            assert_near(result.double(), expected.double(), tolerance=1e-12)


LOSS_CHECKS = [
    loss_and_gradients_are_numbers,
    equal_rewards_give_numbers_for_losses,
    far_policies_give_numbers,
    junk_does_not_change_a_loss,
    decisions_stay_and_losses_repeat,
    order_of_rows_does_not_change_a_loss,
    numbers_of_groups_do_not_change_a_loss,
    losses_of_slices_add_up,
    inactive_decisions_have_no_gradient,
    precision_does_not_change_a_loss,
]
SURROGATE_CHECKS = [
    surrogate_is_elementwise,
    surrogate_of_no_advantage_is_0,
    surrogate_at_ratio_1_is_the_policy_gradient,
    flagged_decisions_have_no_gradient,
    bounds_of_each_decision_are_those_of_a_number,
]


def change_has_the_shape_and_dtype(case: Case, data: st.DataObject) -> None:
    """Bounds in float64, factors in the dtype of log-probabilities, a selection of flags; all (B, T), no gradient."""
    decisions, _, _ = sample_case(case, data)
    leafy, _ = with_gradients(decisions)
    part, of_job = case.bind()(), job_values(decisions)
    if case.kind == "selections":
        keep_BT = part.keep(leafy, of_job[ENTROPY])
        assert (keep_BT.dtype, keep_BT.shape) == (torch.bool, decisions.mask_BT.shape)
        assert not bool((keep_BT & ~decisions.mask_BT).any()), "a selection keeps what the mask leaves out"
        return
    modulated: Modulated = part.of(leafy, of_job)
    expected = {
        "low_BT": torch.float64,
        "high_BT": torch.float64,
        "divergence_BT": torch.float32,
        "loss_BT": torch.float32,
    }
    for name, dtype in expected.items():
        tensor = getattr(modulated, name)
        if tensor is not None:
            assert (tensor.dtype, tensor.shape, tensor.requires_grad) == (dtype, decisions.mask_BT.shape, False), name
            assert bool(tensor[decisions.mask_BT].isfinite().all())
            assert name[:3] in ("low", "hig") or bool((tensor[decisions.mask_BT] >= 0).all())
    assert part.bounds or (modulated.low_BT is None and modulated.high_BT is None)


def junk_does_not_change_a_change(case: Case, data: st.DataObject) -> None:
    """What a masked decision holds changes nothing at kept ones."""
    decisions, _, _ = sample_case(case, data)
    of_job = job_values(decisions)
    results = changes(case, junk_decisions(decisions), of_job)
    for result, expected in zip(results, changes(case, decisions, of_job), strict=True):
        assert_same(result, expected, decisions.mask_BT)


def decisions_stay_and_changes_repeat(case: Case, data: st.DataObject) -> None:
    """No input is changed, and a second call gives the same."""
    decisions, _, _ = sample_case(case, data)
    of_job, results = job_values(decisions), []
    assert_unchanged([decisions, dict(of_job)], lambda: results.extend(changes(case, decisions, of_job)))
    for result, expected in zip(changes(case, decisions, of_job), results, strict=True):
        assert_same(result, expected)


def order_of_rows_does_not_change_a_change(case: Case, data: st.DataObject) -> None:
    """Rows in another order have the same results; those of the job may stay in their order."""
    decisions, _, some = sample_case(case, data)
    order, of_job = torch.tensor(data.draw(st.permutations(range(len(some.group_B))))), job_values(decisions)
    shuffled = {value: tensor.flip(0) for value, tensor in of_job.items()}
    results = changes(case, decisions.map(lambda tensor: tensor[order]), shuffled)
    for result, expected in zip(results, changes(case, decisions, of_job), strict=True):
        assert_near(result.double(), expected[order].double(), decisions.mask_BT[order])


def slices_do_not_change_a_change(case: Case, data: st.DataObject) -> None:
    """Each group's rows by themselves have the results that they have among others of the job."""
    decisions, _, some = sample_case(case, data)
    of_job = job_values(decisions)
    complete = changes(case, decisions, of_job)
    for group in set(some.groups):
        of_group_B = some.group_B == group
        results = changes(case, decisions.map(lambda tensor, rows=of_group_B: tensor[rows]), of_job)
        for result, expected in zip(results, complete if results else (), strict=True):
            assert_near(result.double(), expected[of_group_B].double(), decisions.mask_BT[of_group_B])


def numbers_of_groups_do_not_change_a_change(case: Case, data: st.DataObject) -> None:
    """Groups may have any numbers that differ."""
    decisions, _, _ = sample_case(case, data)
    numbers = torch.tensor(data.draw(st.lists(st.integers(-50, 10**6), min_size=4, max_size=4, unique=True)))
    assert decisions.group_BT is not None
    of_job = job_values(decisions)
    results = changes(case, replace(decisions, group_BT=numbers[decisions.group_BT]), of_job)
    for result, expected in zip(results, changes(case, decisions, of_job), strict=True):
        assert_near(result.double(), expected.double(), decisions.mask_BT)


def precision_does_not_change_a_change(case: Case, data: st.DataObject) -> None:
    """float32 gives what float64 does, to rounding."""
    decisions, _, _ = sample_case(case, data)
    double = decisions.map(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)
    results = changes(case, double, job_values(double))
    for result, expected in zip(results, changes(case, decisions, job_values(decisions)), strict=True):
        assert_near(result.double(), expected.double(), decisions.mask_BT)


def empty_mask_changes_without_error(case: Case, data: st.DataObject) -> None:
    """A result where no decision of the update is kept."""
    decisions, _, _ = sample_case(case, data)
    empty = replace(decisions, mask_BT=torch.zeros_like(decisions.mask_BT))
    changes(case, empty, job_values(empty))


CHANGE_CHECKS = [
    change_has_the_shape_and_dtype,
    junk_does_not_change_a_change,
    decisions_stay_and_changes_repeat,
    order_of_rows_does_not_change_a_change,
    slices_do_not_change_a_change,
    numbers_of_groups_do_not_change_a_change,
    precision_does_not_change_a_change,
    empty_mask_changes_without_error,
]


def weigh(case: Case, mask_BT: Tensor, noise: Noise) -> Tensor:
    """The weights of an aggregate, or of steps of some noise."""
    if case.kind == "aggregate":
        return case.bind()(mask_BT, count(mask_BT, group_B=torch.arange(len(mask_BT)) // 2))
    return case.bind()(noise, mask_BT)


def noise_of(some: Rows) -> Noise:
    B, T = some.mask_BT.shape
    std_BT = some.grid(B, T, low=1 / 64, high=1).where(some.flags(B, T, chance=0.8), 0.0)
    return Noise(
        std_BT=std_BT, step_BT=some.grid(B, T, low=1 / 64, high=1), level_BT=some.grid(B, T, low=1 / 64, high=1)
    )


def mapped(noise: Noise, change: Callable[[Tensor], Tensor]) -> Noise:
    return Noise(std_BT=change(noise.std_BT), step_BT=change(noise.step_BT), level_BT=change(noise.level_BT))


def empty_mask_gives_zero_weights(case: Case, data: st.DataObject) -> None:
    """Weights of the mask's shape, numbers of at least 0, and 0 where the mask is False; no input is changed."""
    some = data.draw(rows())
    noise, results = noise_of(some), []
    assert_unchanged([some.mask_BT, noise], lambda: results.append(weigh(case, some.mask_BT, noise)))
    (weight_BT,) = results
    assert (weight_BT.shape, weight_BT.dtype) == (some.mask_BT.shape, torch.float32)
    assert bool((weight_BT >= 0).all())
    assert bool((weight_BT[~some.mask_BT] == 0).all())
    assert bool(weight_BT.isfinite().all())


def junk_does_not_change_a_weight(case: Case, data: st.DataObject) -> None:
    """The noise of masked decisions may be anything."""
    some = data.draw(rows())
    noise = noise_of(some)
    spoiled = mapped(noise, lambda tensor: junk(tensor, some.mask_BT))
    result, expected = (weigh(case, some.mask_BT, each) for each in (spoiled, noise))
    assert_same(result, expected)


def order_of_rows_does_not_change_a_weight(case: Case, data: st.DataObject) -> None:
    """Rows in another order have the same weights, and so have rows by themselves."""
    some = data.draw(rows())
    noise, mask_BT = noise_of(some), some.mask_BT
    order = torch.tensor(data.draw(st.permutations(range(len(mask_BT)))))
    totals = count(mask_BT, group_B=some.group_B)

    def weights(taken: Tensor) -> Tensor:
        if case.kind == "aggregate":
            return case.bind()(mask_BT[taken], totals)
        return case.bind()(mapped(noise, lambda tensor: tensor[taken]), mask_BT[taken])

    complete_BT = weights(torch.arange(len(mask_BT)))
    assert_near(weights(order), complete_BT[order])
    assert_near(torch.cat([weights(torch.tensor([row])) for row in range(len(mask_BT))]), complete_BT)


WEIGHT_CHECKS = [
    empty_mask_gives_zero_weights,
    order_of_rows_does_not_change_a_weight,
]
CHECKS = {
    "surrogate": [*LOSS_CHECKS, *SURROGATE_CHECKS],
    "bound": LOSS_CHECKS,
    "terms": LOSS_CHECKS,
    "modulations": CHANGE_CHECKS,
    "selections": CHANGE_CHECKS,
    "aggregate": WEIGHT_CHECKS,
    "step_weight": [*WEIGHT_CHECKS, junk_does_not_change_a_weight],
}

test_properties_hold, test_exemption_is_needed = checks_as_tests(CHECKS)
