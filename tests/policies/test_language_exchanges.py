"""Conversations with an environment: turns of the policy are trained, text between them is not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, final

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo.environment import Environment, Turn
from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import OffPolicySample, Plan, Prompt, Rollout
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import picture, policy_of, prompts_of

SEED = 3
LENGTH = 40


@final
class Silent(Environment):
    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        return Turn(text="never told", done=True, reward=2.0)


@final
@dataclass
class Asking(Environment):
    """Says something after each turn, ``turns - 1`` times."""

    turns: int = 3
    reply: str = "two red"
    images: tuple[Any, ...] = ()
    answers: list[str] = field(default_factory=list)

    def reset(self, prompt: Prompt) -> Turn:
        return Turn()

    def step(self, text: str) -> Turn:
        self.answers.append(text)
        return Turn(
            text=self.reply, images=self.images, reward=float(len(self.answers)), done=len(self.answers) == self.turns
        )


@final
class Opening(Environment):
    """Says something at first."""

    def __init__(self, turn: Turn) -> None:
        self.turn = turn

    def reset(self, prompt: Prompt) -> Turn:
        return self.turn

    def step(self, text: str) -> Turn:
        return Turn()


def terse(name: str, make: Callable[..., LanguagePolicy] = policy_of, **settings: Any) -> LanguagePolicy:
    """A policy of few words, so that its turns are short."""
    bare = make(name)
    allowed_tokens = {*range(60, 70), *bare._end_ids.tolist()}
    vocabulary = bare.model.config.get_text_config().vocab_size
    suppress = tuple(token for token in range(vocabulary) if token not in allowed_tokens)
    return make(name, **{"max_new_tokens": LENGTH, "suppress": suppress, "temperature": 8.0, **settings})


def exchange(policy: LanguagePolicy, name: str, make: Callable[[], Environment], **plan: Any) -> Rollout:
    plan = {"environment": make, **plan}
    return policy.rollout(prompts_of(name), group_size=4, seed=SEED, plan=Plan(**plan))


@torch.no_grad()
def logprobs_at_once(policy: LanguagePolicy, rollout: Rollout) -> Tensor:
    """Log-probabilities of the model itself, called on each row's complete text."""
    return torch.stack([plain_row(policy, rollout, row) for row in range(len(rollout.samples))])


def plain_row(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    encoded, token_T = policy._encoder(rollout.samples[row].prompt), torch.tensor(rollout.samples[row].tokens)
    token_ids = encoded.with_tokens(token_T, policy.path.fill)
    inputs = {"input_ids": token_ids.ids_P[None], **token_ids.per_token, **token_ids.media}
    logits_TV = policy.model(**inputs).logits[0, encoded.length - 1 : -1] / policy.settings.temperature
    logits_TV = logits_TV.index_fill(-1, policy._sampling.suppressed, -torch.inf)
    logprob_T = logits_TV.log_softmax(-1)[torch.arange(len(token_T)), token_T]
    mask_T = rollout.mask_BT[row]
    padded_T = torch.nn.functional.pad(logprob_T, (0, len(mask_T) - len(token_T)))
    return padded_T.where(mask_T, 0.0)


@pytest.mark.each_value
@pytest.mark.parametrize("plan", [{}, {"stochastic": ()}], ids=["drawn", "greedy"])
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_a_silent_environment_equals_single_turns(name: str, plan: dict[str, Any]) -> None:
    policy = terse(name)
    plain = policy.rollout(prompts_of(name), group_size=4, seed=SEED, plan=Plan(**plan))
    silent = exchange(policy, name, Silent, **plan)
    for same in ("old_logprob_BT", "mask_BT", "state_BT", "segment_BT", "prompt_index_B"):
        assert torch.equal(getattr(silent, same), getattr(plain, same))
    assert [sample.tokens for sample in silent.samples] == [sample.tokens for sample in plain.samples]
    assert [sample.finished for sample in silent.samples] == [sample.finished for sample in plain.samples]
    for ours, theirs in zip(gradients(policy, silent), gradients(policy, plain), strict=True):
        assert torch.equal(ours, theirs)
    for sample in silent.samples:
        assert list(sample.turn_ends) == [len(sample.tokens or ())]
        assert list(sample.turn_rewards) == [2.0 if sample.finished else None]


def test_environment_reads_a_forced_beginning_of_the_first_turn() -> None:
    policy = terse("llama")
    made: list[Asking] = []

    def make() -> Environment:
        made.append(Asking(turns=2))
        return made[-1]

    prompts = [replace(prompt, prefix="three") for prompt in prompts_of("llama")]
    rollout = policy.rollout(prompts, group_size=2, seed=SEED, plan=Plan(environment=make))
    two_turns = [sample.turn_texts for sample in rollout.samples if sample.finished]
    assert two_turns
    assert sorted(environment.answers for environment in made if len(environment.answers) == 2) == sorted(
        [f"three{first}", second] for first, second in two_turns
    )


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("settings", [{}, {"share_prefix": False}, {"top_k": 6}], ids=["shared", "whole", "top_k"])
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_environment_texts_are_forced_and_turns_are_trained(name: str, settings: dict[str, Any]) -> None:
    policy = terse(name, **settings)
    made: list[Asking] = []

    def make() -> Environment:
        made.append(Asking())
        return made[-1]

    handed: list[Any] = []
    rollout = exchange(policy, name, make, on_samples=handed.extend)
    assert sorted(map(id, handed)) == sorted(map(id, rollout.samples))
    encoded = policy._encoder.encode_reply(Turn(text="two red"), prompt=Prompt("?"), end_ids=policy._end_ids.tolist())
    token_ids = encoded.token_T.tolist()
    ends = set(policy._end_ids.tolist())
    most = max(len(sample.turn_ends) for sample in rollout.samples)
    assert most == 3  # and rows that were cut off before
    expected_answers: list[list[str]] = []
    for row, sample in enumerate(rollout.samples):
        tokens, spans = list(sample.tokens or ()), list(zip(sample.turn_starts, sample.turn_ends, strict=True))
        expected_T = torch.zeros(rollout.shape[1], dtype=torch.bool)
        for number, (start, end) in enumerate(spans):
            expected_T[start:end] = True
            assert tokens[end - 1] in ends or end == LENGTH
            assert set(rollout.segment_BT[row, start:end].tolist()) == {number}
            if number:
                assert tokens[spans[number - 1][1] : start] == token_ids
        assert torch.equal(rollout.mask_BT[row], expected_T)
        expected_answers.append(
            [
                policy._tokenizer.decode(tokens[start:end], skip_special_tokens=True)
                for start, end in spans
                if tokens[end - 1] in ends
            ]
        )
        assert list(sample.turn_rewards) == [
            n + 1.0 if tokens[end - 1] in ends else None for n, (_, end) in enumerate(spans)
        ]
        assert list(sample.turn_keys) == ["", "two red", "two red"][: len(spans)]
        assert sample.finished == (len(expected_answers[-1]) == 3)
    assert sorted(environment.answers for environment in made) == sorted(expected_answers)  # constructed in any order
    if "top_k" not in settings:
        expected_BT = logprobs_at_once(policy, rollout)
        assert largest_difference(rollout.old_logprob_BT, expected_BT, rollout.mask_BT) < 3e-6
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 3e-6


def test_environment_texts_have_no_gradient() -> None:
    policy = terse("llama")
    rollout = exchange(policy, "llama", Asking)
    assert any(len(sample.turn_ends) > 1 for sample in rollout.samples)
    move(policy.trainable)
    result = gradients(policy, rollout)
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as gradients() weighs
    total = sum((weight_BT[row] * plain_row(policy, rollout, row)).sum() for row in range(len(rollout.samples)))
    assert isinstance(total, Tensor)
    expected = torch.autograd.grad(total, policy.trainable)
    assert relative_difference(result, expected) < 1e-5


def test_states_have_the_key_or_the_text_of_the_environment() -> None:
    named, pictured = Turn(text="go on", key="cell 3"), Turn(text="go on", images=[picture()])
    assert (named.state, Turn(text="go on").state, Turn().state, pictured.state) == ("cell 3", "go on", "", None)
    rollout = exchange(terse("llama"), "llama", lambda: Opening(named))
    assert {tuple(sample.turn_keys) for sample in rollout.samples} == {("cell 3",)}
    plain = terse("llama").rollout(prompts_of("llama"), group_size=2, seed=SEED)
    assert not any(sample.turn_keys for sample in plain.samples)


def test_samples_of_a_conversation_are_rescored_exactly() -> None:
    policy = terse("llama")
    rollout = exchange(policy, "llama", Asking)
    read = policy.read([OffPolicySample(sample=sample) for sample in rollout.samples], seed=0)
    for ours, theirs in zip(read.samples, rollout.samples, strict=True):
        for turns in ("turn_starts", "turn_ends", "turn_texts", "turn_rewards", "turn_keys"):
            assert getattr(ours, turns) == getattr(theirs, turns)
    for same in ("mask_BT", "segment_BT", "state_BT"):
        assert torch.equal(getattr(read, same), getattr(rollout, same))
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < 3e-6


def test_an_exchange_ends_after_its_turns() -> None:
    policy = terse("llama")
    rollout = exchange(policy, "llama", lambda: Asking(turns=9), max_turns=2)
    assert max(len(sample.turn_ends) for sample in rollout.samples) == 2
    assert not any(sample.finished for sample in rollout.samples)
    once = exchange(policy, "llama", lambda: Asking(reply=""))  # nothing said ends it
    assert {len(sample.turn_ends) for sample in once.samples} == {1}
    assert any(sample.finished for sample in once.samples)


@pytest.mark.nightly
def test_a_row_keeps_its_numbers_over_its_turns() -> None:
    single, together = terse("llama", batch=1), terse("llama", batch=64)
    rows = [exchange(policy, "llama", Asking) for policy in (single, together)]
    assert [sample.tokens for sample in rows[0].samples] == [sample.tokens for sample in rows[1].samples]


@pytest.mark.nightly
def test_the_first_text_of_the_environment_follows_the_prompt() -> None:
    policy = terse("qwen2.5-vl")
    rollout = exchange(policy, "qwen2.5-vl", lambda: Opening(Turn(text="how many", images=[picture(seed=5)])))
    first = prompts_of("qwen2.5-vl")[0]
    extended = Prompt(f"{first.text}\nhow many", images=[*first.images, picture(seed=5)])
    assert rollout.samples[0].prompt.text == first.text  # the rewards know what was asked
    encoded = rollout.trace.prompts[rollout.trace.prompt_of_B[0]]
    assert torch.equal(encoded.ids_P, policy._encoder(extended).ids_P)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 3e-6
    text = exchange(terse("llama"), "llama", lambda: Opening(Turn(text="how many")))
    assert text.trace.prompt_of_B == [0] * 4 + [1] * 4  # members with the same opening share an encoded prompt
    turns = [{"role": "user", "content": "what"}, {"role": "assistant", "content": "one"}]
    prompt = Prompt("what", messages=turns)
    plan = Plan(environment=lambda: Opening(Turn(text="how many")))
    rollout = policy.rollout([prompt], group_size=2, seed=SEED, plan=plan)
    conversation = Prompt("what", messages=[*turns, {"role": "user", "content": "how many"}])
    assert torch.equal(rollout.trace.prompts[0].ids_P, policy._encoder(conversation).ids_P)


def test_unsupported_conversations_raise() -> None:
    with pytest.raises(ConfigError, match=r"turns are the segments of a conversation: remove policy\.segment_end"):
        exchange(terse("llama", segment_end="e"), "llama", Silent)
    with pytest.raises(DataError, match="reads text only"):
        exchange(terse("llama"), "llama", lambda: Asking(images=(picture(),)))
    with pytest.raises(PolicyError, match="it cannot continue after an answer"):
        t5().rollout([Prompt("what")], group_size=1, seed=SEED, plan=Plan(environment=Silent))
