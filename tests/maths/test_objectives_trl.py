"""Compositions that equal the loss types of TRL 1.16.0: same inputs, same loss and gradient.

The expected numbers come from calling ``GRPOTrainer._compute_loss`` of that version on the closed-form inputs below.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo.maths.aggregates import Totals, constant_length, count, sample_sum, sequence_mean, token_mean
from mmgrpo.maths.objectives import Decisions, Objective
from mmgrpo.maths.selections import near_policy
from mmgrpo.maths.surrogates import clipped, two_sided_clipped, unclipped
from mmgrpo.methods.ratios.gmpo import pessimistic_bound
from mmgrpo.methods.selection.high_entropy_tokens import top_entropy
from mmgrpo.methods.surrogates.cispo import cispo
from mmgrpo.methods.surrogates.sapo import sapo
from mmgrpo.methods.surrogates.vespo import vespo
from mmgrpo.values import ENTROPY, from_reference

ROW_B1, COLUMN_T = torch.arange(4, dtype=torch.float64)[:, None], torch.arange(5, dtype=torch.float64)
LOGPROB_BT = -(0.5 + 0.3 * ROW_B1 + 0.2 * COLUMN_T)
OLD_LOGPROB_BT = LOGPROB_BT - 0.7 * torch.sin(1 + 2 * ROW_B1 + 3 * COLUMN_T)
REF_LOGPROB_BT = LOGPROB_BT + 0.25 * torch.cos(0.5 + ROW_B1 - 2 * COLUMN_T)
ENGINE_LOGPROB_BT = OLD_LOGPROB_BT + 0.2 * torch.cos(ROW_B1 + COLUMN_T)
ENTROPY_BT = 0.2 + 0.1 * ((3 * ROW_B1 + 5 * COLUMN_T) % 7)
MASK_BT = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 0, 0, 0, 0], [1, 1, 1, 1, 0]], dtype=torch.bool)
TOTALS = count(MASK_BT)
ADVANTAGE_BT = torch.tensor([[1], [-0.5], [0.25], [-1.25]], dtype=torch.float64).expand(4, 5)

PPO = functools.partial(clipped, low=0.2, high=0.2)
GSPO = functools.partial(clipped, low=0.03, high=0.04)
DR_GRPO = functools.partial(constant_length, length=8)
VESPO = functools.partial(vespo, positive_power=2.0, positive_decay=3.0, negative_power=3.0, negative_decay=2.0)
GMPO = {"surrogate": unclipped, "bound": functools.partial(pessimistic_bound, low=0.4, high=0.4)}
# TRL's correction for sampling with another engine: a weight of each decision, and for vespo part of the ratio
ENGINE_RATIO_BT = (OLD_LOGPROB_BT - ENGINE_LOGPROB_BT).exp()
ENGINE_SEQUENCE_RATIO_BT = (
    ((OLD_LOGPROB_BT - ENGINE_LOGPROB_BT) * MASK_BT).sum(1, keepdim=True).exp().expand(4, 5).clone()
)


def k3(logprob_BT: Tensor) -> Tensor:
    return torch.expm1(REF_LOGPROB_BT - logprob_BT) - (REF_LOGPROB_BT - logprob_BT)


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    loss: float
    norm: float
    grad: tuple[float, float, float]  # at [0, 0], [1, 1] and [3, 3]
    parts: dict[str, Any] = field(default_factory=dict)
    totals: Totals = TOTALS
    old_BT: Tensor = OLD_LOGPROB_BT
    engine_BT: Tensor | None = None


CASES = [
    Case(name="grpo", loss=0.215260, norm=0.199542, grad=(0, 0.034265, 0.063865)),
    Case(
        name="bnpo, dapo",
        loss=0.177663,
        norm=0.237424,
        grad=(0, 0.031629, 0.078604),
        parts={"aggregate": token_mean},
    ),
    Case(name="dr_grpo", loss=0.072176, norm=0.096453, grad=(0, 0.012849, 0.031933), parts={"aggregate": DR_GRPO}),
    Case(
        name="grpo, higher upper bound",
        loss=0.203260,
        norm=0.199542,
        grad=(0, 0.034265, 0.063865),
        parts={"surrogate": functools.partial(clipped, low=0.2, high=0.28)},
    ),
    Case(
        name="grpo, delta",
        loss=0.208705,
        norm=0.156540,
        grad=(0, 0.034265, 0.063865),
        parts={"surrogate": functools.partial(two_sided_clipped, low=0.2, high=0.2, delta=1.5)},
    ),
    Case(
        name="grpo, bias-corrected KL",
        loss=0.215944,
        norm=0.199884,
        grad=(-0.000791, 0.033663, 0.064275),
        parts={"kl_beta": 0.04, "divergence": "k3", "kl_ratio_level": "token"},
    ),
    Case(
        name="grpo, plain k3",
        loss=0.215917,
        norm=0.199499,
        grad=(-0.000491, 0.033447, 0.064319),
        parts={"kl_beta": 0.04, "divergence": "k3"},
    ),
    Case(
        name="gspo",
        loss=0.167508,
        norm=0.183141,
        grad=(0, 0.044416, 0.081551),
        parts={"surrogate": GSPO, "ratio_level": "sequence"},
    ),
    Case(
        name="luspo, sequence",
        loss=0.372611,
        norm=0.692761,
        grad=(0, 0.133247, 0.326203),
        parts={"surrogate": GSPO, "ratio_level": "sequence", "aggregate": sample_sum},
    ),
    Case(
        name="luspo, token",
        loss=0.577405,
        norm=0.771626,
        grad=(0, 0.102794, 0.255462),
        parts={"aggregate": sample_sum},
    ),
    Case(
        name="cispo, cap 1.2",
        loss=-0.402977,
        norm=0.269310,
        grad=(-0.092308, 0.031629, 0.078604),
        parts={"surrogate": functools.partial(cispo, low=None, high=0.2), "aggregate": token_mean},
    ),
    Case(
        name="cispo, cap 5",
        loss=-0.421491,
        norm=0.324663,
        grad=(-0.138634, 0.031629, 0.078604),
        parts={"surrogate": functools.partial(cispo, low=None, high=4.0), "aggregate": token_mean},
    ),
    Case(
        name="sapo",
        loss=0.233534,
        norm=0.232803,
        grad=(-0.077038, 0.033968, 0.063283),
        parts={"surrogate": functools.partial(sapo, positive_temperature=1.0, negative_temperature=1.05)},
    ),
    Case(
        name="vespo",
        loss=-0.700689,
        norm=0.248924,
        grad=(-0.036039, 0.044797, 0.110651),
        parts={"surrogate": VESPO, "ratio_level": "trajectory", "aggregate": token_mean},
    ),
    Case(
        name="vespo, engine correction truncated",
        loss=-0.542148,
        norm=0.241787,
        grad=(-0.052009, 0.044520, 0.098101),
        parts={"surrogate": VESPO, "ratio_level": "trajectory", "aggregate": token_mean},
        old_BT=OLD_LOGPROB_BT - (OLD_LOGPROB_BT - ENGINE_LOGPROB_BT).clamp(max=math.log(1.05)),
    ),
    Case(
        name="gmpo",
        loss=0.168161,
        norm=0.203990,
        grad=(0, 0.044416, 0.081551),
        parts={**GMPO, "ratio_level": "sequence"},
    ),
    Case(
        name="gmpo, plain k3",
        loss=0.168818,
        norm=0.203941,
        grad=(-0.000491, 0.043598, 0.082004),
        parts={**GMPO, "ratio_level": "sequence", "kl_beta": 0.04, "divergence": "k3"},
    ),
    Case(
        name="dapo, high-entropy decisions",
        loss=-0.050813,
        norm=0.052256,
        grad=(0, 0, 0),
        parts={"aggregate": token_mean, "selections": (top_entropy(share=0.2),)},
    ),
    Case(
        name="dapo, off-policy rows left out",
        loss=-0.384601,
        norm=0.070074,
        grad=(0, 0, 0),
        parts={"aggregate": token_mean, "selections": (near_policy(limit=-0.3),)},
    ),
    Case(
        # four micro-batches of an update out of eight of a generation batch with 104 decisions: 52 in the update
        name="dapo, one of four micro-batches",
        loss=0.044416,
        norm=0.059356,
        grad=(0, 0.007907, 0.019651),
        parts={"aggregate": token_mean},
        totals=Totals(num_samples=16, num_decisions=52),
    ),
    Case(
        name="grpo, one of four micro-batches",
        loss=0.053815,
        norm=0.049886,
        grad=(0, 0.008566, 0.015966),
        totals=Totals(num_samples=16, num_decisions=52),
    ),
    Case(
        name="dapo, engine correction truncated",
        loss=0.177094,
        norm=0.234324,
        grad=(0, 0.033210, 0.064870),
        parts={"aggregate": token_mean},
        engine_BT=ENGINE_RATIO_BT.clamp(max=1.05),
    ),
    Case(
        name="dapo, engine correction masked",
        loss=0.108668,
        norm=0.148917,
        grad=(0, 0, 0.064870),
        parts={"aggregate": token_mean},
        engine_BT=ENGINE_RATIO_BT.where(ENGINE_RATIO_BT <= 1.05, 0.0),
    ),
    Case(
        name="dapo, engine correction by sequence",
        loss=0.186546,
        norm=0.249295,
        grad=(0, 0.033210, 0.082534),
        parts={"aggregate": token_mean},
        engine_BT=ENGINE_SEQUENCE_RATIO_BT.clamp(max=1.05),
    ),
    Case(
        name="dapo, entropy bonus",
        loss=0.172509,
        norm=0.237424,
        grad=(0, 0.031629, 0.078604),
        parts={"aggregate": token_mean, "entropy_bonus": 0.01},
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_composition_equals_trl(case: Case):
    objective = Objective(**{"surrogate": PPO, "aggregate": sequence_mean, **case.parts})  # pyrefly: ignore[bad-argument-type]
    weight_BT = objective.weights(MASK_BT, case.totals)
    logprob_BT = LOGPROB_BT.clone().requires_grad_()
    decisions = Decisions(
        logprob_BT=logprob_BT,
        old_logprob_BT=case.old_BT,
        advantage_BT=ADVANTAGE_BT,
        mask_BT=MASK_BT,
        weight_BT=weight_BT if case.engine_BT is None else weight_BT * case.engine_BT,
        segment_BT=torch.zeros(4, 5, dtype=torch.int64),
        mean_weight_BT=objective.mean_weights(MASK_BT, case.totals),
        values={from_reference("k3"): k3(logprob_BT), ENTROPY: ENTROPY_BT},
    )
    loss = objective(objective.selected(decisions, {ENTROPY: ENTROPY_BT[MASK_BT]}))
    (grad_BT,) = torch.autograd.grad(loss.value, logprob_BT)
    assert loss.value.item() == pytest.approx(case.loss, abs=1e-6)
    assert grad_BT.norm().item() == pytest.approx(case.norm, abs=1e-6)
    assert [grad_BT[0, 0].item(), grad_BT[1, 1].item(), grad_BT[3, 3].item()] == pytest.approx(case.grad, abs=1e-6)


def test_metrics_equal_trls():
    objective = Objective(surrogate=PPO, aggregate=sequence_mean, divergence="k3", kl_beta=0.5, entropy_bonus=0.25)
    loss = objective(
        Decisions(
            logprob_BT=LOGPROB_BT,
            old_logprob_BT=OLD_LOGPROB_BT,
            advantage_BT=ADVANTAGE_BT,
            mask_BT=MASK_BT,
            weight_BT=objective.weights(MASK_BT, count(MASK_BT)),
            segment_BT=torch.zeros(4, 5, dtype=torch.int64),
            values={from_reference("k3"): k3(LOGPROB_BT), ENTROPY: ENTROPY_BT},
        )
    )
    ratio = (LOGPROB_BT - OLD_LOGPROB_BT).exp()[MASK_BT]
    values = k3(LOGPROB_BT), ENTROPY_BT
    kl, entropy = ((x_BT.where(MASK_BT, 0.0).sum(1) / MASK_BT.sum(1)).mean().item() for x_BT in values)
    assert loss.diagnostics.as_metrics() == pytest.approx(
        {
            "policy/loss": 0.215260 + 0.5 * kl - 0.25 * entropy,
            "policy/loss/surrogate": 0.215260,
            "policy/loss/kl": 0.5 * kl,
            "policy/loss/entropy": -0.25 * entropy,
            "policy/ratio_mean": ratio.mean().item(),
            "policy/ratio_std": ratio.std(correction=0).item(),
            "policy/clip_low_frac": 1 / 13,
            "policy/clip_high_frac": 3 / 13,
            "policy/kl_mean": 0.015839,
            "policy/entropy_mean": 0.515385,
        },
        abs=1e-6,
    )
