"""Audio targets of a denoising policy, and the scheduler of Stable Audio Open."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.layout import measure_layout
from mmgrpo.policies.diffusion.noised_prediction import two_step_call
from mmgrpo.policies.diffusion.supervised_denoising import Targets
from mmgrpo.policies.diffusion.waveforms import waveform_of

from mmgrpo.errors import DataError, PolicyError
from mmgrpo.types import Audio, Example, OffPolicySample, Prompt, Sample
from tests.audio_signals import tone
from tests.breadth import assembly
from tests.policies.contract import move, values

NAME = "StableAudioPipeline"
PROMPT = Prompt("a fox")


def policy_of(name: str = NAME, pipeline: Any = None, **call: Any) -> DenoisingPolicy:
    samples = {"call": assembly.arguments(name) | call, "rollout_batch": 1, "update_batch": 1, "lora": {"rank": 2}}
    return DenoisingPolicy(assembly.build(name) if pipeline is None else pipeline, samples)


def targets_of(policy: DenoisingPolicy) -> Targets:
    return policy._targets


def test_audio_targets_match_the_autoencoder() -> None:
    policy = policy_of()
    vae = policy.pipeline.vae
    rate = vae.config.sampling_rate
    sound = Audio(torch.linspace(-1, 1, 400).reshape(2, 200).contiguous(), rate)
    call, row = two_step_call(policy.settings.call), DenoisingRow(prompt=PROMPT, seed=0, group=0, member=0)
    (state,) = targets_of(policy)([Example(PROMPT, audio=sound)], [row], call)
    layout = measure_layout(policy._instrumented, policy._instrumented.form.arguments([row], call))
    waveform = waveform_of(sound, layout, rate)
    N = waveform.shape[-1]
    expected = torch.zeros(2, N)
    expected[:, : min(200, N)] = sound.values[:, :N]  # silence after it, or its end cut off
    assert torch.equal(waveform[0], expected)
    with torch.no_grad():
        assert torch.equal(state, vae.encode(waveform).latent_dist.mode())


def test_targets_use_the_autoencoder_channels_and_rate() -> None:
    policy = policy_of()
    row = DenoisingRow(prompt=PROMPT, seed=0, group=0, member=0)
    arguments = policy._instrumented.form.arguments([row], two_step_call(policy.settings.call))
    layout = measure_layout(policy._instrumented, arguments)
    mono = tone(1, rate=8, duration_s=2.0)
    actual = waveform_of(mono, layout, 8)[0]
    assert len(actual) == 2
    assert torch.equal(actual[0], actual[1])
    assert torch.equal(actual[0, :16], mono.values[0, : actual.shape[1]])
    assert torch.equal(waveform_of(Audio(mono.values.repeat(3, 1), 8), layout, 8)[0], actual)
    with pytest.raises(PolicyError, match="its rate is unknown"):
        waveform_of(mono, layout, None)


def test_the_audio_loss_decreases_along_its_gradient() -> None:
    policy = policy_of()
    examples = [Example(PROMPT, audio=tone(1, rate=4, duration_s=2.0))]
    before = policy.supervised_loss(examples, seeds=[0]).mean
    gradient = torch.autograd.grad(before, policy.trainable, allow_unused=True)
    square = sum(float(part.square().sum()) for part in gradient if part is not None)
    fall = 1e-3 * float(before.detach())
    with torch.no_grad():
        for parameter, part in zip(policy.trainable, gradient, strict=True):
            parameter -= 0 if part is None else fall / square * part
    after = policy.supervised_loss(examples, seeds=[0]).mean
    assert float(before.detach() - after.detach()) == pytest.approx(fall, rel=0.2)


def test_finished_audio_can_be_renoised() -> None:
    policy = policy_of()
    sample = Sample(PROMPT, group=0, member=0, audio=tone(1, rate=4, duration_s=2.0))
    rollout = policy.read([OffPolicySample(sample=sample)], seed=0)
    assert float((values(policy, rollout) - rollout.old_logprob_BT).abs().max()) < 1e-6
    move(policy.trainable)
    assert float((values(policy, rollout) - rollout.old_logprob_BT).abs().max()) > 1e-4


@pytest.mark.nightly
def test_audio_that_cannot_be_encoded_raises() -> None:
    with pytest.raises(DataError, match="need an image, a video or audio"):
        policy_of().supervised_loss([Example(PROMPT)], seeds=[0])
    with pytest.raises(PolicyError, match=r"its autoencoder decodes .*; only waveforms"):
        policy_of("AudioLDMPipeline").supervised_loss([Example(PROMPT, audio=tone())], seeds=[0])


def test_the_stable_audio_open_scheduler_is_supported() -> None:
    """It draws from a separate Brownian tree, whose package (torchsde) does not come with diffusers."""
    pytest.importorskip("torchsde")
    from diffusers import CosineDPMSolverMultistepScheduler

    pipeline = assembly.build(NAME)
    pipeline.scheduler = CosineDPMSolverMultistepScheduler(sigma_min=0.3, sigma_max=500, sigma_schedule="exponential")
    policy = policy_of(pipeline=pipeline, num_inference_steps=4)
    rollout = policy.rollout([PROMPT], group_size=2, seed=0)
    assert policy.resolved_settings == ("sampler ddim, which fits CosineDPMSolverMultistepScheduler",)
    assert rollout.mask_BT.sum(1).tolist() == [3, 3]
    assert float((values(policy, rollout) - rollout.old_logprob_BT).abs().max()) < 1e-6
