"""Selections by hand, the quantile compared with torch's, and the values that selections must not change."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError, ShapeError
from mmgrpo.maths.aggregates import count, sequence_mean, token_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.selections import SELECTIONS, near_policy, quantile, ratio_top_entropy
from mmgrpo.maths.surrogates import clipped, unclipped
from mmgrpo.methods.selection.earl import sample_top_entropy
from mmgrpo.methods.selection.high_entropy_tokens import top_entropy
from mmgrpo.values import ENTROPY, Value, from_reference
from tests.maths.decision_rows import decisions_at

NAN = float("nan")
MASK_BT = torch.tensor([[True, True, True], [True, True, False]])
NO_ENTROPY_N = torch.zeros(0)


ENTROPY_BT = torch.tensor([[0.1, 0.5, 0.3], [0.4, 0.2, NAN]])


def decisions(values: Mapping[Value, Tensor] | None = None, **changes: Any) -> Decisions:
    fields: dict[str, Any] = {
        "logprob_BT": torch.zeros(2, 3),
        "old_logprob_BT": torch.zeros(2, 3),
        "advantage_BT": torch.tensor([[1.0], [-1.0]]).expand(2, 3),
        "mask_BT": MASK_BT,
        "weight_BT": token_mean(MASK_BT, count(MASK_BT)),
        "values": {ENTROPY: ENTROPY_BT} if values is None else values,
    }
    return decisions_at(**(fields | changes))


def test_the_share_of_the_highest_entropies_is_kept() -> None:
    # sorted 0.1 0.2 0.3 0.4 0.5: the quantile 0.6 is at 2.4, between 0.3 and 0.4
    keep = top_entropy(share=0.4).keep(decisions(), torch.tensor([0.5, 0.1, 0.3, 0.4, 0.2]))
    assert keep.tolist() == [[False, True, False], [True, False, False]]


def test_the_share_is_that_of_each_sample() -> None:
    # the medians are 0.3 of 0.1, 0.3, 0.5 and 0.3 of 0.2, 0.4; what other samples have does not matter
    keep = sample_top_entropy(share=0.5).keep(decisions(), torch.tensor([9.0]))
    assert keep.tolist() == [[False, True, True], [True, False, False]]
    nothing = replace(decisions(), mask_BT=torch.zeros_like(MASK_BT))
    assert not sample_top_entropy(share=0.5).keep(nothing, torch.tensor([9.0])).any()


def test_a_threshold_that_is_a_value_keeps_it_and_its_ties() -> None:
    # the quantile 0.5 of five is the third: 0.3; 1 - 0.5 is exact, 1 - 0.2 is not in float32
    assert top_entropy(share=0.5).keep(decisions(), torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])).sum() == 3
    tied = decisions({ENTROPY: torch.full((2, 3), 0.3)})
    assert top_entropy(share=0.2).keep(tied, torch.full((5,), 0.3)).tolist() == MASK_BT.tolist()


def test_the_threshold_is_the_jobs() -> None:
    # the other process has only higher entropies: two of its four are the upper fifth of the nine
    others_N = torch.tensor([1.0, 2.0, 3.0, 4.0])
    job_entropy_N = torch.cat([torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]), others_N])
    assert not top_entropy(share=0.2).keep(decisions(), job_entropy_N).any()


def test_a_process_without_decisions_keeps_none() -> None:
    nothing = replace(decisions(), mask_BT=torch.zeros_like(MASK_BT), values={})
    assert not top_entropy(share=0.2).keep(nothing, torch.tensor([1.0])).any()


def test_bad_rows_far_from_the_policy_are_left_out() -> None:
    # falls of (0.3 + 0.5) / 2 = 0.4 nats; the value outside the mask is no decision
    old_BT = torch.tensor([[9.0, 9.0, 9.0], [0.3, 0.5, NAN]])
    for limit, keep in ((0.41, True), (0.39, False)):
        keep_BT = near_policy(limit=limit).keep(decisions(old_logprob_BT=old_BT), NO_ENTROPY_N)
        assert keep_BT.tolist() == [[True, True, True], [keep, keep, False]]


def test_rows_on_the_policy_are_kept_at_limit_zero() -> None:
    assert near_policy(limit=0.0).keep(decisions(), NO_ENTROPY_N).tolist() == MASK_BT.tolist()


@pytest.mark.parametrize("size", [1, 2, 5, 11, 101])
@pytest.mark.parametrize("fraction", [0.0, 0.13, 0.5, 0.8, 1.0])
def test_quantile_is_torchs(size: int, fraction: float) -> None:
    value_N = torch.randn(size, generator=torch.Generator().manual_seed(size), dtype=torch.float64)
    torch.testing.assert_close(quantile(value_N, fraction), torch.quantile(value_N, fraction))


def test_a_quantile_of_no_values_raises() -> None:
    with pytest.raises(ShapeError, match="at least one"):
        quantile(torch.zeros(0), 0.5)


@pytest.mark.parametrize("share", [0.0, -0.1, 1.1])
def test_a_share_outside_0_to_1_raises(share: float) -> None:
    with pytest.raises(ConfigError, match="above 0 and at most 1"):
        top_entropy(share=share)


def test_a_selection_sets_weights_alone() -> None:
    objective = Objective(
        surrogate=partial(clipped, low=0.2, high=0.2),
        aggregate=token_mean,
        selections=(top_entropy(share=0.4), near_policy(limit=-1.0)),
        divergence="k3",
        kl_beta=0.5,
    )
    rows = decisions({ENTROPY: ENTROPY_BT, from_reference("k3"): torch.ones(2, 3)})
    rows = replace(rows, mean_weight_BT=rows.weight_BT)
    chosen = objective.selected(rows, {ENTROPY: torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])})
    # of the two high entropies that of the second row, whose advantage is negative, is left out
    assert chosen.weight_BT.tolist() == [[0.0, pytest.approx(0.2), 0.0], [0.0, 0.0, 0.0]]
    # -A r w = -0.2, and the divergence of all five decisions: 0.5 * 1
    loss = objective(chosen)
    assert loss.value.item() == pytest.approx(-0.2 + 0.5)
    assert loss.diagnostics.num_weighed == 1
    assert loss.diagnostics.num_decisions == 5


def test_a_selection_of_the_ratio_leaves_the_weights_alone() -> None:
    objective = Objective(
        surrogate=unclipped,
        aggregate=sequence_mean,
        ratio_level="sequence",
        selections=(ratio_top_entropy(share=0.4),),
    )
    # kept are 0.5 of the first row and 0.4 of the second: log-ratios 0.2 and -0.3 alone make the two ratios
    logprob_BT = torch.tensor([[1.0, 0.2, 3.0], [-0.3, 5.0, NAN]], requires_grad=True)
    rows = decisions(logprob_BT=logprob_BT, weight_BT=sequence_mean(MASK_BT, count(MASK_BT)))
    loss = objective(objective.selected(rows, {ENTROPY: torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5])}))
    up, down = math.exp(0.2), math.exp(-0.3)
    assert loss.value.item() == pytest.approx((-up + down) / 2)
    loss.value.backward()
    assert logprob_BT.grad is not None
    torch.testing.assert_close(logprob_BT.grad, torch.tensor([[0.0, -up / 2, 0.0], [down / 2, 0.0, 0.0]]))


def test_a_selection_of_the_ratio_needs_one_of_several_decisions() -> None:
    with pytest.raises(ConfigError, match="ratio_level to sequence"):
        Objective(surrogate=unclipped, aggregate=sequence_mean, selections=(ratio_top_entropy(share=0.4),))


def test_selections_declare_their_inputs() -> None:
    plain = Objective(surrogate=partial(clipped, low=0.2, high=0.2), aggregate=token_mean)
    by_entropy = replace(plain, selections=(top_entropy(share=0.2),))
    near = replace(plain, selections=(near_policy(limit=0.1),))
    assert [o.needs_values for o in (plain, by_entropy, near)] == [False, True, True]
    assert [o.rollout_knows_values for o in (plain, by_entropy, near)] == [True, False, True]
    assert all(o.separable for o in (plain, by_entropy, near))
    with_kl = replace(near, divergence="k3", kl_beta=0.1)
    assert with_kl.rollout_knows_values  # its KL is not needed to tell which rows are near
    assert not replace(with_kl, kl_ratio_level="sequence").rollout_knows_values


def test_every_selection_is_tested() -> None:
    assert set(SELECTIONS) == {"top_entropy", "sample_top_entropy", "ratio_top_entropy", "near_policy"}
