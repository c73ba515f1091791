"""Off-policy rows of text: from the policy, from others, from a dataset, and under other prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.errors import DataError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import ENTROPY
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.tiny_language import measured_policy_of, policy_of, prompts_of

SEED = 3


def rollout_of(policy: LanguagePolicy, name: str = "llama", **plan: Any) -> Rollout:
    return policy.rollout(prompts_of(name), group_size=3, seed=SEED, plan=Plan(**plan))


def off_policy_samples_of(rollout: Rollout, *, stored: bool) -> list[OffPolicySample]:
    lengths = [len(sample.tokens or ()) for sample in rollout.samples]
    old = [rollout.old_logprob_BT[row, :length] if stored else None for row, length in enumerate(lengths)]
    return [
        OffPolicySample(sample=sample, old_logprob_T=old_T, source=Source.REPLAY if stored else Source.DEMONSTRATION)
        for sample, old_T in zip(rollout.samples, old, strict=True)
    ]


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize(
    ("name", "settings"), [("llama", {}), ("llama", {"top_p": 0.8}), ("qwen2.5-vl", {}), ("qwen3.5", {})]
)
def test_its_samples_are_rescored_exactly(name: str, settings: dict[str, Any], stored: bool) -> None:
    policy = policy_of(name, **settings)
    rollout = rollout_of(policy, name)
    read = policy.read(off_policy_samples_of(rollout, stored=stored), seed=0)
    assert torch.equal(read.mask_BT, rollout.mask_BT)
    assert torch.equal(read.state_BT, rollout.state_BT)
    assert torch.equal(read.prompt_index_B, rollout.prompt_index_B)
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < (1e-9 if stored else 2e-6)
    assert read.source_B is not None
    assert set(read.source_B.tolist()) == {Source.REPLAY if stored else Source.DEMONSTRATION}
    assert not read.on_policy
    assert [sample.text for sample in read.samples] == [sample.text for sample in rollout.samples]
    assert read.num_forwards == (0 if stored else len(read.samples))
    move(policy.trainable)
    assert largest_difference(values(policy, read), values(policy, rollout), rollout.mask_BT) < 1e-6
    assert relative_difference(gradients(policy, read), gradients(policy, rollout)) < 1e-5


def test_settings_of_a_plan_are_those_that_rows_are_read_under() -> None:
    policy = measured_policy_of("llama")
    rollout = rollout_of(policy, settings={"temperature": 7.0})
    read = policy.read(off_policy_samples_of(rollout, stored=False), seed=0, plan=Plan(settings={"temperature": 7.0}))
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    other = policy.read(off_policy_samples_of(rollout, stored=False), seed=0)
    assert largest_difference(other.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) > 1e-2


def test_an_answer_of_a_data_set_is_its_text_and_the_end() -> None:
    policy = measured_policy_of("llama")
    prompt = prompts_of("llama")[0]
    answers = [Sample(prompt, 4, 0, text="one red"), Sample(prompt, 4, 1, text="one red", finished=False)]
    handed: list[Any] = []
    read = policy.read(
        [OffPolicySample(sample=sample) for sample in answers], seed=0, plan=Plan(on_samples=handed.extend)
    )
    tokens = policy._encoder.encode_text("one red").tolist()
    end = policy._encoder.end_id(policy._end_ids.tolist())
    assert [list(sample.tokens or ()) for sample in read.samples] == [[*tokens, end], tokens]
    assert read.mask_BT.tolist() == [[True] * (len(tokens) + 1), [True] * len(tokens) + [False]]
    assert read.state_BT[0].tolist()[: len(tokens)] == read.state_BT[1].tolist()[: len(tokens)]
    assert [id(sample) for sample in handed] == [id(sample) for sample in read.samples]
    assert read.prompt_index_B.tolist() == [4, 4]


def test_forced_beginnings_of_read_rows_are_masked() -> None:
    policy = measured_policy_of("llama")
    rollout = rollout_of(policy)
    rows = [replace(item, num_forced=2) for item in off_policy_samples_of(rollout, stored=False)]
    read = policy.read(rows, seed=0)
    assert not read.mask_BT[:, :2].any()
    assert torch.equal(read.mask_BT[:, 2:], rollout.mask_BT[:, 2:])
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, read.mask_BT) < 2e-6
    begun = policy.rollout([Prompt("what", prefix=" is")], group_size=2, seed=SEED)
    again = policy.read(
        off_policy_samples_of(begun, stored=False), seed=0
    )  # a sample says itself how much of it was given
    assert torch.equal(again.mask_BT, begun.mask_BT)


@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_another_prompt_changes_only_the_log_probabilities(name: str) -> None:
    policy = policy_of(name)
    rollout, first = rollout_of(policy, name), prompts_of(name)[0]
    hint = replace(first, text=f"{first.text} two")
    rows = [
        replace(item, sample=replace(item.sample, prompt=hint)) for item in off_policy_samples_of(rollout, stored=False)
    ]
    hinted, bare = policy.read(rows, seed=0), policy.read(off_policy_samples_of(rollout, stored=False), seed=0)
    for same in ("mask_BT", "segment_BT", "prompt_index_B"):
        assert torch.equal(getattr(hinted, same), getattr(bare, same))
    assert [sample.tokens for sample in hinted.samples] == [sample.tokens for sample in bare.samples]
    expected_BT = plainly(policy, hinted)
    assert largest_difference(hinted.old_logprob_BT, expected_BT, hinted.mask_BT) < 3e-6
    assert largest_difference(hinted.old_logprob_BT, bare.old_logprob_BT, hinted.mask_BT) > 1e-3


@torch.no_grad()
def plainly(policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """Log-probabilities of the model itself, called row by row, of the tokens after the samples' prompts."""
    result_BT = torch.zeros(rollout.shape)
    for row, sample in enumerate(rollout.samples):
        encoded, token_T = policy._encoder(sample.prompt), torch.tensor(list(sample.tokens or ()))
        token_ids = encoded.with_tokens(token_T, policy.path.fill)
        inputs = {"input_ids": token_ids.ids_P[None], **token_ids.per_token, **token_ids.media}
        logits_TV = policy.model(**inputs).logits[0, encoded.length - 1 : -1] / policy.settings.temperature
        logits_TV[:, policy._sampling.suppressed] = -torch.inf
        result_BT[row, : len(token_T)] = logits_TV.log_softmax(-1)[torch.arange(len(token_T)), token_T]
    return result_BT


def test_entropies_are_computed_with_the_current_log_probabilities() -> None:
    policy = measured_policy_of("llama")
    rollout = rollout_of(policy, values=(ENTROPY,))
    read = policy.read(off_policy_samples_of(rollout, stored=False), seed=0, plan=Plan(values=(ENTROPY,)))
    assert (read.values[ENTROPY] - rollout.values[ENTROPY]).abs().max() < 1e-5
    replayed = policy.read(off_policy_samples_of(rollout, stored=True), seed=0, plan=Plan(values=(ENTROPY,)))
    assert ENTROPY not in replayed.values  # those of the weights that drew are not known


def test_the_warm_up_is_the_mean_of_read_rows() -> None:
    policy = measured_policy_of("llama", temperature=1.0)
    examples = [Example(prompt, text) for prompt, text in zip(prompts_of("llama"), ("one", "two red"), strict=True)]
    read = policy.read(
        [OffPolicySample(sample=Sample(e.prompt, n, 0, text=e.text)) for n, e in enumerate(examples)], seed=0
    )
    loss = policy.supervised_loss(examples, seeds=[0, 1])
    assert loss.num_terms == int(read.mask_BT.sum())
    assert float(loss.mean.detach()) == pytest.approx(-float(read.old_logprob_BT.sum()) / loss.num_terms, rel=1e-6)


def test_samples_that_cannot_be_rows_raise() -> None:
    policy = measured_policy_of("llama")
    prompt = Prompt("what")
    with pytest.raises(DataError, match="is no text: a language policy cannot score it"):
        policy.read([OffPolicySample(sample=Sample(prompt, 0, 0))], seed=0)
    with pytest.raises(DataError, match="has 2 tokens and 3 log-probabilities"):
        policy.read(
            [OffPolicySample(sample=Sample(prompt, 0, 0, tokens=[20, 21]), old_logprob_T=torch.zeros(3))], seed=0
        )
    with pytest.raises(DataError, match="has 0 tokens and none"):
        policy.read([OffPolicySample(sample=Sample(prompt, 0, 0, text="", finished=False))], seed=0)


def test_an_answer_with_a_token_that_is_never_sampled_names_row_and_token() -> None:
    policy = measured_policy_of("llama")
    sample = policy.rollout(prompts_of("llama"), group_size=1, seed=SEED).samples[1]
    assert sample.tokens is not None
    token = sample.tokens[2]
    never = measured_policy_of("llama", suppress=(token,))
    with pytest.raises(DataError, match=rf"group 1, member 0.* the token {token} \(.*at position 2.*policy.suppress"):
        never.read([OffPolicySample(sample=sample)], seed=0)
    forced = never.read(
        [OffPolicySample(sample=sample, num_forced=3)], seed=0
    )  # what is not a decision may be any token
    assert int(forced.mask_BT.sum()) == len(sample.tokens) - 3
