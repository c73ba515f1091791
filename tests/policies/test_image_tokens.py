"""Pictures out of tokens against plain forwards by hand and against the models' own ``generate``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.image_tokens import ImageTokensPolicy
from PIL import Image
from torch import Tensor

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import Example, OffPolicySample, Plan, Prompt, Rollout, Sample, Source
from mmgrpo.values import ENTROPY, LOGPROB_MEAN, PEERS, RANK, from_reference, of_view
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.tiny_image_tokens import DRAWING, policy_of, prompts_of
from tests.tiny.image_tokens import FAMILIES, GRID, NUM_CODES

SEED = 3
SCALE, TEMPERATURE = DRAWING["guidance_scale"], DRAWING["temperature"]
every_family = pytest.mark.parametrize("name", FAMILIES)


def rollout_of(policy: ImageTokensPolicy, **plan: Any) -> Rollout:
    return policy.rollout(prompts_of(), group_size=2, seed=SEED, plan=Plan(**plan))


def unguided_by_hand(name: str, policy: ImageTokensPolicy, ids_P: Tensor, codes: list[int]) -> Tensor:
    """Logits of all codes of an image after some tokens, (T, K), as each family's own code has them."""
    model: Any = policy.model
    if name == "janus":
        text_1PD = model.get_input_embeddings()(ids_P[None])
        code_1TD = model.prepare_embeddings_for_image_generation(torch.tensor([codes]))
        hidden = model.model.language_model(inputs_embeds=torch.cat([text_1PD, code_1TD], 1)).last_hidden_state
        return model.model.generation_head(hidden)[0, len(ids_P) - 1 : -1]
    vocabulary: dict[str, int] = {} if name == "llamagen" else model.config.vocabulary_map
    if name == "llamagen":
        ids = list(range(len(policy.processor), len(policy.processor) + NUM_CODES))
    elif name == "emu3":
        ids = [vocabulary[f"<|visual token {code:06d}|>"] for code in range(NUM_CODES)]
    else:
        letters = "".join(map(chr, range(ord("A"), ord("K"))))
        ids = [vocabulary[f"IMGIMG{''.join(letters[int(n)] for n in str(code))}Z"] for code in range(NUM_CODES)]
    width = GRID[1] if name == "emu3" else len(codes)
    lines = [codes[start : start + width] for start in range(0, len(codes), width)]
    end = [vocabulary["<|extra_200|>"]] if name == "emu3" else []
    read = [token for line in lines for token in [ids[code] for code in line] + end]
    hidden = model.model(input_ids=torch.cat([ids_P, torch.tensor(read)])[None]).last_hidden_state[0]
    logits = model.lm_head(hidden)[len(ids_P) - 1 :, torch.tensor(ids)]
    step = width + len(end)
    return torch.cat([logits[line * step : line * step + width] for line in range(len(lines))])


def by_hand(name: str, policy: ImageTokensPolicy, rollout: Rollout, row: int) -> Tensor:
    """Log-probabilities of all codes, (T, K), with guidance and temperature."""
    prompt, codes = rollout.trace.prompts[row], list(rollout.samples[row].tokens or ())
    conditional, blank = (unguided_by_hand(name, policy, ids_P, codes) for ids_P in (prompt.token_P, prompt.blank_P))
    return ((blank + SCALE * (conditional - blank)) / TEMPERATURE).log_softmax(-1)


@pytest.mark.first_case
@every_family
def test_log_probabilities_of_codes_equal_a_plain_forward(name: str) -> None:
    policy = policy_of(name)
    rollout = rollout_of(policy, values=(ENTROPY,))
    requested = (ENTROPY, LOGPROB_MEAN, RANK)
    result = {value: torch.zeros(rollout.shape) for value in requested}
    with torch.no_grad():
        for part in policy.evaluate(rollout, values=requested):
            for value in requested:
                result[value][part.rows] = part.values[value]
    for row, sample in enumerate(rollout.samples):
        logprob_TK = by_hand(name, policy, rollout, row).detach()
        taken_T = logprob_TK.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
        entropy_T = -(logprob_TK.exp() * logprob_TK).sum(1)
        torch.testing.assert_close(rollout.old_logprob_BT[row], taken_T, atol=3e-5, rtol=1e-5)
        torch.testing.assert_close(rollout.values[ENTROPY][row], entropy_T, atol=3e-5, rtol=1e-5)
        torch.testing.assert_close(result[ENTROPY][row], entropy_T, atol=3e-5, rtol=1e-5)
        torch.testing.assert_close(result[LOGPROB_MEAN][row], logprob_TK.mean(1), atol=3e-5, rtol=1e-5)
        assert result[RANK][row].tolist() == (logprob_TK > taken_T[:, None]).sum(1).tolist()
        assert sample.logprob == pytest.approx(float(taken_T.mean()), abs=1e-5)
    assert rollout.num_forwards == 2 * len(rollout.samples)


def test_janus_samples_greedily_like_its_generate() -> None:
    policy = policy_of("janus", guidance_scale=None)  # 5, as its generation config has it
    model: Any = policy.model
    rollout = rollout_of(policy, stochastic=())
    for row, prompt in zip((0, 2), prompts_of(), strict=True):
        inputs = policy.processor(text=prompt.text, generation_mode="image", return_tensors="pt")
        codes_1T = model.generate(**inputs, generation_mode="image", do_sample=False)
        assert rollout.samples[row].tokens == rollout.samples[row + 1].tokens == codes_1T[0].tolist()
        decoded = model.decode_image_tokens(codes_1T)
        pixels = policy.processor.postprocess(list(decoded.float()), return_tensors="pt")["pixel_values"][0]
        assert _levels(rollout.samples[row].image) == pytest.approx(pixels.movedim(0, -1).flatten().tolist(), abs=1)
    assert not rollout.mask_BT.any()


def test_emu3_samples_greedily_like_its_generate() -> None:
    policy = policy_of("emu3")
    model: Any = policy.model
    vocabulary, (height, width) = model.config.vocabulary_map, GRID
    codes = {vocabulary[f"<|visual token {code:06d}|>"]: code for code in range(NUM_CODES)}
    wrapper, end_of_line = vocabulary["<|image token|>"], vocabulary["<|extra_200|>"]
    rollout = rollout_of(policy, stochastic=())

    def allowed(batch: int, ids: Tensor) -> list[int]:
        place = len(ids) - int((ids == wrapper).nonzero()[0])
        return [end_of_line] if place % (width + 1) == 0 else list(codes)

    blank = policy.processor(text=[""], return_for_image_generation=True, return_tensors="pt").input_ids
    for row, prompt in zip((0, 2), prompts_of(), strict=True):
        inputs = policy.processor(text=[prompt.text], return_for_image_generation=True, return_tensors="pt")
        assert inputs.pop("image_sizes") == [list(GRID)]
        written = model.generate(
            **inputs, max_new_tokens=height * (width + 1), do_sample=False, prefix_allowed_tokens_fn=allowed,
            guidance_scale=SCALE, negative_prompt_ids=blank,
        )  # fmt: skip
        codes_of_generate = [
            codes[token] for token in written[0, inputs.input_ids.shape[1] :].tolist() if token in codes
        ]
        assert rollout.samples[row].tokens == codes_of_generate
        pixels = model.model.vqmodel.decode(torch.tensor(codes_of_generate).reshape(1, *GRID))
        image = policy.processor.postprocess([pixels[0].float().detach().movedim(0, -1)])["pixel_values"][0]
        assert _levels(rollout.samples[row].image) == pytest.approx(_levels(image), abs=1)


@every_family
def test_an_image_is_decoded_from_its_codes_and_encoded_back(name: str) -> None:
    policy = policy_of(name)
    rollout = rollout_of(policy)
    again = [OffPolicySample(sample=sample, old_logprob_T=old_T, source=Source.REPLAY)
             for sample, old_T in zip(rollout.samples, rollout.old_logprob_BT, strict=True)]  # fmt: skip
    read = policy.read(again, seed=0)
    assert torch.equal(read.old_logprob_BT, rollout.old_logprob_BT)
    assert torch.equal(read.state_BT, rollout.state_BT)
    assert [sample.image for sample in read.samples] == [sample.image for sample in rollout.samples]
    assert not read.on_policy
    pictures = [OffPolicySample(sample=Sample(sample.prompt, sample.group, sample.member, image=sample.image))
                for sample in rollout.samples]  # fmt: skip
    result = policy.read(pictures, seed=0, plan=Plan(values=(ENTROPY,)))
    assert all(len(sample.tokens or ()) == policy.num_decisions for sample in result.samples)
    assert largest_difference(result.old_logprob_BT, values(policy, result), result.mask_BT) == 0
    assert (result.values[ENTROPY] > 0).all()


def test_without_guidance_one_row_is_computed() -> None:
    policy = policy_of("llamagen", guidance_scale=1.0, temperature=1.0)
    rollout = rollout_of(policy)
    assert rollout.num_forwards == len(rollout.samples)
    hand_TK = unguided_by_hand(
        "llamagen", policy, rollout.trace.prompts[0].token_P, list(rollout.samples[0].tokens or ())
    )
    taken_T = hand_TK.log_softmax(-1).gather(1, torch.tensor(rollout.samples[0].tokens)[:, None])[:, 0]
    torch.testing.assert_close(rollout.old_logprob_BT[0], taken_T.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("cut", "value"), [("top_k", 3), ("top_p", 0.5), ("min_p", 0.2)])
def test_rows_are_scored_on_the_codes_that_could_be_sampled(cut: str, value: float) -> None:
    cuts: dict[str, Any] = {cut: value}
    policy = policy_of("llamagen", **cuts)
    rollout = rollout_of(policy)
    logprob_TK = by_hand("llamagen", policy, rollout, 0).detach()
    order_TK = logprob_TK.sort(descending=True)
    if cut == "top_k":
        keep_TK = torch.arange(NUM_CODES) < value
    elif cut == "top_p":
        keep_TK = order_TK.values.exp().cumsum(1) - order_TK.values.exp() < value
    else:
        keep_TK = order_TK.values.exp() >= value * order_TK.values[:, :1].exp()
    inside_TK = torch.zeros_like(logprob_TK, dtype=torch.bool).scatter(
        1, order_TK.indices, keep_TK.expand_as(logprob_TK)
    )
    cut_TK = logprob_TK.masked_fill(~inside_TK, -torch.inf).log_softmax(-1)
    taken_T = cut_TK.gather(1, torch.tensor(rollout.samples[0].tokens)[:, None])[:, 0]
    torch.testing.assert_close(rollout.old_logprob_BT[0], taken_T, atol=3e-5, rtol=1e-5)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    read = policy.read([OffPolicySample(sample=sample) for sample in rollout.samples], seed=0)
    assert largest_difference(read.old_logprob_BT, rollout.old_logprob_BT, rollout.mask_BT) < 1e-5


def test_outside_the_window_codes_are_greedy_and_not_trained() -> None:
    policy = policy_of("janus")
    rollout = rollout_of(policy, stochastic=(2, 5))
    assert rollout.mask_BT.nonzero()[:, 1].unique().tolist() == [2, 5]
    logprob_TK = by_hand("janus", policy, rollout, 1)
    tokens, likeliest = list(rollout.samples[1].tokens or ()), logprob_TK.argmax(1).tolist()
    assert [t for t in range(policy.num_decisions) if tokens[t] != likeliest[t]] in ([], [2], [5], [2, 5])
    assert len({tuple(sample.tokens or ()) for sample in policy.rollout(
        prompts_of()[:1], group_size=6, seed=SEED, plan=Plan(stochastic=(2, 5))).samples}) > 1  # fmt: skip
    with pytest.raises(PolicyError, match="16 decisions, the plan names 16"):
        rollout_of(policy, stochastic=(16,))


def test_settings_of_a_plan_hold_for_its_rows() -> None:
    policy = policy_of("llamagen")
    rollout = rollout_of(policy, settings={"guidance_scale": 1.0, "temperature": 0.5})
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    other = policy_of("llamagen", guidance_scale=1.0, temperature=0.5)
    assert torch.equal(rollout_of(other).old_logprob_BT, rollout.old_logprob_BT)
    mixed = policy.concat_traces([rollout.trace, rollout_of(policy).trace])
    assert len(mixed.completions) == 8
    assert len(mixed.batches(range(8), max_tokens=10**6)) == 2  # no batch is of two distributions
    with pytest.raises(ConfigError, match="no setting 'grid'"):
        rollout_of(policy, settings={"grid": (2, 2)})


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["emu3", pytest.param("janus", marks=pytest.mark.nightly)])
def test_however_a_prompt_is_run_the_gradient_is_the_same(name: str) -> None:
    policy = policy_of(name)
    rollout = rollout_of(policy)
    result = gradients(policy, rollout)
    unshared = {"share_prefix": False, "gradient_checkpointing": True}
    for settings in ({"share_prefix": False}, {"gradient_checkpointing": True}, unshared, {"head_bytes": 1}):
        other = policy_of(name, **settings)
        assert relative_difference(gradients(other, rollout), result) < 1e-5
    weight_BT = torch.randn(rollout.shape, generator=torch.Generator().manual_seed(3))  # as ``gradients`` has it
    for parameter in policy.trainable:
        parameter.grad = None
    for row, sample in enumerate(rollout.samples):  # both sides with grad
        logprob_TK = by_hand(name, policy, rollout, row)
        (weight_BT[row] * logprob_TK.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]).sum().backward()
    by_plain = [torch.zeros_like(p) if p.grad is None else p.grad for p in policy.trainable]
    assert relative_difference(result, by_plain) < 1e-4


def test_views_are_the_weights_that_are_kept() -> None:
    policy = policy_of("llamagen", lora={"rank": 2, "alpha": 2.0})
    rollout = rollout_of(policy)
    move(policy.trainable)
    now_BT, requested = values(policy, rollout), (of_view("reference"), from_reference("k3"))
    with torch.no_grad():
        for part in policy.evaluate(rollout, values=requested):
            other_NT, now_NT = part.values[requested[0]], now_BT[part.rows]
            torch.testing.assert_close(other_NT, rollout.old_logprob_BT[part.rows], atol=1e-5, rtol=1e-5)
            k3_NT = (other_NT - now_NT).exp() - (other_NT - now_NT) - 1
            torch.testing.assert_close(part.values[requested[1]], k3_NT, atol=1e-5, rtol=1e-5)
    with pytest.raises(ConfigError, match="tokens have no value peer_divergence"):
        list(policy.evaluate(rollout, values=(PEERS,)))


def test_the_warm_up_is_the_cross_entropy_of_the_codes_with_and_without_prompt() -> None:
    image = Image.linear_gradient("L").resize((8, 6))
    example = Example(prompt=Prompt("a red fox"), image=image)
    policy = policy_of("llamagen")
    encoded = policy._rollouts.encoder(example.prompt)
    codes = policy._rollouts.codec.encode([image])[0]
    for dropout, ids_P in ((0.0, encoded.token_P), (1.0, encoded.blank_P)):
        loss = policy_of("llamagen", caption_dropout=dropout).supervised_loss([example] * 2, seeds=(1, 2))
        logits_TK = unguided_by_hand("llamagen", policy, ids_P, codes.tolist())
        torch.testing.assert_close(loss.mean, torch.nn.functional.cross_entropy(logits_TK, codes), atol=1e-5, rtol=1e-5)
        assert loss.num_terms == 2 * policy.num_decisions
    with pytest.raises(DataError, match="examples with an image"):
        policy.supervised_loss([Example(prompt=Prompt("a"), text="b")], seeds=(1,))


def test_the_same_codes_with_another_prompt() -> None:
    policy = policy_of("chameleon")
    rollout = rollout_of(policy)
    overridden = policy.override_prompts(rollout, [Prompt("a table")] * 4)
    assert torch.equal(overridden.old_logprob_BT, rollout.old_logprob_BT)
    here = policy.rollout([Prompt("a table")], group_size=1, seed=1).trace.prompts[0]
    assert overridden.trace.prompts[3].token_P.tolist() == here.token_P.tolist()
    assert largest_difference(values(policy, overridden), values(policy, rollout), rollout.mask_BT) > 0.01


@pytest.mark.parametrize(
    ("name", "settings", "prompt", "message"),
    [
        ("llamagen", {"grid": None}, Prompt("a"), "policy.grid: neither model nor processor"),
        ("llamagen", {"first_code": 60}, Prompt("a"), "policy.first_code"),
        ("llamagen", {"chat": True}, Prompt("a"), "no chat template"),
        ("janus", {"grid": (2, 2)}, Prompt("a"), "has 4 x 4 codes"),
        ("llamagen", {}, Prompt("a", images=["x.png"]), "support text prompts only"),
        ("llamagen", {}, Prompt("a", audios=["x.wav"]), "support text prompts only"),
    ],
)
def test_unsupported_settings_raise(name: str, settings: dict[str, Any], prompt: Prompt, message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        policy_of(name, **settings).rollout([prompt], group_size=1, seed=0)


def test_unsupported_plans_raise() -> None:
    policy = policy_of("llamagen")
    for plan, message in (
        ({"environment": object}, "support no environments"),
        ({"sample_values": ("length",)}, "no sample value length"),
    ):
        with pytest.raises((ConfigError, PolicyError), match=message):
            rollout_of(policy, **plan)
    rollout = rollout_of(policy, sample_values=("certainty", "entropy"))
    sample = rollout.samples[0]
    hand_TK = by_hand("llamagen", policy, rollout, 0).detach()
    assert sample.values["entropy"] == pytest.approx(float(-(hand_TK.exp() * hand_TK).sum(1).mean()), abs=1e-4)
    certainty = -hand_TK.mean(1) - torch.tensor(float(NUM_CODES)).log()
    assert sample.values["certainty"] == pytest.approx(float(certainty.mean()), abs=1e-4)


def _levels(image: Image.Image | None) -> list[int]:
    assert image is not None
    return list(image.convert("RGB").tobytes())
