"""All trained steps of a few samples in one forward of the update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.joined_calls import JoinError, joined, parts_of
from torch import nn

from mmgrpo.errors import ConfigError
from mmgrpo.layouts import set_layout
from mmgrpo.types import Plan, Rollout
from mmgrpo.values import Value
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.tiny_policies import policy_of, prompts_of

SEED = 3
FAMILIES = ("sd3", "sd15", "wan", "flux", "sdxl", "qwen-image", "z-image", "ltx", "cogvideox", "sana", "lumina2")
REFERENCE = Value("logprob", "reference")


@contextmanager
def forward_rows(policy: DenoisingPolicy) -> Iterator[list[int]]:
    """The rows of each forward of the denoisers."""
    rows: list[int] = []

    def note(module: torch.nn.Module, args: object, kwargs: dict[str, object], output: object) -> None:
        first = next(value for value in (*args, *kwargs.values()) if isinstance(value, (torch.Tensor, list)))  # pyrefly: ignore[not-iterable]
        rows.append(len(first))

    handles = [module.register_forward_hook(note, with_kwargs=True) for module in policy.weights.modules.values()]
    try:
        yield rows
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def _value_BT(policy: DenoisingPolicy, rollout: Rollout, value: Value) -> torch.Tensor:
    """A value of the first decisions, all of whose rows are in each slice."""
    parts = list(policy.evaluate(rollout, values=[value]))
    assert all(part.rows is not None and part.rows.tolist() == [0, 1, 2, 3] for part in parts)
    return torch.cat([part.values[value] for part in parts], 1)


@pytest.mark.nightly
@pytest.mark.parametrize("guided", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", daily(FAMILIES, "sd3", "wan"))
def test_joined_steps_have_the_values_and_gradients_of_separate_ones(name: str, guided: bool) -> None:
    policy, apart = (policy_of(name, guided=guided, batch=batch, join_steps=True) for batch in (8, 4))
    for each in (policy, apart):
        move(each.trainable)
    plan = Plan(stochastic=(0, 1))
    rollout, expected = (each.rollout(prompts_of(name), group_size=2, seed=SEED, plan=plan) for each in (policy, apart))
    slices = list(policy.evaluate(rollout, values=[REFERENCE]))  # after the first comparison
    with forward_rows(policy) as rows, torch.no_grad():
        (evaluation,) = policy.evaluate(rollout)
    with forward_rows(apart) as rows_apart, torch.no_grad():
        assert [tuple(part.columns) for part in apart.evaluate(expected)] == [(0,), (1,)]
    assert tuple(evaluation.columns) == (0, 1)
    assert len(slices) == 1
    assert 2 * len(rows) == len(rows_apart)
    assert sum(rows) == sum(rows_apart)
    assert evaluation.num_forwards == sum(rows)
    logprob_BT, logprobs_apart_BT = values(policy, rollout), values(apart, expected)
    assert largest_difference(logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) <= 1e-5
    assert largest_difference(logprob_BT, logprobs_apart_BT, rollout.mask_BT) <= 1e-5
    assert relative_difference(gradients(policy, rollout), gradients(apart, expected)) <= 1e-4
    for value in (REFERENCE, Value("gaussian", "reference")):
        pair = (_value_BT(policy, rollout, value), _value_BT(apart, expected, value))
        assert largest_difference(*pair, rollout.mask_BT[:, :2]) <= 1e-5


def test_steps_are_not_joined_beyond_the_limit_or_after_memory_ran_out() -> None:
    policy = policy_of("sd3", batch=8, join_steps=True)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=Plan(stochastic=(0, 1, 2)))
    with torch.no_grad():
        assert [tuple(part.columns) for part in policy.evaluate(rollout)] == [(0, 1), (2,)]  # 4 rows x 2 = 8
        assert [tuple(part.columns) for part in policy.evaluate(rollout, [0, 1])] == [(0,), (1,), (2,)]


@dataclass(frozen=True)
class CompleteLayout:
    """The layout of a parameter on one process."""

    parameter: nn.Parameter
    start: int = 0

    @property
    def shape(self) -> torch.Size:
        return self.parameter.shape

    part_shape = shape

    def part(self, parameter: nn.Parameter) -> torch.Tensor:
        return parameter.detach()

    def gradient(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return parameter.grad

    def gather(self, value: torch.Tensor) -> torch.Tensor:
        return value


def shard_in_place(policy: DenoisingPolicy, *, sharded: bool = True) -> None:
    """Shards it over one process, which has complete parameters; as an engine that shards no adapters, or nothing."""

    def shard(name: str, module: nn.Module, *, empty: object = None, within: object = None) -> None:
        for parameter in module.parameters():
            if sharded and not parameter.requires_grad:
                set_layout(parameter, CompleteLayout(parameter))

    policy.shard(shard)


@pytest.mark.parametrize(
    ("settings", "sharded", "columns"),
    [
        ({}, True, [(0, 1)]),
        ({"join_steps": False}, True, [(0,), (1,)]),
        ({}, False, [(0,), (1,)]),
        ({"join_steps": True}, False, [(0, 1)]),
    ],
)
def test_steps_are_joined_by_default_if_weights_are_sharded(
    settings: dict[str, bool], sharded: bool, columns: list[tuple[int, ...]]
) -> None:
    policy = policy_of("sd3", batch=8, **settings)
    shard_in_place(policy, sharded=sharded)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=Plan(stochastic=(0, 1)))
    with torch.no_grad():
        assert [tuple(part.columns) for part in policy.evaluate(rollout)] == columns


def test_steps_of_compiled_blocks_are_not_joined_by_default() -> None:
    policy = policy_of("flux", compile=True)
    shard_in_place(policy)
    assert not policy._batches.join_steps
    with pytest.raises(ConfigError, match="compile does not support join_steps"):
        policy_of("flux", compile=True, join_steps=True)


@pytest.mark.nightly
def test_steps_with_other_shared_states_are_not_joined() -> None:
    policy = policy_of("sd3", batch=8, join_steps=True)
    plan = Plan(stochastic=(0, 1, 2), same_initial_noise=True)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=plan)
    with torch.no_grad():
        assert [tuple(part.columns) for part in policy.evaluate(rollout)] == [(0,), (1, 2)]  # one state per group at 0


def test_arguments_are_concatenated_by_row_or_equal() -> None:
    x, t, ids = torch.arange(4.0).reshape(2, 2), torch.tensor([1.0]), torch.zeros(3, 2)
    first = ((x, t[0]), {"ids": ids, "sizes": [(1, 2), (1, 2)]})
    second = ((x + 4, 2 * t[0]), {"ids": ids.clone(), "sizes": [(3, 4), (1, 2)]})
    args, kwargs = joined([first, second], 2)
    assert args[0].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert args[1].tolist() == [1, 1, 2, 2]  # a time of each call is one of each row
    assert kwargs["ids"] is ids
    assert kwargs["sizes"] == [(1, 2), (1, 2), (3, 4), (1, 2)]
    for pair in ((ids, ids + 1), (1, 2), (x, None), ("a", "b")):
        with pytest.raises(JoinError):
            joined(pair, 2)


def test_outputs_are_split_by_step() -> None:
    first, second = parts_of((torch.arange(4.0), [torch.ones(1)] * 2 + [torch.zeros(1)] * 2), 2, 2)
    assert (first[0].tolist(), second[0].tolist()) == ([0, 1], [2, 3])
    assert [part.item() for part in (*first[1], *second[1])] == [1, 1, 0, 0]
    with pytest.raises(JoinError, match=r"an output of shape \(3,\)"):
        parts_of(torch.zeros(3), 2, 2)
