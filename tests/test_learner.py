"""The streamed gradient of the learner is that of the full graph."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.maths.aggregates import Totals, constant_length, count, sample_sum, sequence_mean, token_mean
from mmgrpo.maths.objectives import Decisions, Objective
from mmgrpo.maths.steps import noise_std_weight
from mmgrpo.maths.surrogates import clipped, dual_clipped, policy_gradient, two_sided_clipped, unclipped
from mmgrpo.methods.ratios.grpo_guard import inverse_step_weight
from mmgrpo.methods.surrogates.cispo import cispo
from mmgrpo.methods.surrogates.sapo import sapo
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Plan, Prompt, Rollout
from mmgrpo.values import DRIFT, Value
from tests.policies.families import daily
from tests.policies.tiny_policies import measured, pipeline_of
from tests.tiny.pipelines import PIPELINES

PROMPTS = [Prompt("a red cat"), Prompt("two dogs")]
ADVANTAGE_B = torch.tensor([1.0, -1.0, 0.5, -0.5])
CLIPPED = partial(clipped, low=0.02, high=0.03)

OBJECTIVES = {
    "clipped": Objective(surrogate=CLIPPED, aggregate=sequence_mean),
    "dual": Objective(surrogate=partial(dual_clipped, low=0.02, high=0.03, bound=1.05), aggregate=token_mean),
    "two-sided": Objective(surrogate=partial(two_sided_clipped, low=0.02, high=0.03, delta=1.04), aggregate=sample_sum),
    "policy gradient": Objective(surrogate=policy_gradient, aggregate=partial(constant_length, length=7)),
    "cispo": Objective(surrogate=partial(cispo, low=0.02, high=0.03), aggregate=token_mean),
    "sapo": Objective(
        surrogate=partial(sapo, positive_temperature=1.0, negative_temperature=1.05), aggregate=sequence_mean
    ),
    "kl": Objective(surrogate=unclipped, aggregate=sequence_mean, divergence="gaussian", kl_beta=0.3),
    "k3": Objective(surrogate=unclipped, aggregate=sequence_mean, divergence="k3", kl_beta=0.3),
    "guard": Objective(
        surrogate=CLIPPED, aggregate=sequence_mean, normalize_ratio=True, step_weight=inverse_step_weight
    ),
    "tempflow": Objective(surrogate=CLIPPED, aggregate=sequence_mean, step_weight=noise_std_weight),
    "chunk": Objective(surrogate=CLIPPED, aggregate=sequence_mean, ratio_level="segment"),
    "gspo": Objective(surrogate=CLIPPED, aggregate=sequence_mean, ratio_level="sequence"),
    "gspo with kl": Objective(
        surrogate=CLIPPED, aggregate=sequence_mean, ratio_level="sequence", divergence="velocity_mse", kl_beta=0.3
    ),
    "gspo of norms": Objective(
        surrogate=CLIPPED, aggregate=sequence_mean, ratio_level="sequence", normalize_ratio=True
    ),
}


def new_policy(**settings: object) -> DenoisingPolicy:
    tiny = PIPELINES["sd3"]
    call = {**tiny.call, **tiny.no_cfg}
    return DenoisingPolicy(pipeline_of("sd3"), {"call": call, "segments": (1, 2, 1), "update_batch": 3, **settings})


def make_policy(**settings: object) -> DenoisingPolicy:
    return measured(new_policy, PROMPTS, **settings)


def draw(policy: DenoisingPolicy, *, same_initial_noise: bool = False) -> Rollout:
    return policy.rollout(
        PROMPTS, group_size=2, seed=11, plan=Plan(values=(DRIFT,), same_initial_noise=same_initial_noise)
    )


def disturb(policy: DenoisingPolicy, scale: float = 0.02) -> None:
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter += scale * parameter.abs().mean() * torch.randn(parameter.shape, generator=generator)


def gradient(policy: DenoisingPolicy) -> Tensor:
    flat = [torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in policy.trainable]
    for parameter in policy.trainable:
        parameter.grad = None
    return torch.cat(flat)


def full_graph(
    policy: DenoisingPolicy, rollout: Rollout, objective: Objective, advantage_B: Tensor = ADVANTAGE_B
) -> tuple[float, Tensor]:
    """The objective on the full matrix at once, every decision's graph alive together."""
    totals = count(rollout.mask_BT)
    result: dict[Value | None, dict[tuple[int, int], Tensor]] = {}
    for evaluation in policy.evaluate(rollout, values=objective.values):
        assert evaluation.rows is not None
        for name, value in {None: evaluation.logprob_BT, **evaluation.values}.items():
            cells = result.setdefault(name, {})
            for i, row in enumerate(evaluation.rows.tolist()):
                for j, column in enumerate(evaluation.columns):
                    cells[row, column] = value[i, j]
    B, T = rollout.shape
    zero = torch.zeros(())
    job_values = {
        name: torch.stack([torch.stack([cells.get((b, t), zero) for t in range(T)]) for b in range(B)])
        for name, cells in result.items()
    }
    loss = objective(
        Decisions(
            logprob_BT=job_values.pop(None),
            old_logprob_BT=rollout.old_logprob_BT,
            advantage_BT=advantage_B[:, None].expand(B, T),
            mask_BT=rollout.mask_BT,
            weight_BT=objective.weights(rollout.mask_BT, totals, rollout.noise),
            mean_weight_BT=objective.mean_weights(rollout.mask_BT, totals),
            segment_BT=rollout.segment_BT,
            std_BT=None if rollout.noise is None else rollout.noise.std_BT,
            group_BT=rollout.prompt_index_B[:, None].expand(B, T),
            source_BT=None if rollout.source_B is None else rollout.source_B[:, None].expand(B, T),
            values={value: matrix_BT for value, matrix_BT in job_values.items() if value is not None},
        )
    )
    loss.value.backward()
    return float(loss.value.detach()), gradient(policy)


def streamed(
    policy: DenoisingPolicy,
    rollout: Rollout,
    objective: Objective,
    *,
    parts: list[list[int]],
    advantage_B: Tensor = ADVANTAGE_B,
) -> tuple[float, Tensor]:
    totals, value = count(rollout.mask_BT), 0.0
    advantage_BT = advantage_B[:, None].expand(rollout.shape)
    for rows in parts:
        result = accumulate_gradient(policy, rollout, advantage_BT, objective, rows=rows, totals=totals)
        value += result.diagnostics.as_metrics()["policy/loss"]
    return value, gradient(policy)


def relative(result: Tensor, expected: Tensor) -> float:
    return float((result - expected).norm() / expected.norm())


NIGHTLY = ("dual", "two-sided", "cispo", "sapo", "k3", "tempflow", "gspo")
"""Those that differ from another only by a function of one decision, which has separate tests."""


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in OBJECTIVES]
)
def test_streamed_gradient_is_the_full_graphs(name: str) -> None:
    policy, objective = make_policy(), OBJECTIVES[name]
    rollout = draw(policy)
    with policy.reference():  # a full fine-tune's reference is what the weights are now
        pass
    disturb(policy)
    expected, full = full_graph(policy, rollout, objective)
    assert full.norm() > 0
    value, result = streamed(policy, rollout.aged(), objective, parts=[[0, 1, 2, 3]])
    assert value == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert relative(result, full) < 1e-5


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", ["clipped", "gspo", "gspo of norms"])
def test_on_policy_values_are_the_rollouts_own(name: str) -> None:
    policy, objective = make_policy(), OBJECTIVES[name]
    rollout = draw(policy)
    _, full = full_graph(policy, rollout, objective)
    _, result = streamed(policy, rollout, objective, parts=[[0, 1, 2, 3]])
    assert relative(result, full) < 1e-5


@pytest.mark.first_case
@pytest.mark.parametrize("name", daily(["clipped", "gspo", "guard"], "gspo", "guard"))
def test_minibatch_rows_and_batches_do_not_change_updates(name: str) -> None:
    objective = OBJECTIVES[name]
    policy = make_policy()
    rollout = draw(policy).aged()
    disturb(policy)
    value, expected = streamed(policy, rollout, objective, parts=[[0, 1, 2, 3]])
    for parts in ([[0, 1], [2, 3]], [[3, 0], [1], [2]]):
        other_value, other = streamed(policy, rollout, objective, parts=parts)
        assert other_value == pytest.approx(value, rel=1e-4, abs=1e-6)
        assert relative(other, expected) < 1e-5
    single = DenoisingPolicy(policy.pipeline, policy.settings.model_copy(update={"update_batch": 1}))
    assert relative(streamed(single, rollout, objective, parts=[[0, 1, 2, 3]])[1], expected) < 1e-5


@pytest.mark.nightly
def test_shared_states_give_the_gradient_of_separate_ones() -> None:
    policy = make_policy(rollout_batch=4)
    rollout = draw(policy, same_initial_noise=True)
    assert rollout.state_BT[0, 0] == rollout.state_BT[1, 0] != rollout.state_BT[2, 0]
    apart = Rollout(
        rollout.samples, rollout.prompt_index_B, rollout.old_logprob_BT, rollout.mask_BT,
        torch.arange(rollout.mask_BT.numel()).reshape(rollout.shape), rollout.segment_BT, rollout.trace, rollout.noise,
    )  # fmt: skip
    disturb(policy)
    _, shared = streamed(policy, rollout.aged(), OBJECTIVES["clipped"], parts=[[0, 1, 2, 3]])
    _, separate = streamed(policy, apart.aged(), OBJECTIVES["clipped"], parts=[[0, 1, 2, 3]])
    assert relative(shared, separate) < 1e-5


def test_gradient_at_ratio_one_is_the_policy_gradient() -> None:
    policy = make_policy()
    rollout = draw(policy)
    _, ppo = streamed(policy, rollout.aged(), OBJECTIVES["clipped"], parts=[[0, 1, 2, 3]])
    plain = Objective(surrogate=policy_gradient, aggregate=sequence_mean)
    _, vanilla = streamed(policy, rollout.aged(), plain, parts=[[0, 1, 2, 3]])
    assert relative(ppo, vanilla) < 1e-5


def test_a_process_without_rows_adds_no_gradient() -> None:
    policy = make_policy()
    rollout = draw(policy)
    for name in ("clipped", "gspo"):
        result = accumulate_gradient(
            policy, rollout, ADVANTAGE_B[:, None].expand(rollout.shape), OBJECTIVES[name], rows=[],
            totals=Totals(num_samples=4, num_decisions=12),
        )  # fmt: skip
        assert result.num_forwards == 0
        assert float(result.diagnostics.num_decisions) == 0
    assert float(gradient(policy).norm()) == 0


@pytest.mark.nightly
def test_on_policy_first_update_needs_no_extra_forward() -> None:
    policy = make_policy()
    rollout = draw(policy)
    spent = [
        accumulate_gradient(
            policy, current, ADVANTAGE_B[:, None].expand(rollout.shape), OBJECTIVES["gspo"], rows=[0, 1, 2, 3],
            totals=count(rollout.mask_BT),
        ).num_forwards
        for current in (rollout, rollout.aged())
    ]  # fmt: skip
    assert spent == [12, 24]  # 4 rows x 3 stochastic steps, once with grad; off policy once more for the values


@pytest.mark.nightly
def test_memory_does_not_grow_with_the_number_of_decisions() -> None:
    """Tensors saved for backward at once, counted by hooks: as many for 3 decisions as for 7."""
    peaks = []
    for steps in (4, 8):
        policy = make_policy(segments=None)
        call = policy.settings.call | {"num_inference_steps": steps}
        policy = DenoisingPolicy(policy.pipeline, policy.settings.model_copy(update={"call": call}))
        rollout = draw(policy)
        alive, peak = 0, 0

        class Saved:
            def __init__(self, tensor: Tensor) -> None:
                nonlocal alive, peak
                self.tensor = tensor
                alive += tensor.numel()
                peak = max(peak, alive)

            def __del__(self) -> None:
                nonlocal alive
                alive -= self.tensor.numel()

        with torch.autograd.graph.saved_tensors_hooks(Saved, lambda saved: saved.tensor):
            for name in ("clipped", "gspo"):
                streamed(policy, rollout.aged(), OBJECTIVES[name], parts=[[0, 1, 2, 3]])
        peaks.append(peak)
    assert peaks[0] == peaks[1] > 0
