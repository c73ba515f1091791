"""Caches enabled by the user: disabled for decisions, used for deterministic samples."""

# diffusers exports lazily.
# pyright: reportPrivateImportUsage=false

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    TaylorSeerCacheConfig,
)
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow

from mmgrpo.types import Plan, Prompt
from tests.policies.contract import gradients, move, relative_difference, sample_difference, values
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of, settings_of

SEED = 3
GREEDY = Plan(stochastic=())
CACHES: dict[str, Callable[[], Any]] = {
    "first-block": lambda: FirstBlockCacheConfig(threshold=10.0),
    "pyramid": lambda: PyramidAttentionBroadcastConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        current_timestep_callback=lambda: 500,
        spatial_attention_block_identifiers=("transformer_blocks", "single_transformer_blocks"),
    ),
    "faster": lambda: FasterCacheConfig(
        spatial_attention_block_skip_range=2,
        spatial_attention_timestep_skip_range=(-1, 1001),
        spatial_attention_block_identifiers=("transformer_blocks", "single_transformer_blocks"),
        current_timestep_callback=lambda: 500,
        attention_weight_callback=lambda _: 0.5,
        tensor_format="BCHW",
        is_guidance_distilled=True,
    ),
    "taylorseer": lambda: TaylorSeerCacheConfig(cache_interval=2, disable_cache_before_step=1, max_order=1),
    "mag": lambda: MagCacheConfig(threshold=10.0, num_inference_steps=4, mag_ratios=[1.0] * 4, retention_ratio=0.0),
}


def _cached(name: str) -> Any:
    pipeline = pipeline_of("flux")
    pipeline.transformer.enable_cache(CACHES[name]())
    return pipeline


NIGHTLY = ("pyramid", "mag", "taylorseer")
"""Hooks of the same two sorts as those of the others: around attention, and around blocks."""


def each(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.nightly if name in NIGHTLY else ()) for name in names]


@pytest.mark.parametrize("name", each(*CACHES))
def test_decisions_are_sampled_scored_and_trained_without_caches(name: str, caplog: pytest.LogCaptureFixture) -> None:
    plain = policy_of("flux")
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        policy = policy_of("flux", _cached(name))
    assert "off while decisions are sampled or scored; deterministic samples use the cache" in caplog.text
    for plan in (Plan(), Plan(stochastic=(1, 2), same_initial_noise=True)):
        rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
        expected = plain.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
        assert torch.equal(rollout.old_logprob_BT, expected.old_logprob_BT)
        assert sample_difference(rollout.samples, expected.samples) == 0
        assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    move(policy.trainable)
    move(plain.trainable)
    assert relative_difference(gradients(policy, rollout), gradients(plain, expected)) < 1e-6


@pytest.mark.parametrize("name", each(*(name for name in CACHES if name != "faster")))  # which needs the real timestep
def test_deterministic_samples_use_the_cache(name: str) -> None:
    policy = policy_of("flux", _cached(name))
    policy.rollout(prompts_of("flux"), group_size=1, seed=SEED)
    with torch.no_grad():
        for parameter in policy.trainable:
            parameter.zero_()
    actual = policy.rollout(prompts_of("flux")[:1], group_size=1, seed=SEED, plan=GREEDY).samples[0]
    arguments = settings_of("flux")["call"]
    generator = _generator(prompts_of("flux")[0])
    stock = _cached(name)(prompt=[prompts_of("flux")[0].text], generator=[generator], **arguments).images[0]
    np.testing.assert_allclose(np.asarray(actual.image, float), np.asarray(stock, float), atol=1)
    generator = _generator(prompts_of("flux")[0])
    uncached = pipeline_of("flux")(prompt=[prompts_of("flux")[0].text], generator=[generator], **arguments).images[0]
    assert np.abs(np.asarray(stock, float) - np.asarray(uncached, float)).max() > 1


def _generator(prompt: Prompt) -> torch.Generator:
    return DenoisingRow(prompt=prompt, seed=SEED, group=0, member=0).generator()


def test_a_cache_enabled_later_is_disabled_too() -> None:
    policy = policy_of("flux")
    rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED)
    policy.pipeline.transformer.enable_cache(CACHES["first-block"]())
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
