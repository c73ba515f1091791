"""Renoised samples: keyed levels and noise, errors computed by hand, and invalid inputs."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from diffusers import EDMEulerScheduler, UniPCMultistepScheduler, WanPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.noising import noise_levels
from mmgrpo.policies.diffusion.settings import ReadingSettings

from mmgrpo.errors import ConfigError, DataError, PolicyError
from mmgrpo.types import OffPolicySample, Plan, Prompt, Sample, Source
from mmgrpo.values import Value
from tests.policies.contract import gradients, move, relative_difference, values
from tests.policies.families import families
from tests.policies.readings import (
    ERROR,
    LEVEL,
    READING,
    SEED,
    Hand,
    T,
    clean_states,
    draws,
    latents_of,
    off_policy_samples_of,
    value_of,
)
from tests.policies.test_denoising_targets import TEXTS
from tests.policies.tiny_policies import measured_policy_of, pipeline_of, policy_of, prompts_of
from tests.tiny.pipelines import PIPELINES

READ = [name for name in PIPELINES if name != "sd15-inpaint"]


@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
def test_the_log_probability_is_minus_the_matching_error(name: str) -> None:
    policy = policy_of(name, reading={**READING, "weight": 2.0, "power": 1.0})
    move(policy.trainable)
    rollout = policy.read(off_policy_samples_of(name), seed=SEED)
    hand, clean = Hand(name, policy), clean_states(name, policy)
    assert rollout.shape == (4, T)
    assert bool(rollout.mask_BT.all())
    error_BT, logprob_BT = value_of(policy, rollout, ERROR), values(policy, rollout)
    for row, (which, group, member) in enumerate([(0, 5, 0), (0, 5, 3), (1, 9, 0), (1, 9, 3)]):
        for position in range(T):
            noisy, target, share, sigma = hand.noised(clean[which], group, member, position)
            with torch.no_grad():
                expected = float((hand.prediction(TEXTS[which], noisy, share) - target).square().mean())
            assert float(error_BT[row, position]) == pytest.approx(expected, rel=2e-5)
            assert float(logprob_BT[row, position]) == pytest.approx(-2 * sigma * expected, rel=2e-5)
            assert float(rollout.values[LEVEL][row, position]) == pytest.approx(sigma, abs=1e-6)
    assert torch.equal(logprob_BT, rollout.old_logprob_BT)
    assert rollout.num_forwards == 4 * T
    assert rollout.source_B is not None
    assert rollout.source_B.tolist() == [int(Source.DEMONSTRATION)] * 4
    assert not rollout.on_policy


@pytest.mark.nightly
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
def test_batches_do_not_change_noise_or_gradient(name: str) -> None:
    wide, narrow, odd = (policy_of(name, batch=batch, reading=READING) for batch in (16, 1, 5))
    for policy in (wide, narrow, odd):
        move(policy.trainable)
    samples = latents_of(wide)
    rollout = wide.read(samples, seed=SEED)
    assert [e.logprob_BT.shape for e in wide.evaluate(rollout)] == [(4, T)]
    assert [e.logprob_BT.shape for e in odd.evaluate(rollout)] == [(1, T)] * 4
    assert [e.logprob_BT.shape for e in narrow.evaluate(rollout)] == [(1, 1)] * (4 * T)
    full = gradients(wide, rollout)
    for policy in (narrow, odd):
        other = policy.read(samples, seed=SEED)
        torch.testing.assert_close(other.old_logprob_BT, rollout.old_logprob_BT, rtol=2e-5, atol=1e-6)
        assert torch.equal(other.values[LEVEL], rollout.values[LEVEL])
        assert relative_difference(gradients(policy, rollout), full) < 1e-4
    some = wide.read([samples[2], samples[1]], seed=SEED)
    torch.testing.assert_close(some.old_logprob_BT, rollout.old_logprob_BT[[2, 1]], rtol=2e-5, atol=1e-6)
    parts = zip(gradients(wide, rollout, [0, 3]), gradients(wide, rollout, [1, 2]), strict=True)
    assert relative_difference([first + two for first, two in parts], full) < 1e-4
    masked = rollout.keep(torch.tensor([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]]).bool())
    masked_BT = values(wide, masked)
    torch.testing.assert_close(masked_BT, rollout.old_logprob_BT * masked.mask_BT, rtol=2e-5, atol=1e-6)
    assert sum(e.num_forwards for e in wide.evaluate(masked)) == 6


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("guided", [False, True], ids=["plain", "guided"])
@pytest.mark.parametrize("name", families("reading", READ))
def test_every_pipeline_renoises_its_samples(name: str, guided: bool) -> None:
    policy, alone = (policy_of(name, guided=guided, batch=batch, reading=READING) for batch in (12, 1))
    for reader in (policy, alone):
        move(reader.trainable)
    samples = latents_of(policy, prompts_of(name, TEXTS))
    rollout = policy.read(samples, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    torch.testing.assert_close(values(alone, rollout), rollout.old_logprob_BT, rtol=1e-5, atol=1e-5)
    assert relative_difference(gradients(alone, rollout), gradients(policy, rollout)) < 1e-4


@pytest.mark.nightly
@torch.no_grad()
def test_guidance_is_part_of_the_prediction() -> None:
    policy = policy_of("sd15", guided=True, reading=READING)
    samples = latents_of(policy)
    rollout = policy.read(samples, seed=SEED)
    assert rollout.num_forwards == 2 * 4 * T
    hand = Hand("sd15", policy)
    for row, text in ((1, TEXTS[0]), (2, TEXTS[1])):
        sample = samples[row].sample
        assert sample.latent is not None
        noisy, target, share, _ = hand.noised(sample.latent, sample.group, sample.member, 2)
        unconditional, conditional = hand.prediction("", noisy, share), hand.prediction(text, noisy, share)
        expected = float((unconditional + 4.0 * (conditional - unconditional) - target).square().mean())
        assert float(-rollout.old_logprob_BT[row, 2]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.nightly
def test_samples_without_finite_latents_are_not_trained_on() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    expected = policy.read(samples, seed=SEED).old_logprob_BT[0]
    latent = samples[1].sample.latent
    assert latent is not None
    failed = replace(samples[1], sample=replace(samples[1].sample, latent=torch.full_like(latent, torch.nan)))
    rollout = policy.read([samples[0], failed], seed=SEED)
    assert rollout.mask_BT.tolist() == [[True] * T, [False] * T]
    torch.testing.assert_close(rollout.old_logprob_BT[0], expected, rtol=1e-5, atol=1e-7)


def test_noise_depends_on_keys_and_can_be_shared_by_a_group() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    samples = [replace(item, sample=replace(item.sample, latent=samples[0].sample.latent)) for item in samples]
    apart, again = (policy.read(samples, seed=seed).values[LEVEL] for seed in (SEED, SEED + 1))
    assert len({*apart.flatten().tolist(), *again.flatten().tolist()}) == 2 * 4 * T
    shared = policy.read(samples, seed=SEED, plan=Plan(same_initial_noise=True))
    level_BT = shared.values[LEVEL]
    assert torch.equal(level_BT[0], level_BT[1])
    assert torch.equal(level_BT[2], level_BT[3])
    assert not torch.equal(level_BT[0], level_BT[2])
    # The same image with the same noise, up to rounding.
    torch.testing.assert_close(shared.old_logprob_BT[0], shared.old_logprob_BT[1], rtol=1e-5, atol=1e-7)
    as_set = policy_of("sd3", reading={**READING, "shared": True}).read(samples, seed=SEED)
    assert torch.equal(as_set.values[LEVEL], level_BT)
    torch.testing.assert_close(as_set.old_logprob_BT, shared.old_logprob_BT, rtol=1e-5, atol=1e-7)


def test_levels_follow_the_settings() -> None:
    uniform, position = torch.tensor([0.5, 0.5, 0.25, 0.0]), torch.tensor([0, 1, 2, 3])
    actual = noise_levels(uniform, position, ReadingSettings(num_levels=4, low=0.2, high=0.6))
    # (k + u) / 4 = 0.125, 0.375, 0.5625, 0.75; times 0.4, plus 0.2
    torch.testing.assert_close(actual, torch.tensor([0.25, 0.35, 0.425, 0.5]))
    plain = ReadingSettings(num_levels=4, levels="uniform", shift=3.0)
    # 3 u / (1 + 2 u) at 0.5 and 0.25: 0.75 and 0.5
    torch.testing.assert_close(noise_levels(uniform, position, plain), torch.tensor([0.75, 0.75, 0.5, 0.0]))
    # the quartiles of a normal number are 0.674490 from its mean: 1 / (1 + e^0.674490)
    normal = noise_levels(torch.tensor([0.25, 0.5, 0.75, 0.0]), position, ReadingSettings(levels="logit_normal"))
    torch.testing.assert_close(normal, torch.tensor([0.337492, 0.5, 0.662508, 0.0]), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="low must be below high"):
        noise_levels(uniform, position, ReadingSettings(low=0.6, high=0.6))


@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "wan"]))
def test_images_and_latents_give_equal_scores(name: str) -> None:
    """The tiny autoencoders lose much, so the latent that is compared is that of the image."""
    policy = measured_policy_of(name, reading=READING)
    pictures = off_policy_samples_of(name)
    clean = clean_states(name, policy)
    latents = [
        replace(item, sample=replace(item.sample, latent=clean[row // 2], image=None, video=None))
        for row, item in enumerate(pictures)
    ]
    from_images, other = policy.read(pictures, seed=SEED), policy.read(latents, seed=SEED)
    torch.testing.assert_close(from_images.old_logprob_BT, other.old_logprob_BT, rtol=1e-4, atol=1e-5)


@pytest.mark.nightly
@torch.no_grad()
def test_preconditioned_networks_use_their_levels() -> None:
    """EDM: the network sees x / sqrt(s^2 + d^2) at time log(s) / 4 and says (x0 - c_skip x) / c_out."""
    pipeline = pipeline_of("sd15")
    pipeline.scheduler = EDMEulerScheduler(sigma_min=0.01, sigma_max=10.0, sigma_data=0.5, rho=7.0)
    policy = policy_of("sd15", pipeline, reading=READING)
    samples = latents_of(policy)[:1]
    rollout = policy.read(samples, seed=SEED)
    clean, d = samples[0].sample.latent, 0.5
    assert clean is not None
    embeds, _ = pipeline.encode_prompt([TEXTS[0]], "cpu", 1, False)
    for position in range(T):
        uniform, noise = draws(5, 0, position, clean.shape)
        s = (0.01 ** (1 / 7) + uniform * (10 ** (1 / 7) - 0.01 ** (1 / 7))) ** 7
        x, c_skip, c_out = clean + s * noise, d**2 / (s**2 + d**2), s * d / (s**2 + d**2) ** 0.5
        time = 0.25 * torch.tensor([s]).log()
        message = pipeline.unet(x / (s**2 + d**2) ** 0.5, time, encoder_hidden_states=embeds, return_dict=False)[0]
        expected = float((message - (clean - c_skip * x) / c_out).square().mean())
        assert float(rollout.values[LEVEL][0, position]) == pytest.approx(s, rel=1e-4)
        assert float(-rollout.old_logprob_BT[0, position]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.nightly
def test_renoising_trains_the_weights() -> None:
    policy = policy_of("sd3", reading={"num_levels": 4})
    rollout = policy.read(off_policy_samples_of("sd3"), seed=SEED)
    optimizer = torch.optim.AdamW(policy.trainable, lr=3e-2)
    for _ in range(8):
        optimizer.zero_grad()
        for part in policy.evaluate(rollout):
            (-part.logprob_BT.mean()).backward()
        optimizer.step()
    assert float(values(policy, rollout).mean()) > 0.9 * float(rollout.old_logprob_BT.mean())


def test_samples_of_any_solver_can_be_renoised() -> None:
    pipeline = pipeline_of("sd3")
    pipeline.scheduler = UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000
    )
    policy = policy_of("sd3", pipeline, reading=READING)
    samples = latents_of(policy)
    rollout = policy.read(samples, seed=SEED)
    assert rollout.on_policy
    hand = Hand("sd3", policy)
    for position in range(T):
        clean = samples[2].sample.latent
        assert clean is not None
        uniform, noise = draws(9, 0, position, clean.shape)
        share = int(uniform * 1000) / 1000  # its timesteps are integers
        with torch.no_grad():
            message = hand.prediction(TEXTS[1], (1 - share) * clean + share * noise, share)
        expected = float((message - (noise - clean)).square().mean())
        assert float(-rollout.old_logprob_BT[2, position]) == pytest.approx(expected, rel=2e-5)


def test_plan_settings_override_renoising() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    plan = Plan(settings={"reading": {"num_levels": 2, "weight": 3.0}, "call": {"guidance_scale": 4.0}})
    rollout = policy.read(samples, seed=SEED, plan=plan)
    assert rollout.shape == (4, 2)
    assert rollout.num_forwards == 2 * 4 * 2  # guided
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    torch.testing.assert_close(3 * value_of(policy, rollout, ERROR), -rollout.old_logprob_BT)
    for settings, message in (
        ({"strength": 0.3}, "are call and reading; got strength"),
        ({"reading": {"steps": 2}}, "reading takes num_levels, .*; got steps"),
        ({"call": {"steps": 2}}, "has no argument steps"),
    ):
        with pytest.raises(ConfigError, match=message):
            policy.read(samples, seed=SEED, plan=Plan(settings=settings))


def test_provided_log_probabilities_are_kept() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    with_logprobs = [
        replace(samples[0], old_logprob_T=torch.tensor([-1.0, -2.0, -3.0]), source=Source.REPLAY),
        *samples[1:],
    ]
    rollout = policy.read(with_logprobs, seed=SEED)
    assert rollout.old_logprob_BT[0].tolist() == [-1.0, -2.0, -3.0]
    assert torch.equal(rollout.old_logprob_BT[1:], policy.read(samples, seed=SEED).old_logprob_BT[1:])
    assert rollout.source_B is not None
    assert rollout.source_B.tolist() == [1, 0, 0, 0]


def read_by(policy: DenoisingPolicy, samples: Sequence[OffPolicySample]) -> Any:
    return policy.read(samples, seed=SEED)


def test_invalid_samples_raise() -> None:
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    with pytest.raises(DataError, match="needs at least one sample"):
        read_by(policy, [])
    with pytest.raises(DataError, match="num_forced must be 0"):
        read_by(policy, [replace(samples[0], num_forced=1)])
    with pytest.raises(DataError, match=r"old_logprob_T must have 3 numbers, one per level, got shape \(2,\)"):
        read_by(policy, [replace(samples[0], old_logprob_T=torch.zeros(2))])
    with pytest.raises(DataError, match="need an image, a video or audio"):
        read_by(policy, [OffPolicySample(sample=Sample(Prompt("a cat"), 0, 0))])
    with pytest.raises(PolicyError, match="needs one state shape"):
        read_by(policy, [OffPolicySample(sample=replace(samples[0].sample, latent=torch.zeros(1, 4, 2, 2)))])
    rollout = policy.read(samples, seed=SEED)
    for value in (Value("gaussian", "reference"), Value("k3", "teacher"), Value("positive_error", "reference")):
        with pytest.raises(ConfigError, match="renoised samples have no value"):
            value_of(policy, rollout, value)


@pytest.mark.nightly
def test_pipelines_without_levels_per_row_raise() -> None:
    exploding = pipeline_of("sd3")
    exploding.scheduler.register_to_config(sigma_max=80.0)  # as Cosmos 2 does
    policy = measured_policy_of("sd3", reading=READING)
    samples = latents_of(policy)
    with pytest.raises(PolicyError, match="is variance-exploding flow"):
        read_by(policy_of("sd3", exploding, sampler="ddim", reading=READING), samples)
    inpainting = policy_of("sd15-inpaint", reading=READING)
    sample = Sample(Prompt("a cat"), 0, 0, latent=torch.randn(1, 4, 8, 8))
    shape = inpainting.rollout([Prompt("a cat")], group_size=1, seed=0).trace.transitions[0][-1].next_state.shape
    with pytest.raises(PolicyError, match="overwrites parts of its states between two steps"):
        read_by(inpainting, [OffPolicySample(sample=replace(sample, latent=torch.randn(shape)))])
    pipeline = pipeline_of("wan")
    parts = {**pipeline.components, "transformer_2": copy.deepcopy(pipeline.transformer)}
    experts = policy_of("wan", WanPipeline(**parts, boundary_ratio=0.9), reading=READING)
    with pytest.raises(PolicyError, match="selects its denoiser by noise level"):
        read_by(experts, latents_of(experts))
