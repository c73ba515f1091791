"""Conditions other than text, and loops that depend on more than their latents."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusion3Img2ImgPipeline, StableDiffusionInstructPix2PixPipeline, WanVideoToVideoPipeline
from mmgrpo.policies.diffusion.call_form import CallForm
from mmgrpo.policies.diffusion.conditioning import load_media
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from PIL import Image

from mmgrpo.data.clips import encoded
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Plan, Prompt
from mmgrpo.values import from_reference
from tests.policies.contract import sample_difference, values
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of

SEED = 3


def _picture(level: int = 0) -> Image.Image:
    ramp = np.linspace(0, 255, 16 * 16 * 3).reshape(16, 16, 3)
    return Image.fromarray(((ramp + level) % 256).astype(np.uint8))


def _video() -> list[Image.Image]:
    return [_picture(40 * frame).resize((32, 32)) for frame in range(5)]


@pytest.mark.nightly
def test_images_can_be_paths(tmp_path: Path) -> None:
    _picture().save(tmp_path / "source.png")
    policy = policy_of("flux-kontext")
    prompts = [Prompt("a red fox", images=(_picture(),)), Prompt("a red fox", images=(_picture(99),))]
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    from_path = policy.rollout([Prompt("a red fox", images=(str(tmp_path / "source.png"),))], group_size=2, seed=SEED)
    assert sample_difference(from_path.samples, rollout.samples[:2]) == 0
    same_key = policy.rollout(prompts[1:], group_size=2, seed=SEED)
    assert sample_difference(same_key.samples, rollout.samples[:2]) > 0


def _img2img() -> Any:
    return StableDiffusion3Img2ImgPipeline(**pipeline_of("sd3").components)


def _video_to_video() -> Any:
    parts = pipeline_of("wan").components
    return WanVideoToVideoPipeline(
        **{name: parts[name] for name in ("tokenizer", "text_encoder", "transformer", "vae", "scheduler")}
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "build", "prompt"),
    [
        ("sd3", _img2img, Prompt("a red fox", images=(_picture(),))),
        ("wan", _video_to_video, Prompt("a red fox", videos=(_video(),))),
    ],
)
def test_pipelines_that_start_mid_schedule_are_exact(name: str, build: Callable[[], Any], prompt: Prompt) -> None:
    call = {"strength": 0.8, "num_inference_steps": 5}
    policy = policy_of(name, build(), without=("num_frames",), call=call)
    rollout = policy.rollout([prompt], group_size=2, seed=SEED)
    assert rollout.shape == (2, 4)
    assert not rollout.trace.run_ghosts
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert sample_difference(rollout.samples[:1], rollout.samples[1:]) > 0
    shared = policy.rollout([prompt], group_size=2, seed=SEED, plan=Plan(stochastic=(1, 2), same_initial_noise=True))
    assert torch.equal(values(policy, shared), shared.old_logprob_BT)


def test_videos_can_be_paths(tmp_path: Path) -> None:
    frames = _video()
    frames[0].save(tmp_path / "source.gif", save_all=True, append_images=frames[1:])
    row = DenoisingRow(prompt=Prompt("a red fox", videos=(str(tmp_path / "source.gif"),)), seed=0, group=0, member=0)
    actual = CallForm().arguments([row], {})["video"]
    assert [frame.size for frame in actual] == [(32, 32)] * 5
    differences = [
        np.abs(np.asarray(a, float) - np.asarray(b, float)).mean() for a, b in zip(actual, frames, strict=True)
    ]
    assert max(differences) < 16  # a GIF has 256 colors


@pytest.mark.nightly
def test_images_in_the_call_run_rows_alone() -> None:
    names = {"rollout_batch": 4, "update_batch": 4}
    policy = policy_of("sd15-inpaint", **names)
    prompts = prompts_of("sd15-inpaint")
    rollout = policy.rollout(prompts, group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout, [2])[2], rollout.old_logprob_BT[2])
    last = policy.rollout(prompts[1:], group_size=2, seed=SEED, plan=Plan(prompt_ids=(1,)))
    assert torch.equal(last.old_logprob_BT, rollout.old_logprob_BT[2:])
    assert sample_difference(last.samples, rollout.samples[2:]) == 0


@pytest.mark.nightly
def test_guidance_that_depends_on_the_step_is_exact() -> None:
    window = {"skip_guidance_layers": [0], "skip_layer_guidance_start": 0.3, "skip_layer_guidance_stop": 0.7}
    plain, skipping = policy_of("sd3", guided=True), policy_of("sd3", guided=True, call=window)
    rollout = skipping.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    assert not rollout.trace.run_ghosts
    assert torch.equal(values(skipping, rollout), rollout.old_logprob_BT)
    drawings = plain.rollout(prompts_of("sd3"), group_size=2, seed=SEED).trace.row_params  # rows are scored as sampled
    unskipped = replace(rollout, trace=replace(rollout.trace, row_params=drawings))
    differs = (values(plain, unskipped) - rollout.old_logprob_BT).abs().amax(0) > 1e-6
    assert differs.tolist() == [False, False, True, False]  # the one step between .3 and .7 of four


@pytest.mark.nightly
def test_three_way_guidance_is_exact() -> None:
    parts = pipeline_of("sd15-euler-a").components
    config = dict(parts["unet"].config, in_channels=8)
    torch.manual_seed(0)
    parts["unet"] = type(parts["unet"]).from_config(config)
    pipeline = StableDiffusionInstructPix2PixPipeline(**parts, requires_safety_checker=False)
    policy = policy_of(
        "sd15-euler-a", pipeline, without=("height", "width"), call={"guidance_scale": 4.0, "image_guidance_scale": 2.0}
    )
    rollout = policy.rollout([Prompt("a red fox", images=(_picture(),))], group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert rollout.num_forwards == 3 * 4 * 2


def test_shared_states_have_one_divergence() -> None:
    plan = Plan(stochastic=(1,), same_initial_noise=True)
    policy = policy_of("sd3")
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED, plan=plan)
    for parameter in policy.trainable:
        parameter.data.add_(0.05)
    value = from_reference("gaussian")
    (shared,) = policy.evaluate(rollout, values=[value])
    (distinct,) = policy.evaluate(replace(rollout, state_BT=torch.arange(16).reshape(4, 4)), values=[value])
    kl_BT = shared.values[value]
    assert kl_BT[0] == kl_BT[1] != kl_BT[2]
    torch.testing.assert_close(kl_BT, distinct.values[value], rtol=1e-4, atol=1e-9)
    assert (shared.num_forwards, distinct.num_forwards) == (2 * 2, 2 * 4)


def test_a_single_step_schedule_raises() -> None:
    policy = policy_of("sd3", call={"num_inference_steps": 1})
    with pytest.raises(ConfigError, match="set num_inference_steps to 2 or more"):
        policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    assert policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED, plan=Plan(stochastic=())).shape == (2, 1)


def test_unsupported_media_raise() -> None:
    policy = policy_of("flux-kontext")
    audio = {"array": np.zeros(80), "sampling_rate": 80}
    with pytest.raises(DataError, match="'a red fox' has 1 audios, which diffusion pipelines do not take"):
        policy.rollout([Prompt("a red fox", images=(_picture(),), audios=(audio,))], group_size=1, seed=SEED)
    part = {"type": "image", "max_pixels": 256}
    messages = [{"role": "user", "content": [part, {"type": "text", "text": "a red fox"}]}]
    with pytest.raises(DataError, match="options that diffusion pipelines do not support: max_pixels"):
        policy.rollout([Prompt("a red fox", images=(_picture(),), messages=messages)], group_size=1, seed=SEED)


def test_video_files_are_opened(tmp_path: Path) -> None:
    """As its frames are, to the codec's rounding."""
    frames = [Image.new("RGB", (32, 32), (40 * n, 40 * n, 40 * n)) for n in range(5)]
    (tmp_path / "a.mp4").write_bytes(encoded(frames, side=32, quality=1))
    videos = [
        load_media(Prompt("a", videos=[video]), image="image", columns={})["video"]
        for video in (str(tmp_path / "a.mp4"), frames)
    ]
    assert [frame.size for frame in videos[0]] == [(32, 32)] * 5
    differences = [np.abs(np.asarray(a).astype(int) - np.asarray(b)).max() for a, b in zip(*videos, strict=True)]
    assert max(differences) <= 4
