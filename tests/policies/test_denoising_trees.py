"""Trees of denoising steps: branches share noise and states until they split, and each state is computed once."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Plan, Split
from tests.policies.contract import gradients, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.single_rows import assert_rows_equal_single_rows
from tests.policies.tiny_policies import final_latent, measured_policy_of, policy_of, prompts_of

SEED = 3
BINARY = Plan(splits=(Split(decision=0, factor=2), Split(decision=2, factor=2)))
NAMES = daily(["sd15", "sd3", "z-image", "wan"], "sd15", "z-image")


def states(tree: str) -> list[int]:
    return [int(number) for number in tree.split()]


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("name", NAMES)
def test_a_tree_gives_the_samples_of_its_leaves_alone(name: str) -> None:
    assert_rows_equal_single_rows(name, BINARY, group_size=4, seed=SEED)


def test_branches_share_states_until_they_split() -> None:
    rollout = measured_policy_of("sd3").rollout(prompts_of("sd3")[:1], group_size=4, seed=SEED, plan=BINARY)
    # 4 steps a row, a state numbered by its first row. Decision 0 parts {0, 1} from {2, 3}, decision 2 each of these.
    assert rollout.state_BT.tolist() == [states("0 1 2 3"), states("0 1 2 7"), states("0 9 10 11"), states("0 9 10 15")]
    reached = [[transition.next_state for transition in row] for row in rollout.trace.transitions]
    same = [[[torch.equal(reached[a][t], reached[b][t]) for t in range(4)] for b in range(4)] for a in range(4)]
    assert same[0] == [[True] * 4, [True, True, False, False], [False] * 4, [False] * 4]
    assert same[2][3] == [True, True, False, False]
    logprob_BT = rollout.old_logprob_BT
    assert torch.equal(logprob_BT[0, :2], logprob_BT[1, :2])
    assert len(set(logprob_BT[:, 2].tolist())) == 4


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [1, 2, 8])
def test_each_state_of_a_tree_is_computed_once(batch: int) -> None:
    policy = policy_of("sd3", batch=batch)
    rollout = policy.rollout(prompts_of("sd3"), group_size=4, seed=SEED, plan=BINARY)
    # A prompt's tree has 1 state at step 0, 2 at steps 1 and 2, 4 at step 3: 9 where 4 rows alone have 16. The ghosts
    # before a split cost nothing. The last step draws nothing, so 5 of them are scored.
    assert rollout.num_forwards == 2 * (1 + 2 + 2 + 4)
    assert int(torch.unique(rollout.state_BT).numel()) == 2 * 9
    spent = dict.fromkeys(range(3), 0.0)
    for evaluation in policy.evaluate(rollout):
        spent[evaluation.columns[0]] += evaluation.num_forwards
    assert spent == {0: 2 * 1, 1: 2 * 2, 2: 2 * 2}
    full = measured_policy_of("sd3").rollout(prompts_of("sd3"), group_size=4, seed=SEED, plan=BINARY)
    torch.testing.assert_close(rollout.old_logprob_BT, full.old_logprob_BT, rtol=1e-5, atol=1e-5)


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_tree_gives_the_gradient_of_separate_states(name: str) -> None:
    policy = policy_of(name)
    tree = policy.rollout(prompts_of(name), group_size=4, seed=SEED, plan=BINARY)
    gap = (values(policy, tree) - tree.old_logprob_BT).abs()
    assert float(gap.max()) == 0 if name == "sd3" else float(gap.max()) < 1e-5
    distinct = replace(tree, state_BT=torch.arange(32).reshape(8, 4))
    move(policy.trainable)
    torch.testing.assert_close(values(policy, tree), values(policy, distinct), rtol=1e-5, atol=1e-5)
    assert relative_difference(gradients(policy, tree), gradients(policy, distinct)) < 1e-5


def test_one_split_into_all_members_equals_shared_noise() -> None:
    shared = Plan(stochastic=(1, 2), same_initial_noise=True)
    split = Plan(stochastic=(1, 2), splits=(Split(decision=1, factor=3),))
    actual = [
        measured_policy_of("sd3").rollout(prompts_of("sd3"), group_size=3, seed=SEED, plan=p) for p in (shared, split)
    ]
    assert torch.equal(actual[0].old_logprob_BT, actual[1].old_logprob_BT)
    assert torch.equal(actual[0].state_BT, actual[1].state_BT)
    for row in range(6):
        assert torch.equal(final_latent(actual[0], row), final_latent(actual[1], row))


def test_steps_outside_the_window_are_deterministic_in_every_branch() -> None:
    plan = replace(BINARY, stochastic=(0, 2))
    rollout = measured_policy_of("sd3").rollout(prompts_of("sd3")[:1], group_size=4, seed=SEED, plan=plan)
    assert rollout.mask_BT.tolist() == [[True, False, True, False]] * 4
    assert rollout.num_forwards == 1 + 2 + 2 + 4


def test_the_noise_of_a_split_can_be_scaled() -> None:
    near, far = (
        measured_policy_of("sd3").rollout(
            prompts_of("sd3")[:1],
            group_size=2,
            seed=SEED,
            plan=Plan(stochastic=(1,), splits=(Split(decision=1, factor=2, spread=spread),)),
        )
        for spread in (1.0, 3.0)
    )
    # log p = mean(-(x - m)^2 / (2 s^2)) - log s - log(2 pi) / 2: of noise 3 z the mean of squares is 9 times that of z
    assert near.noise is not None
    constant = -torch.log(near.noise.std_BT[:, 1]) - 0.5 * torch.log(torch.tensor(2 * torch.pi))
    torch.testing.assert_close(
        far.old_logprob_BT[:, 1] - constant, 9 * (near.old_logprob_BT[:, 1] - constant), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        (BINARY, DataError, r"a tree of 2 x 2 has 4 leaves, the group 3 members: change"),
        (
            Plan(splits=(Split(decision=3, factor=3),)),
            ConfigError,
            r"split at decision 3: .* 4 steps \[0, 1, 2\] are stochastic",
        ),
        (Plan(splits=(Split(decision=9, factor=3),)), ConfigError, r"split at decision 9: "),
    ],
)
def test_trees_that_do_not_fit_raise(plan: Plan, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        measured_policy_of("sd3").rollout(prompts_of("sd3"), group_size=3, seed=SEED, plan=plan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"splits": (Split(decision=2, factor=2), Split(decision=0, factor=2))}, r"increasing decisions, got \[2, 0\]"),
        ({"same_initial_noise": True}, "leave out same_initial_noise"),
        ({"stochastic": (0, 1)}, r"\[2\] are deterministic: .* \[0, 1\]"),
        ({"members": ((0, 1, 2, 3), (0, 3))}, r"members 0 to 3 of each prompt, got \[0, 3\]"),
    ],
)
def test_invalid_tree_plans_raise(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        replace(BINARY, **changes)


def test_a_split_needs_at_least_two_branches() -> None:
    with pytest.raises(DataError, match=r"factor >= 2 and spread > 0, got 1, 1 and 1\.0"):
        Split(decision=1, factor=1)
