"""Other terms in an update: their dependencies and couplings, and the values known before a forward."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

from mmgrpo.errors import ShapeError
from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.diagnostics import Diagnostics, total
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.terms import Loss, Term
from mmgrpo.training.gradients import accumulate_gradient, with_values
from mmgrpo.values import Value, from_reference
from tests.test_learner import (
    ADVANTAGE_B,
    CLIPPED,
    OBJECTIVES,
    disturb,
    draw,
    full_graph,
    gradient,
    make_policy,
    relative,
    streamed,
)

ALL = [0, 1, 2, 3]
ZERO_B = torch.zeros(4)
LOGPROB_OF_REFERENCE = Value("logprob", "reference")


def _squared(decisions: Decisions) -> Loss:
    """sum v logprob^2: whatever the advantage."""
    square_BT = decisions.logprob_BT.where(decisions.mask_BT, 0.0).square()
    loss = (decisions.plain_weight_BT * square_BT).sum()
    return Loss(loss, Diagnostics(loss_sums={"squared": total(loss)}))


def _paired(decisions: Decisions) -> Loss:
    """-sum log sigmoid(s_0 - s_1 - (r_0 - r_1)) over groups of two; s, r: a row's log-prob now, and the reference's."""
    keep_BT = decisions.mask_BT
    now_B = decisions.logprob_BT.where(keep_BT, 0.0).sum(1)
    then_B = decisions[LOGPROB_OF_REFERENCE].where(keep_BT, 0.0).sum(1)
    margin_P2 = (now_B - then_B).reshape(-1, 2)
    present_P = keep_BT.any(1).reshape(-1, 2).all(1)
    loss = -logsigmoid(margin_P2[:, 0] - margin_P2[:, 1]).where(present_P, 0.0).sum()
    return Loss(loss, Diagnostics(loss_sums={"paired": total(loss)}))


SQUARED = Term(name="squared", loss=_squared)
PAIRED = Term(name="paired", loss=_paired, values=(LOGPROB_OF_REFERENCE,), couples="group")
ALONE = Objective(surrogate=None, aggregate=sequence_mean, further=(SQUARED,))
PAIRS = Objective(surrogate=None, aggregate=sequence_mean, further=(PAIRED,))


@pytest.mark.first_case
@pytest.mark.parametrize("level", [None, "token", "sequence"], ids=str)
def test_a_term_trains_where_no_sample_has_an_advantage(level: str | None) -> None:
    surrogate = {} if level is None else {"surrogate": CLIPPED, "ratio_level": level}
    objective = replace(ALONE, **surrogate)  # pyrefly: ignore[bad-argument-type]
    policy = make_policy()
    rollout = draw(policy)
    disturb(policy)
    expected, full = full_graph(policy, rollout, objective, ZERO_B)
    value, result = streamed(policy, rollout.aged(), objective, parts=[ALL], advantage_B=ZERO_B)
    assert full.norm() > 0
    assert value == pytest.approx(expected, rel=1e-4)
    assert relative(result, full) < 1e-5
    _, nothing = streamed(policy, rollout.aged(), OBJECTIVES["clipped"], parts=[ALL], advantage_B=ZERO_B)
    assert nothing.norm() == 0


@pytest.mark.nightly
def test_a_terms_gradient_adds_to_the_surrogates() -> None:
    policy = make_policy()
    rollout = draw(policy).aged()
    disturb(policy)
    both = replace(ALONE, surrogate=CLIPPED)
    _, together = streamed(policy, rollout, both, parts=[ALL])
    apart = [streamed(policy, rollout, part, parts=[ALL])[1] for part in (ALONE, replace(both, further=()))]
    assert relative(together, apart[0] + apart[1]) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize(
    "objective",
    [
        pytest.param(PAIRS, marks=pytest.mark.nightly),
        pytest.param(replace(PAIRS, surrogate=CLIPPED), marks=pytest.mark.nightly),
        replace(PAIRS, surrogate=CLIPPED, divergence="k3", kl_beta=0.3),
    ],
    ids=["alone", "beside a surrogate", "beside a surrogate and a divergence"],
)
def test_a_loss_of_groups_streams_the_full_graphs_gradient_at_weights_that_moved(objective: Objective) -> None:
    policy = make_policy()
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    rollout = draw(policy)
    disturb(policy)
    assert not objective.separable
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, result = streamed(policy, rollout.aged(), objective, parts=[ALL])
    assert value == pytest.approx(expected, rel=1e-4)
    assert relative(result, full) < 1e-5
    value, result = streamed(policy, rollout.aged(), objective, parts=[[0, 1], [2, 3]])  # each group complete
    assert value == pytest.approx(expected, rel=1e-4)
    assert relative(result, full) < 1e-5


@pytest.mark.nightly
def test_a_loss_of_groups_is_not_that_of_its_rows() -> None:
    policy = make_policy()
    rollout = draw(policy).aged()
    disturb(policy)
    _, complete = streamed(policy, rollout, PAIRS, parts=[ALL])
    _, halves = streamed(policy, rollout, PAIRS, parts=[[0, 2], [1, 3]])
    assert complete.norm() > 0
    assert halves.norm() == 0  # no group is complete


@pytest.mark.nightly
def test_the_ratio_is_known_without_a_forward_as_long_as_the_weights_are_those_that_sampled() -> None:
    policy = make_policy()
    rollout = draw(policy)
    disturb(policy)  # what the rollout says of itself is believed: nothing asks the weights again
    advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
    for name in ("gspo", "gspo of norms"):
        objective, totals = OBJECTIVES[name], count(rollout.mask_BT)
        fresh, stale = (
            accumulate_gradient(policy, current, advantage_BT, objective, rows=ALL, totals=totals)
            for current in (rollout, rollout.aged())
        )
        metrics = fresh.diagnostics.as_metrics()
        assert (metrics["policy/ratio_mean"], metrics["policy/ratio_std"], fresh.num_forwards) == (1.0, 0.0, 12)
        assert stale.diagnostics.as_metrics()["policy/ratio_std"] > 0
        assert stale.num_forwards > 12
    gradient(policy)


@pytest.mark.nightly
def test_values_of_the_rollout_are_not_recomputed_on_policy() -> None:
    # 4 rows x 3 stochastic steps; each forward of the policy has one of the reference
    policy, objective = make_policy(), OBJECTIVES["gspo with kl"]
    rollout = draw(policy)
    measured = with_values(policy, rollout, [from_reference("velocity_mse")])
    assert measured.num_forwards == rollout.num_forwards + 24
    disturb(policy)
    advantage_BT = ADVANTAGE_B[:, None].expand(rollout.shape)
    spent = [
        accumulate_gradient(
            policy, current, advantage_BT, objective, rows=ALL, totals=count(current.mask_BT)
        ).num_forwards
        for current in (measured, rollout, measured.aged())
    ]
    assert spent == [24, 48, 48]


def test_advantages_are_those_of_the_decisions() -> None:
    policy = make_policy()
    rollout = draw(policy)
    with pytest.raises(ShapeError, match=r"advantage_BT must be \(4, 4\) like the rollout, got \(4,\)"):
        accumulate_gradient(
            policy, rollout, ADVANTAGE_B, OBJECTIVES["clipped"], rows=ALL, totals=count(rollout.mask_BT)
        )
    # the last trained step alone has a gradient: 4 forwards, and the gradient of a mask that keeps only it
    only_BT = (torch.arange(4) == 2).expand(rollout.shape)
    result = accumulate_gradient(
        policy, rollout, ADVANTAGE_B[:, None] * only_BT, OBJECTIVES["clipped"], rows=ALL, totals=count(rollout.mask_BT)
    )
    assert result.num_forwards == 4
    single = gradient(policy)
    assert single.norm() > 0
    # a sample's mean is over its 3 trained decisions there, over 1 here
    _, alone = streamed(policy, rollout.keep(only_BT), OBJECTIVES["clipped"], parts=[ALL])
    assert relative(single, alone / 3) < 1e-5
