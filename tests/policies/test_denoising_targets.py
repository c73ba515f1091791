"""Target images and videos as states of a pipeline: the measured layout matches its code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import EulerDiscreteScheduler, FluxPipeline, LTXPipeline, QwenImagePipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.layout import measure_layout
from PIL import Image
from torch import Tensor
from torch.nn.functional import mse_loss

from mmgrpo.errors import PolicyError
from mmgrpo.types import Example, Prompt
from tests.policies.tiny_policies import pipeline_of, policy_of
from tests.tiny.pipelines import PIPELINES

SEEDS = [3, 4]
TEXTS = ["a red cat", "two dogs"]


def picture(seed: int, height: int, width: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def examples_of(name: str) -> list[Example]:
    """A target for each text: an image, or as many as the video has frames."""
    call, rows = PIPELINES[name].call, []
    for i, text in enumerate(TEXTS):
        frames = [picture(10 * i + j, call["height"], call["width"]) for j in range(call.get("num_frames", 1))]
        video = frames if PIPELINES[name].video else None
        rows.append(Example(Prompt(text), image=None if video else frames[0], video=video))
    return rows


def pixels(example: Example) -> Tensor:
    """(F, 3, H, W) in [-1, 1]."""
    frames = [example.image] if example.video is None else example.video
    stacked = np.stack([np.asarray(frame) for frame in frames]).astype(np.float32)
    return torch.from_numpy(stacked).permute(0, 3, 1, 2) / 127.5 - 1


@torch.no_grad()
def mode(pipeline: Any, example: Example, *, video: bool) -> Tensor:
    """What the autoencoder makes of the target, one row."""
    samples = pixels(example).transpose(0, 1)[None] if video else pixels(example)
    encoded = pipeline.vae.encode(samples)
    return encoded.latent_dist.mode() if "latent_dist" in encoded else encoded.latent


def spread(pipeline: Any, latent: Tensor) -> Tensor:
    """Without the autoencoder's mean, over its standard deviation, as Wan and Qwen-Image keep them."""
    config, shape = pipeline.vae.config, (1, -1, 1, 1, 1)
    mean, std = (torch.tensor(x).reshape(shape) for x in (config.latents_mean, config.latents_std))
    return (latent - mean) / std


def of_flux(pipeline: Any, example: Example) -> Tensor:
    config = pipeline.vae.config
    latent = (mode(pipeline, example, video=False) - config.shift_factor) * config.scaling_factor
    return FluxPipeline._pack_latents(latent, *latent.shape)


def of_qwen_image(pipeline: Any, example: Example) -> Tensor:
    latent = spread(pipeline, mode(pipeline, example, video=True))
    _, C, _, H, W = latent.shape
    return QwenImagePipeline._pack_latents(latent, 1, C, H, W)


def of_flux2(pipeline: Any, example: Example) -> Tensor:
    latent = pipeline._patchify_latents(mode(pipeline, example, video=False))
    bn = pipeline.vae.bn
    mean, variance = (x.reshape(1, -1, 1, 1) for x in (bn.running_mean, bn.running_var))
    return pipeline._pack_latents((latent - mean) / (variance + pipeline.vae.config.batch_norm_eps).sqrt())


def of_wan(pipeline: Any, example: Example) -> Tensor:
    return spread(pipeline, mode(pipeline, example, video=True))


def of_cogvideox(pipeline: Any, example: Example) -> Tensor:
    return mode(pipeline, example, video=True).transpose(1, 2) * pipeline.vae.config.scaling_factor


def of_ltx(pipeline: Any, example: Example) -> Tensor:
    vae = pipeline.vae
    mean, std = (x.reshape(1, -1, 1, 1, 1) for x in (vae.latents_mean, vae.latents_std))
    return LTXPipeline._pack_latents((mode(pipeline, example, video=True) - mean) * vae.config.scaling_factor / std)


def of_sana(pipeline: Any, example: Example) -> Tensor:
    return mode(pipeline, example, video=False) * pipeline.vae.config.scaling_factor


STATES: dict[str, Callable[[Any, Example], Tensor]] = {
    "flux": of_flux, "flux2": of_flux2, "qwen-image": of_qwen_image, "sana": of_sana,
    "wan": of_wan, "cogvideox": of_cogvideox, "ltx": of_ltx,
}  # fmt: skip


def uneven(name: str) -> Any:
    """The pipeline, its autoencoder with a mean and a spread of each channel's own."""
    pipeline = pipeline_of(name)
    generator = torch.Generator().manual_seed(0)
    statistics = [("latents_mean", "latents_std")] if name == "ltx" else []
    if name == "flux2":
        statistics = [("bn.running_mean", "bn.running_var")]
    for mean, spread_of in statistics:
        for key, start in ((mean, -0.5), (spread_of, 0.5)):
            buffer = pipeline.vae.get_buffer(key)
            buffer.copy_(start + torch.rand(buffer.shape, generator=generator))
    return pipeline


def single_row(policy: DenoisingPolicy, text: str) -> dict[str, Any]:
    row = DenoisingRow(prompt=Prompt(text), seed=0, group=0, member=0)
    return policy._instrumented.form.arguments([row], {**policy.settings.call, "num_inference_steps": 2})


@pytest.mark.first_case
@pytest.mark.parametrize("name", STATES)
def test_targets_decode_to_their_images(name: str) -> None:
    policy, examples = policy_of(name, uneven(name)), examples_of(name)
    rows = [DenoisingRow(prompt=example.prompt, seed=0, group=0, member=0) for example in examples]
    actual = torch.cat(policy._targets(examples, rows, {**policy.settings.call, "num_inference_steps": 2}))
    expected = torch.cat([STATES[name](policy.pipeline, example) for example in examples])
    assert float(expected.std()) > 0.05
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.first_case
@pytest.mark.parametrize("name", ["flux", "qwen-image", "wan"])
def test_the_layout_of_a_bfloat16_pipeline_is_measured_in_float32(name: str) -> None:
    plain, half = (policy_of(name, pipeline_of(name).to(dtype)) for dtype in (torch.float32, torch.bfloat16))
    full, other = (measure_layout(policy._instrumented, single_row(policy, TEXTS[0])) for policy in (plain, half))
    assert torch.equal(full.source_N, other.source_N)
    torch.testing.assert_close(full.scale_N, other.scale_N, rtol=2e-6, atol=0)
    assert {module.dtype for module in (half.pipeline.vae, half.pipeline.transformer)} == {torch.bfloat16}
    assert type(half.pipeline.vae) is type(plain.pipeline.vae)


def draws(shape: torch.Size) -> tuple[Tensor, Tensor]:
    generators = [torch.Generator().manual_seed(seed) for seed in SEEDS]
    level = torch.cat([torch.rand(1, generator=generator) for generator in generators])
    return level, torch.stack([torch.randn(shape, generator=generator) for generator in generators])


@torch.no_grad()
def test_flow_matching_loss_on_packed_flux() -> None:
    policy, examples = policy_of("flux"), examples_of("flux")
    pipeline = policy.pipeline
    clean = torch.cat([of_flux(pipeline, example) for example in examples])
    level, noise = draws(clean.shape[1:])
    embeds, pooled, text_ids = pipeline.encode_prompt(TEXTS, None, max_sequence_length=64)
    side = int(clean.shape[1] ** 0.5)
    velocity = pipeline.transformer(
        hidden_states=(1 - level[:, None, None]) * clean + level[:, None, None] * noise,
        timestep=level,
        guidance=torch.full((2,), 3.5),
        encoder_hidden_states=embeds,
        pooled_projections=pooled,
        txt_ids=text_ids,
        img_ids=pipeline._prepare_latent_image_ids(2, side, side, torch.device("cpu"), torch.float32),
        return_dict=False,
    )[0]
    actual = float(policy.supervised_loss(examples, seeds=SEEDS).mean)
    assert actual == pytest.approx(float(mse_loss(velocity, noise - clean)), rel=1e-5)


@torch.no_grad()
def test_flow_matching_loss_on_videos_of_wan() -> None:
    policy, examples = policy_of("wan"), examples_of("wan")
    pipeline = policy.pipeline
    clean = torch.cat([of_wan(pipeline, example) for example in examples])
    uniform, noise = draws(clean.shape[1:])
    timestep = (uniform * 1000).long()  # its schedule has integers, and the levels are theirs
    sigma = (timestep / 1000)[:, None, None, None, None]
    embeds, _ = pipeline.encode_prompt(TEXTS, do_classifier_free_guidance=False, max_sequence_length=64)
    velocity = pipeline.transformer((1 - sigma) * clean + sigma * noise, timestep, embeds, return_dict=False)[0]
    actual = float(policy.supervised_loss(examples, seeds=SEEDS).mean)
    assert actual == pytest.approx(float(mse_loss(velocity, noise - clean)), rel=1e-5)


@pytest.mark.nightly
@torch.no_grad()
def test_euler_and_ddim_give_the_same_supervised_loss() -> None:
    """The network sees the same noised data, whatever way the schedule writes it."""
    losses = []
    for scheduler in (None, EulerDiscreteScheduler):
        pipeline = pipeline_of("sd15")
        if scheduler is not None:
            pipeline.scheduler = scheduler.from_config(pipeline.scheduler.config)
        policy = policy_of("sd15", pipeline)
        losses.append(float(policy.supervised_loss(examples_of("sd15"), seeds=SEEDS).mean))
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.nightly
def test_examples_with_images_train_with_their_images() -> None:
    policy = policy_of("flux-kontext")
    input_images = [picture(seed, 16, 16) for seed in (7, 8)]
    examples = [
        Example(Prompt(text, images=(image,)), image=picture(i, 16, 16))
        for i, (text, image) in enumerate(zip(TEXTS, input_images, strict=True))
    ]
    with torch.no_grad():
        together = policy.supervised_loss(examples, seeds=SEEDS).mean
        alone = [policy.supervised_loss([e], seeds=[s]).mean for e, s in zip(examples, SEEDS, strict=True)]
        other = Example(Prompt(TEXTS[1], images=(input_images[0],)), image=examples[1].image)
        wrong = policy.supervised_loss([other], seeds=SEEDS[1:]).mean
    assert float(together) == pytest.approx(float(sum(alone)) / 2, rel=1e-6)
    assert abs(float(wrong) - float(alone[1])) > 1e-3 * float(alone[1])


@pytest.mark.nightly
def test_video_examples_train_the_weights() -> None:
    policy = policy_of("wan")
    optimizer = torch.optim.AdamW(policy.trainable, lr=3e-2)
    losses = []
    for _ in range(8):
        loss = policy.supervised_loss(examples_of("wan"), seeds=SEEDS).mean
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses[-1] < 0.9 * losses[0]


def test_a_pipeline_that_blends_its_states_raises() -> None:
    policy = policy_of("sd15-inpaint")  # it copies the noised image to the pixels outside the mask
    with pytest.raises(PolicyError, match="is not its last state with elements permuted, scaled and shifted"):
        policy.supervised_loss(examples_of("sd15-inpaint"), seeds=SEEDS)


def test_a_video_of_another_length_raises() -> None:
    policy, (example, _) = policy_of("wan"), examples_of("wan")
    assert example.video is not None
    with pytest.raises(PolicyError, match=r"num_frames frames"):
        policy.supervised_loss([Example(Prompt("a cat"), video=example.video[:1])], seeds=[0])
