"""How many decisions a mechanism changes, by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from mmgrpo.algorithm import objective_of
from mmgrpo.config.objective import ObjectiveConfig
from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.changes import advantages_changed, changed_fracs, mechanism_labels, modulation_changed, moved_by
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, ValueSum
from mmgrpo.maths.modulations import Modulated, Modulation
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.surrogates import clipped
from mmgrpo.maths.terms import divergence_term
from mmgrpo.values import ENTROPY, from_reference
from tests.maths.decision_rows import decisions_at

MASK_BT = torch.tensor([[True, True], [True, False]])
K3 = from_reference("k3")


def decisions_of(log_ratio: list[list[float]], advantage: list[list[float]], **values: torch.Tensor) -> Decisions:
    old_BT = torch.full((2, 2), -1.0)
    totals = count(MASK_BT)
    return decisions_at(
        (old_BT + torch.tensor(log_ratio)).requires_grad_(),
        old_logprob_BT=old_BT,
        advantage_BT=torch.tensor(advantage),
        mask_BT=MASK_BT,
        weight_BT=sequence_mean(MASK_BT, totals),
        mean_weight_BT=sequence_mean(MASK_BT, totals),
        values={K3: values["k3"]} if "k3" in values else {},
    )


def counts(change: ValueSum) -> tuple[float, float]:
    return float(change.total), float(change.count)


def test_advantages_changed_counts_kept_decisions_alone() -> None:
    before = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert counts(advantages_changed(before, torch.tensor([[1.0, 2.0], [0.0, 5.0]]), MASK_BT)) == (1, 3)
    assert counts(advantages_changed(before, before * (1 + 1e-7), MASK_BT)) == (0, 3)  # rounding
    assert counts(advantages_changed(before, before + 1e-9, MASK_BT)) == (1, 3)  # 0 has no rounding


def test_modulation_changes_where_a_factor_is_not_1_or_a_bound_is_another() -> None:
    bounds = {"low": 0.2, "high": 0.2}
    factor_BT = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    assert counts(modulation_changed(Modulated(loss_BT=factor_BT), MASK_BT, bounds)) == (1, 3)
    assert counts(modulation_changed(Modulated(high_BT=torch.full((2, 2), 0.2)), MASK_BT, bounds)) == (0, 3)
    assert counts(modulation_changed(Modulated(high_BT=torch.full((2, 2), 0.3)), MASK_BT, bounds)) == (3, 3)
    assert counts(modulation_changed(Modulated(), MASK_BT, bounds)) == (0, 3)


def test_term_moves_decisions_with_a_gradient() -> None:
    objective = Objective(surrogate=partial(clipped, low=0.2, high=0.2), aggregate=sequence_mean)
    (term,) = objective.terms
    # clipped upwards; no advantage; masked
    decisions = decisions_of([[0.5, 0.0], [0.0, 0.0]], [[1.0, 1.0], [0.0, 1.0]])
    assert moved_by(term, decisions).tolist() == [[False, True], [False, False]]
    assert decisions.logprob_BT.grad is None


def test_divergence_of_0_changes_no_decision() -> None:
    term = divergence_term(K3, beta=0.1)
    k3_BT = torch.tensor([[0.0, 0.3], [0.0, 0.2]]).requires_grad_()
    decisions = decisions_of([[0.0, 0.0]] * 2, [[1.0, 1.0]] * 2, k3=k3_BT)
    assert moved_by(term, decisions).tolist() == [[False, True], [False, False]]
    assert k3_BT.grad is None


def test_adjusted_decisions_are_those_of_both_steps() -> None:
    halve = Modulation(of=lambda d, _: Modulated(loss_BT=torch.tensor([[0.5, 1.0], [1.0, 1.0]])), name="halve")
    config = ObjectiveConfig.model_validate({"selections": [{"name": "top_entropy", "share": 0.5}]})
    objective = objective_of(config)
    objective = Objective(
        surrogate=objective.surrogate,
        aggregate=objective.aggregate,
        selections=objective.selections,
        modulations=(halve,),
    )
    entropy_BT = torch.tensor([[3.0, 1.0], [2.0, 9.0]])
    decisions = replace(decisions_of([[0.0, 0.0]] * 2, [[1.0, 1.0]] * 2), values={ENTROPY: entropy_BT})
    job_values = {ENTROPY: entropy_BT[MASK_BT]}
    adjusted = objective.adjusted(decisions, job_values)
    both = objective.selected(objective.modulated(decisions, job_values), job_values)
    assert torch.equal(adjusted.decisions.weight_BT, both.weight_BT)
    assert {name: counts(change) for name, change in adjusted.changes.items()} == {
        "modulations/halve": (1, 3),
        "selections/top_entropy": (1, 3),
    }


def test_counts_of_slices_and_processes_add_up() -> None:
    parts = [Diagnostics(change_sums={"terms/kl": ValueSum(3.0, 1.0)}), Diagnostics(), Diagnostics()]
    parts[2] = Diagnostics(change_sums={"terms/kl": ValueSum(5.0, 1.0), "terms/gone": ValueSum(0.0, 0.0)})
    merged = sum(parts, start=Diagnostics()).as_numbers()
    assert changed_fracs(merged.change_sums) == {"terms/kl/changed_frac": pytest.approx(0.25)}


def test_labels_are_names_and_all_different() -> None:
    assert mechanism_labels(["a", "python:my:a", "b", "a"]) == ("a", "a_2", "b", "a_3")
