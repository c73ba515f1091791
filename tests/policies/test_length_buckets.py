"""Rows of similar length in one forward: the division by hand, and updates that are those of one forward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mmgrpo.policies.language.forward_paths import CachedPath
from mmgrpo.policies.language.length_buckets import (
    FORWARD_TOKENS,
    LOADING_FORWARD_TOKENS,
    length_buckets,
    stacked,
)

from mmgrpo.errors import ConfigError
from mmgrpo.types import OffPolicySample, Plan, Rollout, Sample
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.tiny_language import policy_of, prompts_of
from tests.training.test_token_trees import counted


def test_buckets_by_hand() -> None:
    lengths = [10, 2, 9, 1, 2]
    # one forward has 5 x 10 tokens; {1, 2, 2} and {9, 10} have 3 x 2 + 2 x 10 = 26, which saves 24
    assert length_buckets(lengths, forward_tokens=24) == [[0, 1, 2, 3, 4]]
    assert length_buckets(lengths, forward_tokens=23) == [[1, 3, 4], [0, 2]]
    assert length_buckets(lengths, forward_tokens=0) == [[3], [1, 4], [2], [0]]
    assert length_buckets([], 1) == []


def test_rows_are_stacked_with_zeros_after_their_ends() -> None:
    rows = [torch.ones(2, 3, requires_grad=True), torch.ones(4, 3)]
    result = stacked(rows)
    assert result.sum(-1).tolist() == [[3, 3, 0, 0], [3, 3, 3, 3]]
    (2 * result).sum().backward()
    assert rows[0].grad is not None
    assert rows[0].grad.tolist() == [[2, 2, 2]] * 2


def rows_of_many_lengths(policy: Any, name: str) -> Rollout:
    """Rows of 1 to 12 tokens after each prompt, as an answer of another source has them."""
    answers = []
    for group, prompt in enumerate(prompts_of(name)):
        rollout = policy.rollout([prompt], group_size=4, seed=1, plan=Plan(settings={"max_new_tokens": 12}))
        for row, length in enumerate((1, 12, 3, 9)):
            tokens = (rollout.samples[row].tokens or ())[:length]
            answers.append(OffPolicySample(sample=Sample(prompt, group, row, text="", tokens=tokens, finished=False)))
    return policy.read(answers, seed=0)


@pytest.mark.first_case
@pytest.mark.parametrize("settings", [{}, {"share_prefix": False}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl", pytest.param("gemma2", marks=pytest.mark.nightly)])
def test_updates_in_buckets_are_those_of_one_forward(name: str, settings: dict[str, Any]) -> None:
    policy = policy_of(name, lora={"rank": 2, "alpha": 2.0}, **settings)
    rollout = rows_of_many_lengths(policy, name)
    move(policy.trainable)
    with counted(policy) as tokens:
        expected = values(policy, rollout), gradients(policy, rollout)
    assert isinstance(policy.path, CachedPath)
    policy._selector.path = replace(policy.path, forward_tokens=lambda: 4)
    with counted(policy) as fewer_tokens:
        result = values(policy, rollout), gradients(policy, rollout)
    assert sum(fewer_tokens) < sum(tokens)
    assert len(fewer_tokens) > len(tokens)
    assert largest_difference(result[0], expected[0], rollout.mask_BT) < 1e-6
    assert relative_difference(result[1], expected[1]) < 1e-5


@pytest.mark.parametrize(("name", "checkpointing"), [("llama", False), ("gemma2", False), ("qwen3", True)])
def test_rows_without_padding_have_the_values_and_gradients_of_rows_alone(name: str, checkpointing: bool) -> None:
    settings: dict[str, Any] = {"lora": {"rank": 2, "alpha": 2.0}, "gradient_checkpointing": checkpointing}
    plain, packed = (policy_of(name, padding_free=on, **settings) for on in (False, True))
    rollout = rows_of_many_lengths(plain, name)
    for policy in (plain, packed):
        move(policy.trainable)
        values(policy, rollout)  # which compares the path with the model's call
    with counted(packed) as tokens:
        actual = values(packed, rollout), gradients(packed, rollout)
    assert isinstance(packed.path, CachedPath)
    assert packed.path.packed
    lengths = [rollout.trace.prompts[p].length for p in rollout.trace.prompt_of_B]
    once = sum(lengths) + int(rollout.mask_BT.sum()) - len(lengths)  # each token but the last of a row
    assert [number for number in tokens if number > 1] == [once, once]
    assert largest_difference(actual[0], values(plain, rollout), rollout.mask_BT) < 1e-6
    assert relative_difference(actual[1], gradients(plain, rollout)) < 1e-5


@pytest.mark.parametrize("name", ["qwen2.5-vl", "qwen3.5"])
def test_rows_with_images_and_rows_of_a_recurrent_model_have_padding(name: str) -> None:
    policy = policy_of(name, padding_free=True)
    with pytest.raises(ConfigError, match=r"policy\.padding_free: \w+ needs the plain path"):
        values(policy, rows_of_many_lengths(policy, name))


def test_weights_that_wait_on_the_host_are_not_loaded_for_little_padding() -> None:
    settings = {"lora": {"rank": 2, "alpha": 2.0}, "gradient_checkpointing": True}
    for offload, forward_tokens in ((False, FORWARD_TOKENS), (True, LOADING_FORWARD_TOKENS)):
        path = policy_of("llama", offload=offload, **settings).path
        assert isinstance(path, CachedPath)
        assert path.forward_tokens() == forward_tokens
