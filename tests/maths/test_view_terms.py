"""Terms of views: published numbers, signs, gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.divergences import LOGPROB_DIVERGENCES
from mmgrpo.maths.terms import TERMS, Term, divergence_term, weighted
from mmgrpo.maths.terms.divergence_terms import divergence
from mmgrpo.maths.terms.view_terms import distillation, negative_logprob
from mmgrpo.methods.selection.kl_cov import departure
from mmgrpo.values import Value, from_reference, mask_of_view
from tests.maths.decision_rows import decisions_at

MASKED = Value("logprob", "masked")


def decisions_of(
    logprob: Sequence[Sequence[float]],
    *,
    old: Sequence[Sequence[float]] | None = None,
    view: dict[Value, Tensor] | None = None,
    mask: Sequence[Sequence[int]] | None = None,
) -> Decisions:
    """The mean over the kept decisions."""
    logprob_BT = torch.tensor(logprob, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.ones(logprob_BT.shape, dtype=torch.bool) if mask is None else torch.tensor(mask).bool()
    return decisions_at(
        logprob_BT,
        old_logprob_BT=logprob_BT.detach() if old is None else torch.tensor(old, dtype=torch.float64),
        mask_BT=mask_BT,
        weight_BT=mask_BT.double() / mask_BT.sum(),
        values=view or {},
    )


def loss_and_gradient(term: Term, decisions: Decisions) -> tuple[float, list[list[float]]]:
    loss = term.loss(decisions)
    (grad_BT,) = torch.autograd.grad(loss.value, decisions.logprob_BT)
    assert float(loss.diagnostics.loss_sums[term.name]) == pytest.approx(loss.value.item())
    return loss.value.item(), grad_BT.tolist()


def test_the_implicit_perception_loss_seeks_a_divergence():
    # masked minus plain -0.7: k3 = e^-0.7 - 1 + 0.7 = 0.196585; at -0.01 its growth lowers the loss (PAPO)
    term = weighted(divergence(form="k3", view="masked"), -0.01)
    assert (term.values, term.through) == ((MASKED,), ())

    def at(gap: float) -> tuple[float, list[list[float]]]:
        return loss_and_gradient(term, decisions_of([[-1.0]], view={MASKED: torch.tensor([[-1.0 + gap]]).double()}))

    loss, grad = at(-0.7)
    assert loss == pytest.approx(-0.00196585, abs=1e-8)
    assert grad[0] == pytest.approx([-0.01 * (1 - math.exp(-0.7))])  # the likelier it becomes, the lower the loss
    assert at(-0.8)[0] < loss
    # a mask that masks nothing
    assert at(0.0) == (0.0, [[0.0]])


def test_gradients_go_through_a_view_if_a_term_declares_it():
    # k3 of d = -0.7: by the view's log-probability e^d - 1, by the current policy's the opposite
    masked_BT = torch.tensor([[-1.7]], dtype=torch.float64, requires_grad=True)
    decisions = decisions_of([[-1.0]], view={MASKED: masked_BT})
    term = divergence(form="k3", view="masked", grad=True)
    assert term.through == ("masked",)
    grads = torch.autograd.grad(term.loss(decisions).value, [decisions.logprob_BT, masked_BT])
    assert [float(grad) for grad in grads] == pytest.approx([1 - math.exp(-0.7), math.exp(-0.7) - 1])
    (grad,) = torch.autograd.grad(negative_logprob(view="masked", grad=True).loss(decisions).value, masked_BT)
    assert float(grad) == -1.0
    assert not negative_logprob(view="masked").loss(decisions).value.requires_grad
    with pytest.raises(ConfigError, match="leave out grad"):
        negative_logprob(grad=True)
    with pytest.raises(ConfigError, match="leave out grad"):
        divergence(form="gaussian", view="masked", grad=True)


@pytest.mark.parametrize(
    "term",
    [
        divergence(form="k1", view="masked"),
        divergence(form="k3", view="masked"),
        negative_logprob(view="masked"),
        distillation(view="masked"),
    ],
    ids=lambda term: term.name,
)
def test_rows_without_the_view_count_as_zeros(term: Term):
    values = {MASKED: torch.tensor([[-2.0], [math.nan]]).double()}
    decisions = decisions_of([[-1.0], [-1.5]], view={**values, mask_of_view("masked"): torch.tensor([[1.0], [0.0]])})
    alone = decisions_of([[-1.0]], view={MASKED: torch.tensor([[-2.0]]).double()})
    result, expected = term.loss(decisions), term.loss(alone)
    assert result.value.item() == pytest.approx(expected.value.item() / 2)
    (sums,) = result.diagnostics.value_sums.values()
    assert float(sums.count) == 1
    assert term.active(decisions).tolist() == [[True], [False]]
    if result.value.requires_grad:
        (grad_BT,) = torch.autograd.grad(result.value, decisions.logprob_BT)
        assert float(grad_BT[1]) == 0.0


def test_negative_logprobs_of_both_views():
    decisions = decisions_of(
        [[-1.0, -3.0, math.nan]], view={MASKED: torch.tensor([[-2.0, -6.0, 0.0]])}, mask=[[1, 1, 0]]
    )
    value, grad = loss_and_gradient(weighted(negative_logprob(), 0.02), decisions)
    assert value == pytest.approx(0.04)
    assert grad == [[-0.01, -0.01, 0.0]]
    assert negative_logprob(view="masked").values == (MASKED,)
    assert negative_logprob(view="masked").loss(decisions).value.item() == pytest.approx(4.0)


def test_distillation_raises_the_decisions_that_the_teacher_prefers():
    # logprob -1, teacher's -0.5: the coefficient of grad logprob is -0.5 (SDPO); equal views say nothing
    teacher = Value("logprob", "teacher")
    decisions = decisions_of([[-1.0, -2.0]], view={teacher: torch.tensor([[-0.5, -2.0]]).double()}, mask=[[1, 1]])
    value, grad = loss_and_gradient(distillation(view="teacher"), decisions)
    assert grad == [[-0.25, 0.0]]  # half of it each: a mean of two
    assert value == pytest.approx(0.25)
    result = distillation(view="teacher").loss(decisions).diagnostics.value_sums["distillation@teacher"]
    assert float(result.total) == pytest.approx(-0.5)


def test_distillation_off_policy_weighs_by_a_bounded_ratio():
    teacher = Value("logprob", "teacher")
    decisions = decisions_of(
        [[-1.0, -1.0]], old=[[-1.0 - math.log(3), -1.0 + math.log(2)]], view={teacher: torch.tensor([[-0.5, -0.5]])}
    )
    # ratios 3, held at 2, and 1/2: -0.5 times that, over two
    _, grad = loss_and_gradient(distillation(view="teacher", most=2.0), decisions)
    assert grad[0] == pytest.approx([-0.5, -0.125])
    with pytest.raises(ConfigError, match="above 0"):
        distillation(view="teacher", most=0.0)


@pytest.mark.parametrize("weight", [1.0, 0.5])
def test_a_term_is_logged_under_its_label(weight: float):
    result = weighted(replace(negative_logprob(), name="surprise"), weight).loss(decisions_of([[-1.0, -3.0]]))
    assert result.value.item() == pytest.approx(2 * weight)
    assert {name: float(value) for name, value in result.diagnostics.loss_sums.items()} == {"surprise": 2 * weight}
    assert {name: float(each.total) for name, each in result.diagnostics.value_sums.items()} == {"surprise": 4.0}


def test_departures_count_where_they_are_to():
    # log-ratios 0.5, -0.25, 0: the mean of the first two, halved by the factor of the second
    decisions = decisions_of([[-1.0, -1.0, -1.0]], old=[[-1.5, -0.75, -1.0]], mask=[[1, 1, 0]])
    value, grad = loss_and_gradient(departure(), decisions)
    assert value == pytest.approx(0.375)
    assert grad == [[0.5, -0.5, 0.0]]
    partly = replace(decisions, divergence_factor_BT=torch.tensor([[0.0, 1.0, 1.0]]))
    value, grad = loss_and_gradient(departure(), partly)
    assert value == pytest.approx(0.125)
    assert grad == [[0.0, -0.5, 0.0]]


def test_terms_of_views_are_named():
    assert {"divergence", "negative_logprob", "distillation", "diffusion_nft", "dgpo", "gvpo"} <= set(TERMS)


def test_departure_has_no_gradient_where_the_weights_have_not_changed():
    # rounding leaves +-1e-7 of log-ratios that are 0; moved decisions keep the sign of theirs
    rounded = decisions_of([[-1.0, -2.0, -0.5]], old=[[-1.0 - 1e-7, -2.0 + 1e-7, -0.7]])
    assert loss_and_gradient(departure(), rounded)[1] == [pytest.approx([1 / 3, -1 / 3, 1 / 3])]
    exact = replace(rounded, unchanged_BT=torch.tensor([[True, True, False]]))
    loss, grad = loss_and_gradient(departure(), exact)
    assert loss == pytest.approx(0.2 / 3)
    assert grad == [[0.0, 0.0, pytest.approx(1 / 3)]]
    assert loss_and_gradient(departure(), replace(rounded, unchanged_BT=torch.ones(1, 3).bool())) == (0, [[0, 0, 0]])


def test_a_divergence_that_overflows_times_a_factor_of_zero_is_zero():
    # e^200 is infinite in float32; the second decision is k3 of d = -0.7
    logprob_BT = torch.tensor([[-201.0, -1.0]], requires_grad=True)
    decisions = replace(
        decisions_of([[0.0, 0.0]]),
        logprob_BT=logprob_BT,
        values={MASKED: torch.tensor([[-1.0, -1.7]])},
        divergence_factor_BT=torch.tensor([[0.0, 1.0]]),
    )
    loss = divergence(form="k3", view="masked").loss(decisions).value
    assert loss.item() == pytest.approx((math.exp(-0.7) - 1 + 0.7) / 2, rel=1e-6)
    assert torch.autograd.grad(loss, logprob_BT)[0].tolist() == [[0.0, pytest.approx((1 - math.exp(-0.7)) / 2)]]


def test_the_divergence_from_the_reference_that_overflows_times_a_factor_of_zero_is_zero():
    # what a policy gives: k3 with its graph
    value, logprob_BT = from_reference("k3"), torch.tensor([[-201.0, -1.0]], requires_grad=True)
    decisions = replace(
        decisions_of([[0.0, 0.0]]),
        logprob_BT=logprob_BT,
        values={value: LOGPROB_DIVERGENCES["k3"](logprob_BT, torch.tensor([[-1.0, -1.7]]))},
        divergence_factor_BT=torch.tensor([[0.0, 1.0]]),
    )
    loss = divergence_term(value, beta=2.0).loss(decisions).value
    assert loss.item() == pytest.approx(math.exp(-0.7) - 1 + 0.7, rel=1e-6)
    assert torch.autograd.grad(loss, logprob_BT)[0].tolist() == [[0.0, pytest.approx(1 - math.exp(-0.7))]]


def test_a_weight_that_is_not_finite_raises():
    with pytest.raises(ConfigError, match="weight of surprise must be finite, got nan"):
        weighted(replace(negative_logprob(), name="surprise"), math.nan)
