"""The settings of a plan for rollouts of text: members, sampling settings, forced prefixes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError, ShapeError
from mmgrpo.types import Continuation, Plan, Prompt, Rollout
from mmgrpo.values import ENTROPY
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import measured_policy_of, policy_of, prompts_of

SEED = 3
PREFIX = " is red is"

AXES_BT = ("old_logprob_BT", "mask_BT", "state_BT", "segment_BT", "token_BT")


def rollout_of(policy: LanguagePolicy, name: str = "llama", group_size: int = 3, **plan: Any) -> Rollout:
    return policy.rollout(prompts_of(name), group_size=group_size, seed=SEED, plan=Plan(**plan))


def on_policy_gap(policy: LanguagePolicy, rollout: Rollout) -> float:
    return largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT)


def part(rollout: Rollout, rows: list[int], width: int) -> Tensor:
    return (rollout.old_logprob_BT * rollout.mask_BT)[rows, :width]


@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_members_are_sampled_by_their_numbers(name: str) -> None:
    policy = policy_of(name)
    complete = rollout_of(policy, name, group_size=6)
    some = rollout_of(policy, name, members=((2, 5), (0, 3, 4)))
    rows = [2, 5, 6, 9, 10]
    assert [sample.tokens for sample in some.samples] == [complete.samples[row].tokens for row in rows]
    assert [(sample.group, sample.member) for sample in some.samples] == [(0, 2), (0, 5), (1, 0), (1, 3), (1, 4)]
    assert some.prompt_index_B.tolist() == [0, 0, 1, 1, 1]
    width = some.shape[1]
    assert (part(some, list(range(5)), width) - part(complete, rows, width)).abs().max() < 2e-6
    assert on_policy_gap(policy, some) < 2e-6
    with pytest.raises(DataError, match=r"Plan\.members is for 1 prompts"):
        rollout_of(policy, name, members=((0,),))


def test_a_greedy_plan_writes_once_for_all_the_members_it_names() -> None:
    rollout = rollout_of(measured_policy_of("llama"), stochastic=(), members=((4,), (1, 2, 3)))
    assert len({tuple(sample.tokens or ()) for sample in rollout.samples[1:]}) == 1
    assert [sample.member for sample in rollout.samples] == [4, 1, 2, 3]
    assert not rollout.mask_BT.any()


def test_a_group_may_have_several_prompts() -> None:
    policy = measured_policy_of("llama")
    hinted, bare = prompts_of("llama")
    plan = Plan(prompt_ids=(7, 7, 7), members=((0, 1), (2,), (3,)))
    rollout = policy.rollout([bare, hinted, bare], group_size=1, seed=SEED, plan=plan)
    assert rollout.prompt_index_B.tolist() == [7] * 4
    assert [sample.prompt for sample in rollout.samples] == [bare, bare, hinted, bare]
    assert rollout.state_BT[:, 0].tolist() == [0, 0, 1, 0]  # the third entry's prompt is the first's
    assert rollout.trace.prompt_of_B == [0, 0, 1, 0]
    plain = policy.rollout([bare], group_size=4, seed=SEED, plan=Plan(prompt_ids=(7,)))
    for row in (0, 1, 3):
        assert rollout.samples[row].tokens == plain.samples[row].tokens
    assert rollout.samples[2].tokens != plain.samples[2].tokens
    assert on_policy_gap(policy, rollout) < 2e-6


@pytest.mark.parametrize("settings", [{"temperature": 6.0}, {"top_k": 4}, {"temperature": 9.0, "top_p": 0.7}])
def test_settings_of_a_rollout_are_those_it_is_scored_under(settings: dict[str, Any]) -> None:
    policy = measured_policy_of("llama")
    plain, other = rollout_of(policy), rollout_of(policy, settings=settings)
    assert on_policy_gap(policy, other) < 1e-6
    assert on_policy_gap(policy, plain) < 1e-6  # the policy's own settings are as they were
    assert [sample.tokens for sample in other.samples] != [sample.tokens for sample in plain.samples]
    same = measured_policy_of("llama", **settings)
    assert [sample.tokens for sample in rollout_of(same).samples] == [sample.tokens for sample in other.samples]


def test_the_length_of_a_rollout_is_its_own() -> None:
    assert rollout_of(measured_policy_of("llama"), settings={"max_new_tokens": 2}).shape[1] == 2
    with pytest.raises(DataError, match="more than the model's context"):
        rollout_of(measured_policy_of("llama"), settings={"max_new_tokens": 10**6})


def test_settings_that_a_rollout_has_not_are_named() -> None:
    policy = measured_policy_of("llama")
    with pytest.raises(ConfigError, match=r"no setting 'strength'; it takes temperature, top_k"):
        rollout_of(policy, settings={"strength": 0.3})
    with pytest.raises(ConfigError, match="temperature: must be greater than 0"):
        rollout_of(policy, settings={"temperature": 0})


@pytest.mark.each_value
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
@pytest.mark.parametrize("settings", [{}, {"top_p": 0.8}], ids=["whole", "nucleus"])
def test_a_forced_prefix_is_neither_sampled_nor_trained(name: str, settings: dict[str, Any]) -> None:
    policy = policy_of(name, **settings)
    prompts = [replace(prompt, prefix=PREFIX) for prompt in prompts_of(name)]
    rollout = policy.rollout(prompts, group_size=3, seed=SEED)
    forced = policy._encoder.encode_text(PREFIX).tolist()
    count = len(forced)
    assert count == 3
    assert not rollout.mask_BT[:, :count].any()
    assert rollout.mask_BT[:, count].all()
    for sample in rollout.samples:
        assert list(sample.tokens or ())[:count] == forced
        assert sample.num_forced == count
        assert (sample.text or "").startswith(policy._tokenizer.decode(forced))
    assert on_policy_gap(policy, rollout) < 2e-6
    bare_BT = ends_with_the_beginning(policy, rollout)
    assert largest_difference(rollout.old_logprob_BT, bare_BT, rollout.mask_BT) < 2e-6
    move(policy.trainable)
    bare_BT = ends_with_the_beginning(policy, rollout)
    assert largest_difference(values(policy, rollout), bare_BT, rollout.mask_BT) < 2e-6


def ends_with_the_beginning(policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """Log-probabilities of the same tokens after prompts that end with the rows' forced tokens."""
    trace, count = rollout.trace, rollout.samples[0].num_forced
    begun = [prompt.with_tokens(trace.completions[0].token_T[:count], policy.path.fill) for prompt in trace.prompts]
    cut = [
        replace(
            completion,
            token_T=completion.token_T[count:],
            logprob_T=completion.logprob_T[count:],
            is_decision_T=completion.is_decision_T[count:],
            support=None if completion.support is None else completion.support.part(count, len(completion.token_T)),
        )
        for completion in trace.completions
    ]
    later = replace(
        rollout,
        trace=replace(trace, prompts=begun, completions=cut),
        values={},
        **{name: getattr(rollout, name)[:, count:] for name in AXES_BT},
    )
    return torch.cat([torch.zeros(rollout.shape[0], count), values(policy, later)], dim=1)


def test_an_empty_beginning_is_none() -> None:
    policy = measured_policy_of("llama")
    plain = rollout_of(policy)
    empty = policy.rollout([replace(p, prefix="") for p in prompts_of("llama")], group_size=3, seed=SEED)
    assert torch.equal(plain.old_logprob_BT, empty.old_logprob_BT)
    assert [sample.tokens for sample in plain.samples] == [sample.tokens for sample in empty.samples]


@pytest.mark.parametrize("settings", [{}, {"top_k": 9}], ids=["whole", "top_k"])
def test_a_branch_is_trained_like_the_row_it_leaves(settings: dict[str, Any]) -> None:
    policy = measured_policy_of("llama", **settings)
    (prompt, _), at = prompts_of("llama"), 3
    trunk = policy.rollout([prompt], group_size=2, seed=SEED)
    tokens = list(trunk.samples[0].tokens or ())[:at]
    branch = Continuation(tokens, trunk.old_logprob_BT[0, :at])
    plan = Plan(prompt_ids=(0, 0), members=((0, 1), (0, 2)), continues=(None, branch))
    tree = policy.rollout([prompt, prompt], group_size=2, seed=SEED, plan=plan)
    assert tree.samples[2].tokens == tree.samples[0].tokens  # a member samples the same tokens after every prefix
    assert list(tree.samples[3].tokens or ())[:at] == tokens
    assert tree.mask_BT[2].equal(tree.mask_BT[0])
    assert torch.allclose(tree.old_logprob_BT[2], tree.old_logprob_BT[0], atol=2e-6)
    assert on_policy_gap(policy, tree) < 1e-6
    assert tree.state_BT[2].equal(tree.state_BT[0])
    assert tree.state_BT[3, : at + 1].equal(tree.state_BT[0, : at + 1])
    assert tree.state_BT[1, 0] == tree.state_BT[0, 0]


def test_a_branch_without_log_probabilities_is_masked() -> None:
    policy = measured_policy_of("llama")
    (prompt, _), tokens = prompts_of("llama"), [20, 21, 22]
    forced = policy.rollout([prompt], group_size=2, seed=SEED, plan=Plan(continues=(Continuation(tokens),)))
    assert forced.mask_BT[:, :3].sum() == 0
    assert forced.mask_BT[:, 3].all()
    assert [sample.num_forced for sample in forced.samples] == [3, 3]
    start = Continuation(tokens, torch.full((3,), -1.0), num_forced=1)
    half = policy.rollout([prompt], group_size=2, seed=SEED, plan=Plan(continues=(start,)))
    assert half.mask_BT[:, :4].tolist() == [[False, True, True, True]] * 2
    assert half.old_logprob_BT[:, :3].tolist() == [[0.0, -1.0, -1.0]] * 2
    assert torch.equal(half.old_logprob_BT[:, 3:], forced.old_logprob_BT[:, 3:])


def test_beginnings_of_several_lengths_are_written_in_one_batch() -> None:
    policy, alone = measured_policy_of("llama", batch=64), measured_policy_of("llama", batch=1)
    prompts = [replace(p, prefix=prefix) for p, prefix in zip(prompts_of("llama"), (PREFIX, None), strict=True)]
    together, apart = (policy.rollout(prompts, group_size=4, seed=SEED) for policy in (policy, alone))
    assert [sample.tokens for sample in together.samples] == [sample.tokens for sample in apart.samples]
    assert largest_difference(together.old_logprob_BT, apart.old_logprob_BT, together.mask_BT) < 2e-6
    assert max(len(sample.tokens or ()) for sample in together.samples) == 7
    move(policy.trainable)
    move(alone.trainable)
    assert relative_difference(gradients(policy, together), gradients(alone, together)) < 1e-4


def test_prefixes_that_cannot_be_continued_raise() -> None:
    policy = measured_policy_of("llama")
    prompt = prompts_of("llama")[0]

    def draw(tokens: list[int]) -> None:
        policy.rollout([prompt], group_size=1, seed=SEED, plan=Plan(continues=(Continuation(tokens),)))

    with pytest.raises(DataError, match="leaves none of max_new_tokens=7"):
        draw([20] * 7)
    with pytest.raises(DataError, match="contains an end token"):
        draw([20, int(policy._end_ids[0])])
    with pytest.raises(ShapeError, match="a number for each of the 2 tokens"):
        Continuation([1, 2], torch.zeros(3))
    with pytest.raises(PolicyError, match="its answers cannot have a prefix"):
        t5().rollout([Prompt("what", prefix=" red")], group_size=1, seed=SEED)


@pytest.mark.parametrize("settings", [{}, {"top_k": 5}], ids=["whole", "top_k"])
def test_entropies_of_a_rollout_are_those_of_its_evaluation(settings: dict[str, Any]) -> None:
    policy = measured_policy_of("llama", **settings)
    rollout = rollout_of(policy, values=(ENTROPY,))
    plain = rollout_of(policy)
    assert ENTROPY not in plain.values
    assert torch.equal(plain.old_logprob_BT, rollout.old_logprob_BT)
    result_BT = torch.zeros(rollout.shape)
    with torch.no_grad():
        for evaluation in policy.evaluate(rollout, values=(ENTROPY,)):
            assert evaluation.rows is not None
            result_BT[evaluation.rows[:, None], torch.tensor(evaluation.columns)] = evaluation.values[ENTROPY]
    assert (result_BT - rollout.values[ENTROPY]).abs().max() < 1e-5
    assert (rollout.values[ENTROPY][rollout.mask_BT] > 0).all()
