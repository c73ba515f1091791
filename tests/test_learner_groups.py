"""Losses of groups through the learner: the streamed gradient is that of the full graph."""

from __future__ import annotations

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.maths.aggregates import count, sequence_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.terms import TERMS, group_losses
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Rollout
from tests.policies.families import daily
from tests.test_learner import disturb, draw, gradient, make_policy, relative

REWARD_B = torch.tensor([1.0, 0.0, 0.25, 1.0], dtype=torch.float64)
GROUP_OBJECTIVES = {
    "gvpo": (TERMS["gvpo"](beta=0.5),),
    "preference": (group_losses.preference(beta=2.0, score_by="mean_log_ratio", against="old"),),
    "disco": (TERMS["disco"](tau=0.5), group_losses.kl_hinge(delta=0.0, beta=10.0)),
    "real": (TERMS["real"](),),
    "pacs": (TERMS["pacs"](beta=3.0, balanced=True),),
}


def objective_of(name: str) -> Objective:
    return Objective(surrogate=None, aggregate=sequence_mean, further=GROUP_OBJECTIVES[name])


def streamed(policy: DenoisingPolicy, rollout: Rollout, objective: Objective, parts: list[list[int]]) -> tuple:
    totals, value, forwards = count(rollout.mask_BT, group_B=rollout.prompt_index_B), 0.0, 0
    assert totals.num_groups == 2
    for rows in parts:
        result = accumulate_gradient(
            policy, rollout, torch.zeros(rollout.shape), objective, rows=rows, totals=totals, reward_B=REWARD_B
        )
        value += result.diagnostics.as_metrics()["policy/loss"]
        forwards += result.num_forwards
    return value, gradient(policy), forwards


def full_graph(policy: DenoisingPolicy, rollout: Rollout, objective: Objective) -> tuple[float, Tensor]:
    """The loss on the full matrix at once, every decision's graph alive together."""
    B, T = rollout.shape
    cells: dict[tuple[int, int], Tensor] = {}
    for evaluation in policy.evaluate(rollout):
        assert evaluation.rows is not None
        for i, row in enumerate(evaluation.rows.tolist()):
            cells |= {(row, column): evaluation.logprob_BT[i, j] for j, column in enumerate(evaluation.columns)}
    zero = torch.zeros(())
    loss = objective(
        Decisions(
            logprob_BT=torch.stack([torch.stack([cells.get((b, t), zero) for t in range(T)]) for b in range(B)]),
            old_logprob_BT=rollout.old_logprob_BT,
            advantage_BT=torch.zeros(B, T),
            mask_BT=rollout.mask_BT,
            weight_BT=torch.zeros(B, T),
            segment_BT=rollout.segment_BT,
            reward_BT=REWARD_B[:, None].expand(B, T),
            group_BT=rollout.prompt_index_B[:, None].expand(B, T),
            num_groups=2,
        )
    )
    loss.value.backward()
    return float(loss.value.detach()), gradient(policy)


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(GROUP_OBJECTIVES, "preference", "disco"))
def test_streamed_gradient_is_the_full_graphs(name: str) -> None:
    policy, objective = make_policy(), objective_of(name)
    rollout = draw(policy)
    disturb(policy)
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, result, _ = streamed(policy, rollout.aged(), objective, [[0, 1, 2, 3]])
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(result, full) < 1e-5
    # a minibatch holds complete groups, and the groups add up
    value, result, _ = streamed(policy, rollout.aged(), objective, [[0, 1], [2, 3]])
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(result, full) < 1e-5


def test_the_first_update_takes_no_values_first() -> None:
    policy, objective = make_policy(), objective_of("gvpo")
    rollout = draw(policy)
    _, on_policy, once = streamed(policy, rollout, objective, [[0, 1, 2, 3]])
    _, off_policy, twice = streamed(policy, rollout.aged(), objective, [[0, 1, 2, 3]])
    assert relative(on_policy, off_policy) < 1e-5
    assert twice == 2 * once
