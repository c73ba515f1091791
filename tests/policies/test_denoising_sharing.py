"""Shared states of a group are computed once, with the results of separate rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion.proxies import OutputShapes
from torch import Tensor

from mmgrpo.types import Plan, Prompt
from mmgrpo.values import DRIFT
from tests.policies.contract import gradients, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.single_rows import assert_rows_equal_single_rows
from tests.policies.tiny_policies import measured_policy_of, policy_of, prompts_of

NAMES = daily(["sd15", "sd3", "z-image", "wan"], "z-image", "wan")
SEED = 3
GROUP_SIZE = 3
WINDOW = Plan(stochastic=(1, 2), same_initial_noise=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_shared_states_give_the_samples_of_rows_alone(name: str) -> None:
    assert_rows_equal_single_rows(name, WINDOW, group_size=GROUP_SIZE, seed=SEED)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_shared_states_give_the_gradient_of_separate_states(name: str) -> None:
    policy = policy_of(name)
    shared = policy.rollout(prompts_of(name), group_size=GROUP_SIZE, seed=SEED, plan=WINDOW)
    assert shared.state_BT[:, 1].tolist() == [1, 1, 1, 13, 13, 13]  # rows 0 and 3 head the groups, 4 steps a row
    assert len(set(shared.state_BT[:, 2].tolist())) == 6
    distinct = replace(shared, state_BT=torch.arange(24).reshape(6, 4))
    move(policy.trainable)
    torch.testing.assert_close(values(policy, shared), values(policy, distinct), rtol=1e-5, atol=1e-5)
    assert relative_difference(gradients(policy, shared), gradients(policy, distinct)) < 1e-5


def test_shared_states_are_computed_once() -> None:
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=GROUP_SIZE, seed=SEED, plan=WINDOW)
    # Steps 0 and 1 run for the 2 groups, steps 2 and 3 for the 6 rows.
    assert rollout.num_forwards == 2 * 2 + 2 * 6
    assert [e.num_forwards for e in policy.evaluate(rollout)] == [2, 6]
    apart = policy.rollout(prompts_of("sd3"), group_size=GROUP_SIZE, seed=SEED)
    assert apart.num_forwards == 4 * 6
    assert [e.num_forwards for e in policy.evaluate(apart)] == [6, 6, 6]


@pytest.mark.nightly
def test_a_group_larger_than_a_batch_shares_its_states() -> None:
    full, split = measured_policy_of("sd3"), policy_of("sd3", batch=2)
    expected = full.rollout(prompts_of("sd3"), group_size=GROUP_SIZE, seed=SEED, plan=WINDOW)
    actual = split.rollout(prompts_of("sd3"), group_size=GROUP_SIZE, seed=SEED, plan=WINDOW)
    assert actual.num_forwards == expected.num_forwards
    assert torch.equal(actual.state_BT, expected.state_BT)
    torch.testing.assert_close(actual.old_logprob_BT, expected.old_logprob_BT, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(values(split, expected), expected.old_logprob_BT, rtol=1e-6, atol=1e-6)


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", daily(["sd15", "sd3", "flux", "flux2", "qwen-image", "z-image", "wan"], "flux2", "wan")
)
def test_ghost_steps_run_no_forward_in_any_batch(name: str) -> None:
    policy = policy_of(name)
    rollout = policy.rollout([Prompt("a red fox"), Prompt("a cube " * 9)], group_size=2, seed=SEED)
    assert rollout.num_forwards == 4 * 4
    for rows in ([0], [3], [2, 0, 1]):
        with torch.no_grad():
            spent = [evaluation.num_forwards for evaluation in policy.evaluate(rollout, rows)]
        assert spent == [len(rows)] * 3


def _answer(shapes: OutputShapes, rows: int, **others: Any) -> Any:
    return shapes.zeros("net", (torch.rand(rows, 3),), others)


def test_shapes_scale_with_the_rows() -> None:
    shapes = OutputShapes()
    assert _answer(shapes, 2) is None
    shapes.record("net", (torch.rand(2, 3),), {}, {"sample": torch.rand(4, 5), "extra": None})
    actual = _answer(shapes, 3)
    assert torch.equal(actual["sample"], torch.zeros(6, 5))
    assert actual["extra"] is None
    assert _answer(shapes, 3, return_dict=False) is None  # may answer in another form
    assert shapes.zeros("other", (torch.rand(3, 3),), {}) is None
    assert shapes.zeros("net", (torch.rand(3, 4),), {}) is None


def test_shapes_of_lists_scale_with_their_length() -> None:
    shapes = OutputShapes()
    shapes.record("net", ([torch.rand(3)], torch.rand(1)), {}, ([torch.rand(3, 7)],))
    actual = shapes.zeros("net", ([torch.rand(3), torch.rand(3)], torch.rand(2)), {})
    assert actual is not None
    assert [row.shape for row in actual[0]] == [(3, 7), (3, 7)]


@pytest.mark.parametrize("output", [torch.rand(5, 3), (torch.rand(2, 3), "cache"), torch.tensor(1.0)])
def test_outputs_without_rows_of_tensors_have_no_zeros(output: Any) -> None:
    shapes = OutputShapes()
    shapes.record("net", (torch.rand(2, 3),), {}, output)
    assert _answer(shapes, 2) is None


def test_inconsistent_output_shapes_are_discarded() -> None:
    shapes = OutputShapes()
    shapes.record("net", (torch.rand(2, 3),), {}, torch.rand(2, 3))
    shapes.record("net", (torch.rand(2, 3),), {}, torch.rand(2, 4))
    shapes.record("net", (torch.rand(2, 3),), {}, torch.rand(2, 3))
    assert _answer(shapes, 2) is None


def test_stored_means_exist_for_every_member() -> None:
    plan = replace(WINDOW, values=(DRIFT,))
    policy = measured_policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=GROUP_SIZE, seed=SEED, plan=plan)
    first: list[Tensor] = [transitions[1].mean for transitions in rollout.trace.transitions]
    assert all(torch.equal(mean, first[0]) for mean in first[:3])
    assert not torch.equal(first[0], first[3])
    for evaluation in policy.evaluate(rollout, values=[DRIFT]):
        assert not evaluation.values[DRIFT].any()
