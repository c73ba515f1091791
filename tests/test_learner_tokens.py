"""The learner on tokens: coupled parts, selections over the job, and decisions without a forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.errors import ConfigError
from mmgrpo.maths.aggregates import constant_length, count, sample_sum, sequence_mean, token_mean
from mmgrpo.maths.decisions import Decisions
from mmgrpo.maths.objectives import Objective
from mmgrpo.maths.selections import near_policy, ratio_top_entropy
from mmgrpo.maths.surrogates import clipped, unclipped
from mmgrpo.maths.terms import weighted
from mmgrpo.methods.ratios.gmpo import pessimistic_bound
from mmgrpo.methods.selection.high_entropy_tokens import top_entropy
from mmgrpo.methods.selection.kl_cov import departure
from mmgrpo.methods.surrogates.simko import clipped_with_candidates, likeliest_of_wrong
from mmgrpo.methods.surrogates.siren import anchored_entropy
from mmgrpo.methods.surrogates.vespo import vespo
from mmgrpo.training.gradients import accumulate_gradient, with_values
from mmgrpo.types import Rollout
from mmgrpo.values import ENTROPY, Value, from_reference
from tests.policies.contract import move
from tests.policies.families import daily
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.tiny.pipelines import PIPELINES

ALL = [0, 1, 2, 3, 4, 5]
ADVANTAGE_B = torch.tensor([1.0, -1.0, 0.5, -0.5, -0.75, 0.75])
SPARSE_ADVANTAGE_B = torch.tensor([0.0, 0.0, 0.0, 1.0, -1.0, 0.0])
CLIPPED = partial(clipped, low=0.02, high=0.03)
VESPO = partial(vespo, positive_power=2.0, positive_decay=3.0, negative_power=3.0, negative_decay=2.0)
GMPO = Objective(
    surrogate=unclipped,
    aggregate=sequence_mean,
    bound=partial(pessimistic_bound, low=0.02, high=0.01),
    ratio_level="sequence",
)

OBJECTIVES = {
    "vespo": Objective(surrogate=VESPO, aggregate=token_mean, ratio_level="trajectory"),
    "rloo": Objective(surrogate=CLIPPED, aggregate=sequence_mean, ratio_level="trajectory"),
    "gmpo": GMPO,
    "gmpo of high entropy": replace(GMPO, selections=(ratio_top_entropy(share=0.3),)),
    "gmpo with kl": replace(GMPO, divergence="k3", kl_beta=0.3),
    "unbiased kl": Objective(
        surrogate=CLIPPED, aggregate=sample_sum, divergence="k3", kl_beta=0.3, kl_ratio_level="token"
    ),
    "unbiased k1": Objective(
        surrogate=unclipped, aggregate=sequence_mean, divergence="k1", kl_beta=0.3, kl_ratio_level="token"
    ),
    "kl by sequence": Objective(
        surrogate=CLIPPED, aggregate=sequence_mean, divergence="k2", kl_beta=0.3, kl_ratio_level="sequence"
    ),
    "entropy bonus": Objective(surrogate=CLIPPED, aggregate=token_mean, entropy_bonus=0.2),
    "high entropy": Objective(surrogate=CLIPPED, aggregate=token_mean, selections=(top_entropy(share=0.3),)),
    "near": Objective(surrogate=unclipped, aggregate=token_mean, selections=(near_policy(limit=-1e-3),)),
    "candidates": Objective(
        surrogate=None,
        aggregate=token_mean,
        modulations=(likeliest_of_wrong(loss=1.5, quantile=0.2),),
        further=(clipped_with_candidates(low=0.02, high=0.03, num=2, share=0.4, quantile=0.5, right=0.5),),
    ),
    "anchored entropy": Objective(
        surrogate=CLIPPED,
        aggregate=token_mean,
        further=(weighted(anchored_entropy(mass=0.9, quantile=0.5, anchor=2.0), 0.3),),
    ),
    "both, by sequence, with all terms": Objective(
        surrogate=CLIPPED,
        aggregate=partial(constant_length, length=7),
        ratio_level="sequence",
        selections=(top_entropy(share=0.6), near_policy(limit=1e-3)),
        divergence="k3",
        kl_beta=0.3,
        kl_ratio_level="token",
        entropy_bonus=0.2,
    ),
}

OF_GROUPS = ("anchored entropy",)


def moved_rollout(*, batch: int = 8) -> tuple[LanguagePolicy, Rollout]:
    """A policy that has moved since it drew two groups of three."""
    policy = measured_policy_of("llama", batch=batch)
    rollout = policy.rollout(prompts_of("llama"), group_size=3, seed=3)
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    move(policy.trainable)
    return policy, rollout.aged()


def gradient(policy: LanguagePolicy | DenoisingPolicy) -> Tensor:
    flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return torch.cat(flat)


def matrix(parts: Sequence[tuple[Tensor, Tensor]], shape: tuple[int, int]) -> Tensor:
    """(B, T) from rows and their values, with the graph of the values."""
    B, T = shape
    rows = {
        int(b): torch.nn.functional.pad(value, (0, T - len(value)))
        for index, x in parts
        for b, value in zip(index, x, strict=True)
    }
    return torch.stack([rows.get(b, torch.zeros(T)) for b in range(B)])


def full_graph(
    policy: LanguagePolicy, rollout: Rollout, objective: Objective, advantage_B: Tensor = ADVANTAGE_B
) -> tuple[float, Tensor]:
    """The objective on the full matrix at once, selections by torch's own quantile and means."""
    requested = objective.values | objective.first_values | {ENTROPY}
    measured: dict[Value | None, list[tuple[Tensor, Tensor]]] = {name: [] for name in (None, *requested)}
    for evaluation in policy.evaluate(rollout, values=requested):
        assert evaluation.rows is not None
        assert set(evaluation.values) == requested
        for name, value in {None: evaluation.logprob_BT, **evaluation.values}.items():
            measured[name].append((evaluation.rows, value))
    matrices = {name: matrix(parts, rollout.shape) for name, parts in measured.items()}
    logprob_BT = matrices.pop(None)
    values = {name: x_BT for name, x_BT in matrices.items() if name is not None}
    entropy_BT = values[ENTROPY]
    totals, mask_BT = count(rollout.mask_BT, group_B=rollout.prompt_index_B), rollout.mask_BT
    keep_BT = ratio_mask_BT = mask_BT
    shares = {"high entropy": 0.3, "both, by sequence, with all terms": 0.6}
    limits = {"near": -1e-3, "both, by sequence, with all terms": 1e-3}
    name = next((name for name, other in OBJECTIVES.items() if other is objective), "")
    if name in shares:
        threshold = torch.quantile(entropy_BT[mask_BT].detach(), 1 - shares[name])
        keep_BT = keep_BT & (entropy_BT >= threshold)
    if name == "gmpo of high entropy":
        ratio_mask_BT = mask_BT & (entropy_BT >= torch.quantile(entropy_BT[mask_BT].detach(), 0.7))
    if name in limits:
        fall_BT = (rollout.old_logprob_BT - logprob_BT).detach() * mask_BT
        near_B1 = fall_BT.sum(1, keepdim=True) / mask_BT.sum(1, keepdim=True) <= limits[name]
        keep_BT = keep_BT & (near_B1 | (advantage_B[:, None] >= 0))
    if name in shares | limits:
        assert 0 < keep_BT.sum() < mask_BT.sum()
    decisions = Decisions(
        logprob_BT=logprob_BT,
        old_logprob_BT=rollout.old_logprob_BT,
        advantage_BT=advantage_B[:, None].expand(rollout.shape),
        mask_BT=mask_BT,
        weight_BT=objective.weights(mask_BT, totals) * keep_BT,
        mean_weight_BT=objective.mean_weights(mask_BT, totals),
        segment_BT=rollout.segment_BT,
        ratio_mask_BT=ratio_mask_BT,
        reward_BT=advantage_B[:, None].expand(rollout.shape),
        group_BT=rollout.prompt_index_B[:, None].expand(rollout.shape),
        num_groups=totals.num_groups,
        values=values,
    )
    loss = objective(objective.modulated(decisions, {}))
    loss.value.backward()
    return float(loss.value.detach()), gradient(policy)


def streamed(
    policy: LanguagePolicy,
    rollout: Rollout,
    objective: Objective,
    *,
    parts: Sequence[Sequence[int]] = (ALL,),
    advantage_B: Tensor = ADVANTAGE_B,
) -> tuple[float, Tensor, float]:
    """The update of as many processes as there are parts, each with its rows: loss, gradient, forwards."""
    totals, shared = count(rollout.mask_BT, group_B=rollout.prompt_index_B), []

    def give(values: Tensor) -> list[Tensor]:
        shared.append(values)
        return [values]

    def update(rows: Sequence[int], gather) -> tuple[float, float]:
        measured = accumulate_gradient(
            policy, rollout, advantage_B[:, None].expand(rollout.shape), objective,
            rows=rows, totals=totals, gather=gather, reward_B=advantage_B,
        )  # fmt: skip
        return measured.diagnostics.as_metrics()["policy/loss"], measured.num_forwards

    for rows in parts:  # what every process gives to the others
        update(rows, give)
    gradient(policy)
    measured = [update(rows, lambda values: shared or [values]) for rows in parts]
    return sum(value for value, _ in measured), gradient(policy), sum(forwards for _, forwards in measured)


def relative(measured: Tensor, expected: Tensor) -> float:
    return float((measured - expected).norm() / expected.norm())


NIGHTLY = ("vespo", "gmpo", "unbiased k1")
"""Those that differ from another only by a function, which has separate tests."""

every = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in OBJECTIVES]
)


@every
def test_streamed_gradient_is_the_full_graphs(name: str) -> None:
    policy, rollout = moved_rollout()
    objective = OBJECTIVES[name]
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, measured, _ = streamed(policy, rollout, objective)
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(measured, full) < 1e-5


@pytest.mark.first_case
@pytest.mark.each_value
@every
@pytest.mark.parametrize("parts", [([0, 1, 2], [3, 4, 5]), ([5, 2, 0], [4], [], [3, 1])], ids=["two", "four"])
def test_processes_and_row_order_do_not_change_updates(name: str, parts: Sequence[Sequence[int]]) -> None:
    policy, rollout = moved_rollout()
    if name in OF_GROUPS:  # which stay complete
        parts = [[2, 0, 1], [], [5, 3, 4]]
    value, expected, _ = streamed(policy, rollout, OBJECTIVES[name])
    other_value, other, _ = streamed(policy, rollout, OBJECTIVES[name], parts=parts)
    assert other_value == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert relative(other, expected) < 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(OBJECTIVES, "both, by sequence, with all terms", "gmpo with kl", "candidates"))
def test_micro_batches_do_not_change_updates(name: str) -> None:
    (policy, rollout), (single, same) = moved_rollout(), moved_rollout(batch=1)
    torch.testing.assert_close(same.old_logprob_BT, rollout.old_logprob_BT)
    value, expected, _ = streamed(policy, rollout, OBJECTIVES[name])
    other_value, other, _ = streamed(single, same, OBJECTIVES[name])
    assert other_value == pytest.approx(value, rel=1e-4, abs=1e-6)
    assert relative(other, expected) < 1e-5


@pytest.mark.parametrize(
    ("name", "forwards"),
    [
        # 2 of 6 rows have an advantage; coupled objectives look at their values first
        ("vespo", 4),
        ("gmpo", 4),
        # all 6 entropies count in the quantile
        ("high entropy", 8),
        # with a divergence or an entropy term every row counts, with a forward of the reference each
        ("unbiased kl", 12),
        ("entropy bonus", 6),
    ],
)
def test_rows_without_a_loss_take_no_forward(name: str, forwards: int) -> None:
    policy, rollout = moved_rollout()
    expected, full = full_graph(policy, rollout, OBJECTIVES[name], SPARSE_ADVANTAGE_B)
    value, measured, spent = streamed(policy, rollout, OBJECTIVES[name], advantage_B=SPARSE_ADVANTAGE_B)
    if name != "high entropy":  # full_graph has its quantile too, but not every row need have a decision left
        assert spent == forwards
    assert spent <= forwards
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(measured, full) < 1e-5


def test_rows_with_zero_coefficients_are_not_differentiated() -> None:
    policy, rollout = moved_rollout()
    # bounds so tight that every sequence that moved towards its advantage has stopped
    objective = Objective(
        surrogate=partial(clipped, low=0.0, high=0.0), aggregate=sequence_mean, ratio_level="sequence"
    )
    expected, full = full_graph(policy, rollout, objective)
    value, measured, spent = streamed(policy, rollout, objective)
    stopped = int((rollout_ratio_B(policy, rollout).log() * ADVANTAGE_B > 0).sum())
    assert 0 < stopped < 6
    assert spent == 6 + (6 - stopped)
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(measured, full) < 1e-5


def rollout_ratio_B(policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """Geometric mean of each row's ratios."""
    with torch.no_grad():
        parts = [(e.rows, e.logprob_BT) for e in policy.evaluate(rollout) if e.rows is not None]
    difference_BT = (matrix(parts, rollout.shape) - rollout.old_logprob_BT) * rollout.mask_BT
    return (difference_BT.sum(1) / rollout.mask_BT.sum(1)).exp()


def test_no_trained_rows_take_no_forward_and_leave_no_gradient() -> None:
    policy, rollout = moved_rollout()
    for name in ("vespo", "near"):
        value, measured, spent = streamed(policy, rollout, OBJECTIVES[name], advantage_B=torch.zeros(6))
        assert (value, float(measured.norm()), spent) == (0.0, 0.0, 0)


def test_decisions_left_out_by_a_selection_take_no_forward_where_steps_are_separate() -> None:
    tiny = PIPELINES["sd3"]
    policy = DenoisingPolicy(tiny.build(), {"call": {**tiny.call, **tiny.no_cfg}})
    rollout = policy.rollout([*prompts_of("llama")], group_size=2, seed=1)
    objective = Objective(surrogate=CLIPPED, aggregate=sequence_mean, selections=(near_policy(limit=-1.0),))
    measured = accumulate_gradient(
        policy, rollout, torch.tensor([1.0, -1.0, 0.5, -0.5])[:, None].expand(rollout.shape), objective,
        rows=[0, 1, 2, 3], totals=count(rollout.mask_BT),
    )  # fmt: skip
    assert measured.num_forwards == 2 * 3  # the rows with A >= 0, three stochastic steps each; on policy no values pass
    assert float(measured.diagnostics.num_weighed) == 6


def test_high_entropy_needs_entropies_even_on_policy() -> None:
    policy = measured_policy_of("llama")
    rollout = policy.rollout(prompts_of("llama"), group_size=3, seed=3)
    _, _, spent = streamed(policy, rollout, OBJECTIVES["near"])
    assert spent == int((ADVANTAGE_B >= 0).sum())  # a limit below 0 leaves the others out, where nothing has moved
    _, _, spent = streamed(policy, rollout, OBJECTIVES["high entropy"])
    assert spent > 6


def test_a_policy_without_entropy_raises() -> None:
    tiny = PIPELINES["sd3"]
    policy = DenoisingPolicy(tiny.build(), {"call": {**tiny.call, **tiny.no_cfg}})
    rollout = policy.rollout([*prompts_of("llama")], group_size=2, seed=1)
    with pytest.raises(
        ConfigError,
        match="denoising steps have no value entropy; supported are",
    ):
        accumulate_gradient(
            policy, rollout, ADVANTAGE_B[:4, None].expand(rollout.shape), OBJECTIVES["high entropy"],
            rows=[0, 1, 2, 3], totals=count(rollout.mask_BT),
        )  # fmt: skip


def test_a_measured_rollout_knows_the_divergence_of_each_decision() -> None:
    policy, rollout = moved_rollout()
    k1 = from_reference("k1")
    measured = with_values(policy, rollout, [k1])
    with torch.no_grad():
        parts = [(e.rows, e.logprob_BT) for e in policy.evaluate(rollout) if e.rows is not None]
    moved_BT = (matrix(parts, rollout.shape) - rollout.old_logprob_BT) * rollout.mask_BT
    torch.testing.assert_close(measured.values[k1], moved_BT, rtol=0, atol=2e-5)
    assert measured.values[k1].sum(1).abs().min() > 0
    assert measured.num_forwards == rollout.num_forwards + 12
    assert with_values(policy, measured, [k1]) is measured  # what is known is not computed again
    half = with_values(policy, rollout.keep(torch.tensor([True, False] * 3)[:, None]), [k1])
    torch.testing.assert_close(half.values[k1][::2], measured.values[k1][::2], rtol=0, atol=2e-5)
    assert (half.values[k1][1::2] == 0).all()


def test_departure_from_the_current_weights_has_no_gradient() -> None:
    # the rollout's log-probabilities are recorded with a rounding error of 1e-6
    policy = measured_policy_of("llama")
    rollout = policy.rollout(prompts_of("llama"), group_size=3, seed=3)
    noise_BT = 1e-6 * torch.randn(rollout.shape, generator=torch.Generator().manual_seed(0))
    rollout = replace(rollout, old_logprob_BT=rollout.old_logprob_BT + noise_BT)
    objective = Objective(surrogate=None, aggregate=token_mean, further=(departure(),))
    loss, grad, _ = streamed(policy, rollout, objective)
    assert (loss, float(grad.abs().max())) == (0, 0)
    loss, grad, _ = streamed(policy, rollout.aged(), objective)  # weights that may have moved
    assert loss == pytest.approx(float(noise_BT.abs()[rollout.mask_BT].mean()), rel=0.5)
    assert float(grad.norm()) > 0
