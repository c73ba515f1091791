"""Memory-saving decoding of images and videos: the same pixels, smaller inputs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.latent_decoding import decoders_of
from torch import nn

from mmgrpo.errors import ConfigError
from mmgrpo.types import Plan, Prompt, Rollout, Sample
from tests.policies.tiny_policies import pipeline_of, policy_of

PROMPTS = [Prompt("a red fox"), Prompt("two blue squares")]
SMALL = (("min_height", 32), ("min_width", 32))
OVERLAPPING = (("stride_height", 16), ("stride_width", 16))


@contextmanager
def most_at_once(policy: DenoisingPolicy) -> Iterator[list[int]]:
    """Into the list goes the largest number of values that a layer of a decoder gave back in one call."""
    most = [0]

    def hook(module: nn.Module, args: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor):
            most[0] = max(most[0], output.numel())

    layers = [layer for vae in decoders_of(policy.pipeline) for layer in vae.get_submodule("decoder").modules()]
    handles = [layer.register_forward_hook(hook) for layer in layers]
    try:
        yield most
    finally:
        for handle in handles:
            handle.remove()


def pixels(samples: list[Sample]) -> np.ndarray:
    """(B, F, H, W, 3), 0 to 1."""
    frames = [sample.video or [sample.image] for sample in samples]
    return np.stack([[np.asarray(frame, dtype=float) / 255 for frame in clip if frame] for clip in frames])


def rollout_and_calls(policy: DenoisingPolicy, plan: Plan) -> tuple[Rollout, int]:
    """A rollout of four rows, and the most that was decoded at once."""
    with most_at_once(policy) as most:
        rollout = policy.rollout(PROMPTS, group_size=2, seed=3, plan=plan)
    return rollout, most[0]


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "rounded"),
    [
        ("sd3", 1e-3),  # on some processors convolutions round otherwise for a single row
        ("wan", 1e-3),
        pytest.param("cogvideox", 1e-3, marks=pytest.mark.nightly),
        pytest.param("ltx", 1e-3, marks=pytest.mark.nightly),
    ],
)
def test_row_by_row_decoding_gives_the_same_pixels(name: str, rounded: float) -> None:
    plan = Plan(stochastic=(1,))
    full, at_once = rollout_and_calls(policy_of(name), plan)
    rows, in_turn = rollout_and_calls(policy_of(name, decode={"rows": True}), plan)
    apart = np.abs(pixels([*rows.samples]) - pixels([*full.samples]))
    assert (apart > 0).mean() <= rounded
    assert apart.max() <= bool(rounded) / 255 + 1e-9
    assert torch.equal(rows.old_logprob_BT, full.old_logprob_BT)
    assert in_turn * 4 == at_once


@pytest.mark.nightly
def test_tiled_decoding_uses_smaller_inputs() -> None:
    plan, size = Plan(stochastic=()), {"height": 64, "width": 64}
    tiles = {f"tile_sample_{name}": pixels for name, pixels in (*SMALL, *OVERLAPPING)}
    full, at_once = rollout_and_calls(policy_of("wan", call=size), plan)
    parts, in_turn = rollout_and_calls(policy_of("wan", call=size, decode={"tiles": tiles}), plan)
    assert in_turn * 4 == at_once  # tiles of 32 x 32
    apart = np.abs(pixels([*parts.samples]) - pixels([*full.samples]))
    assert 0 < apart.mean() < 0.03  # random weights have the hardest seams; measured 0.014


def test_decoder_settings_are_restored_after_a_run() -> None:
    pipeline = pipeline_of("wan")
    policy = DenoisingPolicy(
        pipeline,
        {
            "decode": {"tiles": {"tile_sample_min_height": 64}},
            "call": {"num_inference_steps": 2},
            "lora": {},
        },
    )
    vae = pipeline.vae
    before = (vae.use_tiling, vae.tile_sample_min_height)
    assert before == (False, 256)
    shapes = []
    vae.decoder.register_forward_pre_hook(lambda *_: shapes.append((vae.use_tiling, vae.tile_sample_min_height)))
    call = {"height": 32, "width": 32, "num_frames": 5, "max_sequence_length": 64, "guidance_scale": 1.0}
    policy.rollout(PROMPTS, group_size=1, seed=0, plan=Plan(stochastic=(), settings={"call": call}))
    assert set(shapes) == {(True, 64)}
    assert (vae.use_tiling, vae.tile_sample_min_height) == before


@pytest.mark.parametrize(
    ("name", "decode", "message"),
    [
        ("sd3", {"frames": True}, r"policy.decode.frames: AutoencoderKL has no use_framewise_decoding"),
        ("wan", {"tiles": {"tile_size": 3}}, r"policy.decode.tiles: AutoencoderKLWan has other arguments: .*tile_size"),
    ],
)
def test_unsupported_decoding_settings_raise(name: str, decode: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        policy_of(name, decode=decode)
