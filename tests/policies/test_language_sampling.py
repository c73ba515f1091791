"""The samples of a language policy: compared with generate, by hand, and with suppressed tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.sampling import SamplingDistribution, Support, entropy, sample_tokens, token_logprobs
from mmgrpo.policies.temperature_schedule import TemperatureSchedule
from torch import Tensor
from torch._dynamo.utils import counters

from mmgrpo.algorithm import schedules_of
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError
from mmgrpo.memory import Memory
from mmgrpo.types import Plan, Prompt, Rollout
from tests.policies.contract import largest_difference, move, values
from tests.policies.families import daily, families
from tests.policies.tiny_language import TEMPERATURE, measured_policy_of, policy_of, prompts_of
from tests.tiny.language_models import TINY, make

GREEDY = Plan(stochastic=())
FAMILIES = ("llama", "gemma2", "mistral", "qwen2.5-vl", "idefics3", "gemma3")
SEED = 3


@torch.no_grad()
def plain_logprobs(policy: LanguagePolicy, rollout: Rollout, row: int) -> Tensor:
    """Logits of the model itself for a row's tokens, (T, V)."""
    token_T, encoded = rollout.trace.completions[row].token_T, rollout.trace.prompts[rollout.trace.prompt_of_B[row]]
    ids_1L = torch.cat([encoded.ids_P, token_T])[None]
    return policy.model(input_ids=ids_1L, use_cache=False).logits[0, encoded.length - 1 : -1]


def rollout_of(policy: LanguagePolicy, name: str, group_size: int = 3) -> Rollout:
    return policy.rollout(prompts_of(name), group_size=group_size, seed=SEED)


@pytest.mark.parametrize("name", families("language", TINY))
def test_greedy_completions_are_those_of_generate(name: str) -> None:
    policy = policy_of(name)
    prompts = prompts_of(name)
    written = policy.rollout(prompts, group_size=2, seed=SEED, plan=GREEDY)
    for number, prompt in enumerate(prompts):
        encoded = policy._encoder(prompt)
        inputs = {"input_ids": encoded.ids_P[None], **encoded.per_token, **encoded.media}
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        suppressed = policy._sampling.suppressed.tolist()
        model: Any = policy.model
        out: Any = model.generate(**inputs, max_new_tokens=7, do_sample=False, suppress_tokens=suppressed or None)
        theirs = out[0, encoded.length :].tolist()
        for sample in written.samples[2 * number : 2 * number + 2]:
            assert list(sample.tokens or ()) == theirs[: len(sample.tokens or ())]
            assert len(sample.tokens or ()) == len(theirs)
    assert not written.mask_BT.any()


@pytest.mark.parametrize(
    "truncation", [{"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.2}, {"top_k": 9, "top_p": 0.8, "min_p": 0.05}]
)
def test_truncated_sampling_is_scored_on_the_same_tokens(truncation: dict[str, Any]) -> None:
    policy = measured_policy_of("llama", **truncation)
    rollout = rollout_of(policy, "llama", group_size=6)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    limit = truncation.get("top_k", 10**6)
    for completion, sample in zip(rollout.trace.completions, rollout.samples, strict=True):
        assert completion.support is not None
        parts = completion.support.ids.split(completion.support.counts)
        assert all(token in part for token, part in zip(sample.tokens or (), parts, strict=True))
        assert all(1 <= len(part) <= limit for part in parts)
    move(policy.trainable, scale=0.3)  # a token may leave today's support; its score stays finite
    assert torch.isfinite(values(policy, rollout)).all()


def test_temperatures_of_later_tokens_by_hand() -> None:
    temperature_schedule = TemperatureSchedule(high=1.2, low=0.1, pace=500.0, after=10)
    # 2.2 - e^0.02 and 2.2 - e^0.5; e^(371 / 500) = 2.1001 is the first above 2.1
    expected = [1.0, 1.0, 1.1797987, 0.5512787, 0.1, 0.1]
    assert [temperature_schedule.factor(t) for t in (0, 9, 10, 250, 371, 10**6)] == pytest.approx(expected)


def test_scheduled_temperatures_apply_to_sampling_and_scoring() -> None:
    cold = {"high": 1e-4, "low": 1e-4, "after": 0}
    policy = measured_policy_of("llama", temperature_schedule=cold)
    rollout = rollout_of(policy, "llama")
    greedy = policy.rollout(prompts_of("llama"), group_size=3, seed=SEED, plan=GREEDY)
    assert [sample.tokens for sample in rollout.samples] == [sample.tokens for sample in greedy.samples]
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    logprob_TV = plain_logprobs(policy, rollout, 0).div(TEMPERATURE).log_softmax(-1)
    plain_T = logprob_TV.gather(1, torch.tensor(rollout.samples[0].tokens)[:, None])[:, 0]
    torch.testing.assert_close(rollout.old_logprob_BT[0][rollout.mask_BT[0]], plain_T, rtol=0, atol=1e-5)
    warm = policy.rollout(
        prompts_of("llama"), group_size=3, seed=SEED, plan=Plan(settings={"temperature_schedule": {"after": 99}})
    )
    plain = rollout_of(measured_policy_of("llama"), "llama")
    assert [sample.tokens for sample in warm.samples] == [sample.tokens for sample in plain.samples]


def test_exploratory_annealed_decoding_slows_down() -> None:
    """Of the shipped method: d = 20 min(25 + 5 s, 40,000) tokens at step s."""
    schedules = schedules_of(load_config("methods/ead", {"policy": None}))
    for step, pace in ((0, 500), (1, 600), (100, 10500), (9000, 800_000)):
        temperature_schedule = schedules.at(step, Memory()).sampling_settings["temperature_schedule"]
        assert temperature_schedule == {"pace": pytest.approx(pace)}


def test_supports_by_hand() -> None:
    logits_MV = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.05, 0.15, 0.3, 0.5]]).log()

    def support(**truncation: Any) -> list[list[bool]]:
        options = {"top_k": None, "top_p": None, "min_p": None, **truncation}
        sampling = SamplingDistribution(temperature=1.0, suppressed=torch.empty(0, dtype=torch.long), **options)  # pyrefly: ignore[bad-argument-type]
        return sampling.support(logits_MV).tolist()

    assert support(top_k=2) == [[True, True, False, False], [False, False, True, True]]
    assert support(top_p=0.5)[0] == [True, False, False, False]
    assert support(top_p=0.51)[0] == [True, True, False, False]
    assert support(top_p=1.0)[0] == [True] * 4
    assert support(min_p=0.3)[0] == [True, True, True, False]  # at least 0.15
    assert support(top_k=3, top_p=0.6)[1] == [False, False, True, True]  # 0.5 of the 0.95 kept is below 0.6
    assert support()[0] == [True] * 4


def test_scores_and_entropies_by_hand() -> None:
    probability_V = torch.tensor([0.5, 0.25, 0.125, 0.125])
    sampling = SamplingDistribution(temperature=2.0, top_k=None, top_p=None, min_p=None, suppressed=torch.tensor([3]))
    options: dict[str, Any] = {"chunk": 16, "extra_values": [lambda hidden_mD, logits_mV, token_m: entropy(logits_mV)]}
    hidden_MD, token_M = (2 * probability_V.log())[None], torch.tensor([1])
    logprob_M, (entropy_M,) = token_logprobs(hidden_MD, token_M, lambda x: x, sampling, **options)
    assert logprob_M.tolist() == pytest.approx([torch.tensor(0.25 / 0.875).log().item()])
    left_V = probability_V[:3] / 0.875
    assert entropy_M.tolist() == pytest.approx([-(left_V * left_V.log()).sum().item()], rel=1e-5)
    support = Support(torch.tensor([0, 1], dtype=torch.int32), (2,))
    logprob_M, _ = token_logprobs(hidden_MD, token_M, lambda x: x, sampling, support=support, **options)
    assert logprob_M.tolist() == pytest.approx([torch.tensor(1 / 3).log().item()])


def test_samples_follow_the_distribution() -> None:
    logits_V = torch.tensor([0.5, 0.0, 0.2, 0.3]).log()
    number = 20_000
    uniform_N = torch.rand(number, generator=torch.Generator().manual_seed(0))
    token_N = sample_tokens(logits_V.expand(number, -1), uniform_N)
    share_V = token_N.bincount(minlength=4) / number
    assert share_V[1] == 0
    assert (share_V - logits_V.exp()).abs().max() < 0.015  # four standard errors
    edges_N = sample_tokens(logits_V.expand(3, -1), torch.tensor([0.0, 0.4999, 1 - 2**-24]))
    assert edges_N.tolist() == [0, 0, 3]


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["qwen2.5-vl", "internvl", "gemma3", "idefics3"], "qwen2.5-vl"))
def test_image_tokens_are_never_sampled(name: str) -> None:
    policy = policy_of(name, temperature=1e4, max_new_tokens=48)
    tokenizer = policy._tokenizer
    special = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    pictures = {
        token for token in special if any(word in token.lower() for word in ("image", "img", "vision", "video"))
    }
    forbidden = {tokenizer.convert_tokens_to_ids(token) for token in pictures}
    assert len(forbidden) > 0
    rollout = rollout_of(policy, name, group_size=24)  # near uniform over a few hundred tokens
    written = {token for sample in rollout.samples for token in sample.tokens or ()}
    assert len(written) > 200
    assert not written & forbidden


@pytest.mark.nightly
def test_every_end_token_ends_a_completion() -> None:
    policy = measured_policy_of("llama", temperature=50.0, max_new_tokens=200)
    ends = set(policy._end_ids.tolist())
    assert len(ends) > 1
    rollout = rollout_of(policy, "llama", group_size=12)
    last = [list(sample.tokens or ())[-1] for sample in rollout.samples if sample.finished]
    assert set(last) == ends
    for sample, length in zip(rollout.samples, rollout.mask_BT.sum(1).tolist(), strict=True):
        tokens = list(sample.tokens or ())
        assert len(tokens) == length
        assert not set(tokens[:-1]) & ends
        assert sample.finished == (tokens[-1] in ends)
        assert sample.finished or length == 200


def test_groups_share_their_first_state_and_no_other() -> None:
    rollout = rollout_of(measured_policy_of("llama"), "llama")
    assert rollout.state_BT[:, 0].tolist() == [0, 0, 0, 1, 1, 1]
    later = rollout.state_BT[:, 1:]
    assert later.unique().numel() == later.numel()
    assert int(later.min()) > 1


def test_segments_end_at_the_configured_text() -> None:
    policy = measured_policy_of("llama", segment_end="e")
    rollout = rollout_of(policy, "llama")
    for row, sample in enumerate(rollout.samples):
        pieces = [policy._tokenizer.decode([token]) for token in sample.tokens or ()]
        expected = [sum("e" in piece for piece in pieces[:t]) for t in range(len(pieces))]
        assert rollout.segment_BT[row, : len(pieces)].tolist() == expected
    assert int(rollout.segment_BT.max()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2.5-vl"])
def test_a_compiled_decode_over_a_static_cache_writes_the_same(name: str) -> None:
    policy, compiled = policy_of(name), policy_of(name, compile=True)
    plain, fast = rollout_of(policy, name), rollout_of(compiled, name)
    assert [sample.tokens for sample in fast.samples] == [sample.tokens for sample in plain.samples]
    assert largest_difference(fast.old_logprob_BT, plain.old_logprob_BT, plain.mask_BT) < 2e-6


@pytest.mark.slow
def test_prompts_and_groups_of_other_sizes_share_compiled_code() -> None:
    policy, plain = policy_of("llama", compile=True), policy_of("llama")
    texts = ("what", "what number", "how many red squares do you see", "in the picture on the left", "red squares")
    torch.compiler.reset()
    counters.clear()
    for number, text in enumerate(texts * 2):
        rollout, expected = (
            each.rollout([Prompt(text)], group_size=2 + number % 4, seed=SEED) for each in (policy, plain)
        )
        assert [sample.tokens for sample in rollout.samples] == [sample.tokens for sample in expected.samples]
        assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    assert len({policy._encoder(Prompt(text)).length for text in texts}) == len(texts)
    assert counters["stats"]["unique_graphs"] <= 2


def test_a_cache_that_forgets_is_not_compiled() -> None:
    with pytest.raises(ConfigError, match=r"policy\.compile needs full attention in every layer"):
        policy_of("gemma3", compile=True)


@pytest.mark.nightly
def test_a_rescored_rollout_is_scored_by_the_update() -> None:
    model, processor = make("qwen2.5-vl")
    settings: dict[str, Any] = {"max_new_tokens": 7, "temperature": TEMPERATURE, "share_prefix": False}
    gaps = []
    for rescore in (False, True):
        policy = LanguagePolicy(copy.deepcopy(model).bfloat16(), processor, {**settings, "rescore": rescore})
        rollout = rollout_of(policy, "qwen2.5-vl")
        gaps.append(largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT))
    assert gaps[0] > 1e-4
    assert gaps[1] == 0.0


def test_a_sample_carries_its_mean_log_probability() -> None:
    rollout = rollout_of(measured_policy_of("llama"), "llama")
    mean_B = (rollout.old_logprob_BT * rollout.mask_BT).sum(1) / rollout.mask_BT.sum(1)
    assert [sample.logprob for sample in rollout.samples] == pytest.approx(mean_B.tolist())


def test_certainty_is_the_divergence_of_the_uniform_distribution() -> None:
    policy = measured_policy_of("llama")
    names = ("certainty", "entropy")
    rollout = policy.rollout(prompts_of("llama"), group_size=3, seed=SEED, plan=Plan(sample_values=names))
    sample = rollout.samples[0]
    logits_TV = plain_logprobs(policy, rollout, 0) / TEMPERATURE
    uniform_V = torch.full((logits_TV.shape[-1],), 1 / logits_TV.shape[-1])
    kl_T = (uniform_V * (uniform_V.log() - logits_TV.log_softmax(-1))).sum(-1)
    entropy_T = -(logits_TV.softmax(-1) * logits_TV.log_softmax(-1)).sum(-1)
    assert set(sample.values) == {"certainty", "entropy"}
    assert sample.values["certainty"] == pytest.approx(float(kl_T.mean()), rel=1e-4)
    assert sample.values["entropy"] == pytest.approx(float(entropy_T.mean()), rel=1e-4)


def test_requested_values_of_samples_are_stored() -> None:
    policy = measured_policy_of("llama")
    sample = rollout_of(policy, "llama").samples[0]
    assert sample.values == {}
    with pytest.raises(AttributeError, match=r'sample\.values\["certainty"\], with "certainty" in Plan\.sample_values'):
        _ = sample.certainty
    with pytest.raises(ConfigError, match="tokens have no sample value value: supported are certainty, entropy"):
        policy.rollout(prompts_of("llama"), group_size=1, seed=SEED, plan=Plan(sample_values=("value",)))
