"""Masked policies by hand: unmasking steps and their log-probabilities, images of the stock pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AmusedScheduler
from mmgrpo.policies.masked import MaskedPolicy
from mmgrpo.policies.masked.unmasking_schedule import COUNTS, unmasking_steps
from transformers import LlamaConfig, LlamaForCausalLM

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Sample
from mmgrpo.values import ENTROPY, of_view
from tests.policies.contract import move, values
from tests.policies.tiny_masked import TEXTS, parts_of, policy_of, prompts_of
from tests.tiny.masked_models import CODES, MASK, SIDE, save_with_code, tokenizer

SEED = 3


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("num_steps", [1, 3, 5, 16])
def test_image_unmasking_follows_the_stock_schedule(schedule: str, num_steps: int) -> None:
    scheduler: Any = AmusedScheduler(mask_token_id=9, masking_schedule=schedule)
    length = 16
    scheduler.set_timesteps(num_steps, temperature=(2, 0))
    sample_1L = torch.full((1, length), 9)
    generator, counts = torch.Generator().manual_seed(0), []
    for timestep in scheduler.timesteps:
        logits = torch.randn(1, length, 9, generator=generator)
        unmasked_1L = scheduler.step(logits, timestep, sample_1L, generator=generator).prev_sample
        counts.append(int((unmasked_1L != 9).sum() - (sample_1L != 9).sum()))
        sample_1L = unmasked_1L
    assert COUNTS[schedule](length, num_steps) == counts


def test_text_unmasking_is_even_within_blocks() -> None:
    # 10 places in 4 steps: 3 3 2 2, as LLaDA's get_num_transfer_tokens counts them
    assert COUNTS["even"](10, 4) == [3, 3, 2, 2]
    actual = unmasking_steps(12, num_steps=4, block_length=6, schedule="even", noise=(3.0, 0.0))
    assert [(step.start, step.stop, step.count, step.noise) for step in actual] == [
        (0, 6, 3, 3.0),
        (0, 6, 3, 2.0),
        (6, 12, 3, 1.0),
        (6, 12, 3, 0.0),
    ]
    with pytest.raises(ConfigError, match="2 blocks of 6 positions need the same number of steps each, from 1 to 6"):
        unmasking_steps(12, num_steps=5, block_length=6, schedule="even", noise=(0.0, 0.0))


def by_hand(policy: MaskedPolicy, prompt: Prompt, answer: Sequence[int | None], guidance: float) -> torch.Tensor:
    """Log-probabilities at every place of an answer whose places without a token are hidden, by plain calls."""
    model, words = policy.predictor.spec.modules["model"], tokenizer()
    turns = [{"role": "user", "content": prompt.text}]
    turn: Any = words.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    prompt_ids = words(turn, add_special_tokens=False)["input_ids"]
    mask = words.convert_tokens_to_ids(MASK)
    tokens = [mask if token is None else token for token in answer]
    actual = []
    for before in (prompt_ids, [mask] * len(prompt_ids)):
        logits = model(input_ids=torch.tensor([[*before, *tokens]])).logits[0, len(prompt_ids) :].double()
        actual.append(logits)
    logits = actual[1] + guidance * (actual[0] - actual[1])
    logits[:, mask] = -torch.inf
    return (logits / policy.settings.temperature).log_softmax(-1)


@torch.no_grad()
@pytest.mark.parametrize(
    "settings",
    [
        {"num_steps": 3, "temperature": 1.3},
        {"num_steps": 4, "block_length": 3, "order": "random", "guidance_scale": 1.7},
        {"num_steps": 6, "order": "left_to_right"},
        {"num_steps": 2, "order_noise": [4.0, 1.0]},
    ],
    ids=["confidence", "blocks", "left_to_right", "noise"],
)
def test_a_decision_is_the_token_log_probability_in_its_state(settings: dict[str, Any]) -> None:
    policy = policy_of("eurobert", **settings)
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(values=(ENTROPY,)))
    counts = COUNTS["even"](3, 2) * 2 if "block_length" in settings else COUNTS["even"](6, settings["num_steps"])
    orders = torch.cat([look.position_Bn for look in rollout.trace.passes], dim=1)
    assert rollout.segment_BT[0].tolist() == [step for step, count in enumerate(counts) for _ in range(count)]
    for row, sample in enumerate(rollout.samples):
        assert sample.tokens is not None
        answer: list[int | None] = [None] * 6
        column = 0
        for count in counts:
            logprob = by_hand(policy, sample.prompt, answer, settings.get("guidance_scale", 1.0))
            positions = orders[row, column : column + count].tolist()
            for position in positions:
                expected = float(logprob[position, sample.tokens[position]])
                assert float(rollout.old_logprob_BT[row, column]) == pytest.approx(expected, rel=1e-4, abs=2e-5)
                entropy = float(-(logprob[position].exp() * logprob[position].clamp(min=-1e9)).sum())
                assert float(rollout.values[ENTROPY][row, column]) == pytest.approx(entropy, rel=1e-4)
                column += 1
            for position in positions:
                answer[position] = sample.tokens[position]
        assert None not in answer
        if settings.get("order") == "left_to_right":
            assert orders[row].tolist() == list(range(6))
        if "block_length" in settings:
            assert sorted(orders[row, :3].tolist()) == [0, 1, 2]


@torch.no_grad()
def test_without_noise_the_most_confident_tokens_are_unmasked_first() -> None:
    policy = policy_of("eurobert", num_steps=3)
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(stochastic=()))
    assert not rollout.mask_BT.any()
    for first, second in ((0, 1), (2, 3)):
        assert rollout.samples[first].tokens == rollout.samples[second].tokens
    sample = rollout.samples[0]
    assert sample.tokens is not None
    best = by_hand(policy, sample.prompt, [None] * 6, 1.0).max(-1)
    positions = rollout.trace.passes[0].position_Bn[0].tolist()
    assert positions == sorted(best.values.topk(2).indices.tolist())
    assert [sample.tokens[position] for position in positions] == best.indices[positions].tolist()


@pytest.mark.nightly
@torch.no_grad()
def test_frequencies_match_the_log_probabilities() -> None:
    policy = policy_of("amused", num_steps=1)  # all places at once: the product of their probabilities
    num = 1500
    rollout = policy.rollout([Prompt(TEXTS[0])], group_size=num, seed=SEED)
    token_B = torch.tensor([next(iter(sample.tokens or ())) for sample in rollout.samples])
    probability = torch.zeros(CODES)
    for code in range(CODES):
        rows = (token_B == code).nonzero().flatten()
        column = int((rollout.trace.passes[0].position_Bn[0] == 0).nonzero())
        if len(rows):
            probability[code] = rollout.old_logprob_BT[rows[0], column].exp()
    counted = torch.bincount(token_B, minlength=CODES) / num
    spread = (probability * (1 - probability) / num).sqrt()
    assert ((counted - probability).abs() < 4 * spread + 1e-3).all()
    assert float(probability.sum()) == pytest.approx(1, abs=0.01)


@torch.no_grad()
@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_deterministic_images_equal_the_stock_pipeline(guidance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's draw is made the likeliest, since the stock pipeline has no way to ask for it."""
    call = {"micro_conditioning_aesthetic_score": 5, "micro_conditioning_crop_coord": (1, 2)}
    policy = policy_of("amused", guidance_scale=guidance, pipeline=call, order_noise=(0.0, 0.0))
    ours = policy.rollout(prompts_of(), group_size=1, seed=SEED, plan=Plan(stochastic=())).samples
    monkeypatch.setattr(torch, "multinomial", lambda p, num, generator=None: p.argmax(-1, keepdim=True))
    (pipeline,) = parts_of("amused")
    theirs = pipeline(list(TEXTS), num_inference_steps=5, guidance_scale=guidance, temperature=(0, 0), **call).images
    for actual, other in zip(ours, theirs, strict=True):
        assert np.array_equal(np.asarray(actual.image), np.asarray(other))
        assert len(set(actual.tokens or ())) > 1


def test_unmasking_steps_are_decisions_and_support_windows() -> None:
    tokens = policy_of("amused")
    policy = policy_of("amused", decision="reveal", reduction="sum")
    mean = policy_of("amused", decision="reveal", reduction="mean")
    apart, rollout, means = (policy.rollout(prompts_of(), group_size=2, seed=SEED) for policy in (tokens, policy, mean))
    assert rollout.shape == (4, 5)
    assert policy.num_decisions == 5
    sizes = [len(columns) for columns in apart.trace.columns]
    parts = apart.old_logprob_BT.split(sizes, dim=1)
    assert torch.equal(rollout.old_logprob_BT, torch.stack([part.sum(1) for part in parts], dim=1))
    assert torch.equal(means.old_logprob_BT, torch.stack([part.mean(1) for part in parts], dim=1))
    windowed = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(stochastic=(2, 3)))
    assert windowed.mask_BT.tolist() == [[False, False, True, True, False]] * 4
    state_BT = windowed.state_BT
    assert torch.equal(state_BT[0, :3], state_BT[1, :3])  # what is shown before the window is the group's
    assert state_BT[0, 4] != state_BT[1, 4]
    with pytest.raises(ConfigError, match=r"set policy\.decision: reveal"):
        tokens.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(stochastic=(2, 3)))
    with pytest.raises(ConfigError, match=r"set policy\.decision: reveal"):
        _ = tokens.num_decisions


def test_members_share_only_the_first_state() -> None:
    rollout = policy_of("eurobert", num_steps=3).rollout(prompts_of(), group_size=2, seed=SEED)
    first = [rollout.state_BT[row, 0].item() for row in range(4)]
    assert first[0] == first[1] != first[2] == first[3]
    assert len(rollout.state_BT[:, -1].unique()) == 4


def test_an_evaluation_can_sample() -> None:
    policy = policy_of("amused", evaluation_temperature=1.0)
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(stochastic=()))
    assert not rollout.mask_BT.any()
    assert rollout.samples[0].tokens != rollout.samples[1].tokens
    trained = policy_of("amused").rollout(prompts_of(), group_size=2, seed=SEED)
    assert [sample.tokens for sample in rollout.samples] == [sample.tokens for sample in trained.samples]


def test_rollout_settings_are_stored_in_its_trace() -> None:
    policy = policy_of("eurobert", num_steps=3)
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(settings={"temperature": 3.0}))
    result = policy_of("eurobert", num_steps=3, temperature=3.0).rollout(prompts_of(), group_size=2, seed=SEED)
    assert torch.equal(rollout.old_logprob_BT, result.old_logprob_BT)
    assert torch.allclose(values(policy, rollout), rollout.old_logprob_BT, atol=1e-6)
    with pytest.raises(ConfigError, match="no setting 'length'; it takes temperature"):
        policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(settings={"length": 3}))


@torch.no_grad()
def test_the_same_decisions_under_another_prompt() -> None:
    policy = policy_of("eurobert", num_steps=3)
    first, second = prompts_of()
    rollout = policy.rollout([first], group_size=2, seed=SEED)
    overridden = policy.override_prompts(rollout, [second, first])
    result_BT = values(policy, overridden)
    assert torch.allclose(result_BT[1], rollout.old_logprob_BT[1], atol=1e-6)
    sample, look = rollout.samples[0], rollout.trace.passes[0]
    assert sample.tokens is not None
    logprob = by_hand(policy, second, [None] * 6, 1.0)
    expected = [logprob[position, sample.tokens[position]].item() for position in look.position_Bn[0].tolist()]
    assert result_BT[0, :2].tolist() == pytest.approx(expected, rel=1e-4)


def test_stored_weights_are_views() -> None:
    policy = policy_of("eurobert", num_steps=3, lora={"rank": 2, "alpha": 2.0})
    rollout = policy.rollout(prompts_of(), group_size=2, seed=SEED)
    move(policy.trainable)
    (part, *_) = policy.evaluate(rollout, values=(of_view("reference"),))
    assert part.rows is not None
    old_NT = rollout.old_logprob_BT[part.rows][:, list(part.columns)]
    assert torch.allclose(part.values[of_view("reference")], old_NT, atol=1e-6)
    with pytest.raises(ConfigError, match="tokens have no value logprob@teacher"):
        next(iter(policy.evaluate(rollout, values=(of_view("teacher"),))))


def test_a_text_ends_at_its_first_end_token() -> None:
    policy, words = policy_of("eurobert"), tokenizer()
    red, end = words("red", add_special_tokens=False)["input_ids"], words.eos_token_id
    example = Example(Prompt("what colour"), text="red")
    assert policy.predictor.target(example).tolist() == [*red, *[end] * (6 - len(red))]
    token_NL = torch.tensor([[*red, end, *red, *[end] * 6][:6], (red * 6)[:6]])
    bare = [Sample(example.prompt, 0, member) for member in range(2)]
    first, second = policy.predictor.samples(bare, token_NL)
    assert (first.text, first.finished) == ("red", True)
    assert (second.text, second.finished) == ("red" * (6 // len(red)), False)
    with pytest.raises(DataError, match="increase policy"):
        policy.predictor.target(replace(example, text="red " * 9))


def test_supervised_loss_trains_masked_tokens() -> None:
    policy = policy_of("amused", suppress=())
    (pipeline,) = parts_of("amused")
    noise = torch.rand(3, 2 * SIDE, 2 * SIDE, generator=torch.Generator().manual_seed(1))
    image = pipeline.image_processor.postprocess(noise[None], output_type="pil")[0]
    example, seed = Example(Prompt(TEXTS[0]), image=image), 5
    actual = policy.supervised_loss([example], seeds=[seed])
    code_L = policy.predictor.target(example)
    with torch.no_grad():
        latent = pipeline.vqvae.encode(pipeline.image_processor.preprocess([image])).latents
        distance = torch.cdist(latent[0].flatten(1).T, pipeline.vqvae.quantize.embedding.weight)
    assert torch.equal(code_L, distance.argmin(1))
    generator = torch.Generator().manual_seed(seed)
    num = int(torch.randint(1, 17, (), generator=generator))
    hidden = torch.randperm(16, generator=generator)[:num]
    masked = code_L.scatter(0, hidden, CODES).reshape(1, SIDE, SIDE)
    condition = policy.predictor.condition(example.prompt).inputs
    micro = torch.tensor([[8.0, 8.0, 0.0, 0.0, 6.0]])
    logits = pipeline.transformer(masked, condition["states"], condition["pooled"], micro)[0].flatten(1).T
    expected = -logits.log_softmax(-1)[hidden, code_L[hidden]].mean()
    assert actual.mean.item() == pytest.approx(expected.item(), rel=1e-5)
    assert actual.num_terms == 1


@pytest.mark.nightly
def test_folders_and_functions_are_loaded(tmp_path: Path) -> None:
    """Of transformers, of diffusers, and with remote code, to the same tokens as the live model."""
    plan, settings = Plan(stochastic=()), {"length": 6, "num_steps": 2}
    model, words = parts_of("eurobert")
    expected = MaskedPolicy(model, words, settings=settings).rollout(prompts_of(), group_size=1, seed=SEED, plan=plan)
    folders = {"plain": {}, "own": {"trust_remote_code": True}}
    model.save_pretrained(tmp_path / "plain")
    words.save_pretrained(tmp_path / "plain")
    save_with_code(tmp_path / "own")
    for name, more in folders.items():
        loaded = MaskedPolicy.from_config({"model": str(tmp_path / name), **settings, **more})
        actual = loaded.rollout(prompts_of(), group_size=1, seed=SEED, plan=plan)
        assert [sample.tokens for sample in actual.samples] == [sample.tokens for sample in expected.samples]
    (pipeline,) = parts_of("amused")
    pipeline.save_pretrained(tmp_path / "amused")
    sampled = MaskedPolicy.from_config({"model": str(tmp_path / "amused"), "num_steps": 5})
    ours = policy_of("amused").rollout(prompts_of(), group_size=1, seed=SEED).samples
    theirs = sampled.rollout(prompts_of(), group_size=1, seed=SEED).samples
    assert [sample.tokens for sample in ours] == [sample.tokens for sample in theirs]
    built = MaskedPolicy.from_config(
        {"model": "python:tests.tiny.masked_models:eurobert", "dtype": "bfloat16", "length": 4}
    )
    assert built.predictor.spec.modules["model"].dtype == torch.float32  # trained in full, over bfloat16 arithmetic
    rollout = built.rollout(prompts_of(), group_size=2, seed=SEED)
    assert torch.allclose(values(built, rollout), rollout.old_logprob_BT, atol=0.05)
    with pytest.raises(ConfigError, match="cannot be loaded as a masked model"):
        MaskedPolicy.from_config({"model": str(tmp_path / "nothing")})


def test_invalid_settings_and_inputs_raise() -> None:
    words = tokenizer()
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    with pytest.raises(ConfigError, match="LlamaForCausalLM is causal"):
        MaskedPolicy(LlamaForCausalLM(config), words)
    model, _ = parts_of("bert")
    del model.config.mask_token_id
    words.mask_token = None
    with pytest.raises(ConfigError, match=r"set policy\.mask_token to its id"):
        MaskedPolicy(model, words)
    policy = policy_of("eurobert")
    with pytest.raises(PolicyError, match=r"remove rollout\.tree and rollout\.same_initial_noise"):
        policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(same_initial_noise=True))
    with pytest.raises(DataError, match="remove them"):
        policy.rollout([Prompt("x", prefix="y")], group_size=2, seed=SEED)
    with pytest.raises(DataError, match="has images, videos, audios or a prefix"):
        policy.rollout([Prompt("x", audios=["a.wav"])], group_size=2, seed=SEED)
    with pytest.raises(DataError, match="an answer has 6 tokens; got a sample with 2"):
        policy.read([OffPolicySample(sample=Sample(Prompt("x"), 0, 0, tokens=[1, 2]))], seed=SEED)
    with pytest.raises(ConfigError, match=r"set policy\.codes\.decoder"):
        MaskedPolicy(*parts_of("eurobert"), settings={"codes": {"offset": 1, "number": 2, "height": 1, "width": 1}})
