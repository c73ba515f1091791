"""Rows of several sources in an update: the terms that see each, and their values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.objectives import Objective, OffPolicySurrogate
from mmgrpo.maths.sources import DEMONSTRATION, REPLAY
from mmgrpo.maths.surrogates import shaped
from mmgrpo.maths.terms import from_sources
from mmgrpo.maths.terms.view_terms import negative_logprob
from mmgrpo.methods.off_policy.rl_plus import mixture
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Rollout, Source
from tests.test_learner import CLIPPED, disturb, draw, full_graph, gradient, make_policy, relative, streamed

ALL = [0, 1, 2, 3]
MIXED_B = torch.tensor([Source.ON_POLICY, Source.DEMONSTRATION, Source.REPLAY, Source.ON_POLICY])
SHAPED = partial(shaped, gamma=0.1)
ON_POLICY = Objective(surrogate=CLIPPED, aggregate=sequence_mean)
DEMONSTRATION_TERM = from_sources(negative_logprob(), (DEMONSTRATION,))

OBJECTIVES = {
    "separable": replace(ON_POLICY, off_policy=OffPolicySurrogate(surrogate=SHAPED)),
    "off-policy rows coupled": replace(
        ON_POLICY, off_policy=OffPolicySurrogate(surrogate=SHAPED, ratio_level="sequence", weight=0.5)
    ),
    "own rows coupled": replace(
        ON_POLICY, ratio_level="sequence", off_policy=OffPolicySurrogate(surrogate=partial(mixture, power=0.5))
    ),
    "a term of given rows": replace(ON_POLICY, further=(DEMONSTRATION_TERM,)),
    "with a divergence": replace(
        ON_POLICY, off_policy=OffPolicySurrogate(surrogate=SHAPED), divergence="k3", kl_beta=0.3
    ),
}


def mixed(rollout: Rollout) -> Rollout:
    return replace(rollout, source_B=MIXED_B)


@pytest.mark.first_case
@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_streamed_gradient_is_the_full_graphs(name: str) -> None:
    policy, objective = make_policy(), OBJECTIVES[name]
    rollout = mixed(draw(policy))
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    disturb(policy)
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, result = streamed(policy, rollout.aged(), objective, parts=[ALL])
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(result, full) < 1e-5


def test_each_row_takes_the_surrogate_of_its_source() -> None:
    """The gradient is the sum of the plain one over sampled rows and the shaped one over the others."""
    policy = make_policy()
    rollout = mixed(draw(policy))
    disturb(policy)
    _, together = streamed(policy, rollout.aged(), OBJECTIVES["separable"], parts=[ALL])
    on_policy_rows = rollout.keep((MIXED_B == Source.ON_POLICY)[:, None])
    others = replace(rollout, source_B=None).keep((MIXED_B != Source.ON_POLICY)[:, None])
    _, of_on_policy = streamed(policy, on_policy_rows.aged(), ON_POLICY, parts=[ALL])
    _, of_others = streamed(policy, others.aged(), replace(ON_POLICY, surrogate=SHAPED), parts=[ALL])
    assert of_on_policy.norm() > 0
    assert of_others.norm() > 0
    assert relative(2 * together, of_on_policy + of_others) < 1e-5  # a mean over four rows, and two of two


@pytest.mark.nightly
def test_on_policy_rows_keep_updates_bitwise() -> None:
    policy = make_policy()
    rollout = draw(policy)
    disturb(policy)
    value, plain = streamed(policy, rollout.aged(), ON_POLICY, parts=[ALL])
    for objective in (OBJECTIVES["separable"], OBJECTIVES["a term of given rows"]):
        result, other = streamed(policy, rollout.aged(), objective, parts=[ALL])
        assert result == value
        assert torch.equal(other, plain)


@pytest.mark.nightly
def test_off_policy_rows_of_weight_0_take_no_forward() -> None:
    policy = make_policy(update_batch=1)
    rollout = mixed(draw(policy)).aged()
    totals, ones_BT = count(rollout.mask_BT), torch.ones(rollout.shape)
    spent = []
    for weight in (1.0, 0.0):
        objective = replace(ON_POLICY, off_policy=OffPolicySurrogate(surrogate=SHAPED, weight=weight))
        spent.append(accumulate_gradient(policy, rollout, ones_BT, objective, rows=ALL, totals=totals).num_forwards)
    assert spent == [12, 6]
    gradient(policy)


@pytest.mark.nightly
def test_a_term_of_demonstrations_computes_only_their_rows() -> None:
    policy = make_policy(update_batch=1)
    rollout = mixed(draw(policy)).aged()
    objective = replace(ON_POLICY, further=(DEMONSTRATION_TERM,))
    result = accumulate_gradient(
        policy, rollout, torch.zeros(rollout.shape), objective, rows=ALL, totals=count(rollout.mask_BT)
    )
    assert result.num_forwards == 3  # the three decisions of the one given row
    assert gradient(policy).norm() > 0


def test_the_numbers_are_those_of_the_enum() -> None:
    assert (int(Source.REPLAY), int(Source.DEMONSTRATION)) == (REPLAY, DEMONSTRATION)
