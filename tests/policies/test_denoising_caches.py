"""Caches of diffusers. Those enabled on the pipeline: disabled for decisions, used for deterministic samples; that of
``policy.cache``: used at the steps of a rollout that are not trained."""

# diffusers exports lazily.

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
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
from mmgrpo.policies.diffusion.caches import cache_names
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from mmgrpo.policies.diffusion.policy import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt
from tests.policies.approximated_runs import require_separate_calls, run_config, train_on_exact_steps
from tests.policies.contract import gradients, move, relative_difference, sample_difference, values
from tests.policies.tiny_policies import pipeline_of, policy_of, prompts_of, settings_of

SEED = 3
GREEDY = Plan(stochastic=())
RENOISED = Plan(stochastic=(), keep_latents=True, for_rescoring=True)
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


@pytest.mark.nightly
@pytest.mark.first_case
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


@pytest.mark.nightly
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


@pytest.mark.nightly
def test_a_cache_enabled_later_is_disabled_too() -> None:
    policy = policy_of("flux")
    rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED)
    policy.pipeline.transformer.enable_cache(CACHES["first-block"]())
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


STEPS, WINDOW = 8, (2, 3)
FIRST_BLOCK = {"name": "FirstBlockCache", "threshold": 10.0}
ROLLOUT_CACHES: dict[str, dict[str, Any]] = {
    "first-block": FIRST_BLOCK,
    "taylorseer": {"name": "TaylorSeerCache", "cache_interval": 2, "disable_cache_before_step": 1},
    "mag": {
        "name": "MagCache",
        "threshold": 10.0,
        "num_inference_steps": STEPS,
        "mag_ratios": [1.0] * STEPS,
        "retention_ratio": 0.0,
    },
    "pyramid": {
        "name": "PyramidAttentionBroadcast",
        "spatial_attention_block_skip_range": 2,
        "spatial_attention_timestep_skip_range": [-1, 1001],
        "spatial_attention_block_identifiers": ["transformer_blocks", "single_transformer_blocks"],
    },
}


def _caching(cache: dict[str, Any] | None, family: str = "flux", **settings: Any) -> DenoisingPolicy:
    call = {**settings_of(family)["call"], "num_inference_steps": STEPS}
    return policy_of(family, call=call, cache=cache, **settings)


@pytest.mark.nightly
@pytest.mark.parametrize("name", each(*ROLLOUT_CACHES))
@pytest.mark.parametrize("shared", [False, True])
def test_a_rollout_with_a_cache_is_scored_as_it_was_sampled(name: str, shared: bool) -> None:
    plain, policy = _caching(None), _caching(ROLLOUT_CACHES[name])
    plan = Plan(stochastic=WINDOW, same_initial_noise=shared)
    rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
    expected = plain.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
    assert sample_difference(rollout.samples, expected.samples) > 1
    assert rollout.num_forwards < expected.num_forwards
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert torch.equal(values(plain, rollout), rollout.old_logprob_BT)  # by a policy without a cache
    assert relative_difference(gradients(policy, rollout), gradients(plain, rollout)) == 0
    assert cache_names([policy.pipeline.transformer]) == []


def test_forwards_count_the_blocks_that_ran() -> None:
    """Step 0 fills the cache and step 1 uses it; 2 and 3 are trained; 4 fills it again, and 5 to 7 use it."""
    policy = _caching(FIRST_BLOCK)
    rollout = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=Plan(stochastic=WINDOW))
    transformer = policy.pipeline.transformer
    blocks = [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
    skipped = sum(parameter.numel() for block in blocks[1:] for parameter in block.parameters())
    share = 1 - skipped / sum(parameter.numel() for parameter in transformer.parameters())
    assert 0.1 < share < 0.9
    assert rollout.num_forwards == pytest.approx(len(rollout.samples) * (4 + 4 * share), rel=1e-9)


def test_samples_that_are_scored_alone_use_the_cache_at_every_step() -> None:
    """Step 0 fills the cache, and 1 to 7 use it, inside the window too: scouts are not trained on."""
    policy = _caching(FIRST_BLOCK)
    plan = Plan(stochastic=WINDOW)
    trained = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
    scouts = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=replace(plan, trained=False))
    transformer = policy.pipeline.transformer
    blocks = [*transformer.transformer_blocks, *transformer.single_transformer_blocks]
    skipped = sum(parameter.numel() for block in blocks[1:] for parameter in block.parameters())
    share = 1 - skipped / sum(parameter.numel() for parameter in transformer.parameters())
    assert scouts.num_forwards == pytest.approx(len(scouts.samples) * (1 + 7 * share), rel=1e-9)
    again = policy.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan)
    assert sample_difference(trained.samples, again.samples) == 0
    assert torch.equal(values(policy, again), again.old_logprob_BT)


@pytest.mark.nightly
def test_a_run_with_scouts_counts_fewer_forwards_with_a_cache(tmp_path: Path) -> None:
    settings = {"call": {"num_inference_steps": STEPS}}
    strategy = {"name": "two_stage_scouts", "scouts": 3, "best": 1, "worst": 1, "settings": settings}
    rollout = {
        "prompts_per_step": 2,
        "group_size": 2,
        "strategy": strategy,
        "window": {"name": "fixed", "start": 2, "size": 2},
    }
    lines = []
    for cache in (None, FIRST_BLOCK):
        run = {
            "output": str(tmp_path / str(cache is None)),
            "steps": 1,
            "rollout": rollout,
            "runtime": {"device": "cpu"},
        }
        trainer = Trainer(_caching(cache), [Brightness()], prompts_of("flux"), run)
        trainer.train()
        lines += trainer.folder.lines("metrics.jsonl")
    plain, cached = lines
    assert plain["count/forwards_per_sample"] > cached["count/forwards_per_sample"]
    assert cached["policy/on_policy_gap"] == 0
    assert cached["optimizer/grad_norm"] > 0


@pytest.mark.nightly
def test_fewer_steps_after_the_window_use_the_cache_too() -> None:
    """Of 8 steps 2 are trained, and 2 remain after them: the first fills the cache, and the second uses it."""
    plan, tail = Plan(stochastic=(0, 1)), {"frac": 0.5}
    shortened, policy = _caching(None, fast_remainder=tail), _caching(FIRST_BLOCK, fast_remainder=tail)
    rollout, complete = (
        each.rollout(prompts_of("flux"), group_size=2, seed=SEED, plan=plan) for each in (policy, shortened)
    )
    assert complete.num_forwards == 4 * len(complete.samples)
    assert 3 * len(rollout.samples) < rollout.num_forwards < complete.num_forwards
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert torch.equal(rollout.old_logprob_BT[rollout.mask_BT], complete.old_logprob_BT[complete.mask_BT])


ALONE = Plan(stochastic=tuple(range(1, STEPS - 1)))
"""Two steps that are not trained, the first and the last: each fills the cache, and none uses it."""


@pytest.mark.nightly
def test_each_stretch_of_cached_steps_begins_empty() -> None:
    """The last step does not use what the first one stored."""
    policy, plain = _caching(FIRST_BLOCK), _caching(None)
    rollouts = [each.rollout(prompts_of("flux"), group_size=1, seed=SEED, plan=ALONE) for each in (policy, plain)]
    assert sample_difference(rollouts[0].samples, rollouts[1].samples) == 0
    assert rollouts[0].num_forwards == rollouts[1].num_forwards == STEPS * len(rollouts[1].samples)


@pytest.mark.parametrize(
    ("cache", "window", "error"),
    [
        (
            FIRST_BLOCK,
            range(STEPS - 1),
            "1 of 8 steps are not trained, and none .* it fills 1 steps after each trained",
        ),
        (
            ROLLOUT_CACHES["taylorseer"] | {"disable_cache_before_step": 3},
            range(5),
            r"3 of 8 steps .* it fills 3 steps",
        ),
        (
            ROLLOUT_CACHES["mag"] | {"retention_ratio": 1.0},
            (2,),
            r"7 of 8 steps .* all up to step 7, from 0; train fewer",
        ),
    ],
)
def test_window_that_leaves_a_cache_nothing_to_reuse_is_an_error(
    cache: dict[str, Any], window: Sequence[int], error: str
) -> None:
    policy = _caching(cache)
    with pytest.raises(ConfigError, match=rf"policy\.cache: {error}"):
        policy.rollout(prompts_of("flux")[:1], group_size=1, seed=SEED, plan=Plan(stochastic=tuple(window)))


@pytest.mark.nightly
def test_window_that_splits_the_steps_of_a_cache_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = _caching(FIRST_BLOCK)
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        for _ in range(2):
            policy.rollout(prompts_of("flux")[:1], group_size=1, seed=SEED, plan=ALONE)
    assert caplog.text.count("2 of 8 steps are not trained, and none of them reuses what FirstBlockCache stored") == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        shifted = Plan(stochastic=tuple(range(STEPS - 2)))
        rollout = policy.rollout(prompts_of("flux")[:1], group_size=1, seed=SEED, plan=shifted)
    assert "reuses" not in caplog.text
    assert rollout.num_forwards < STEPS


@pytest.mark.nightly
def test_calls_with_and_without_the_prompt_have_separate_caches() -> None:
    call = {**settings_of("wan")["call"], "num_inference_steps": STEPS, "guidance_scale": 3.0}
    require_separate_calls([policy_of("wan", call=call, cache=cache) for cache in (FIRST_BLOCK, None)], STEPS)


@pytest.mark.nightly
def test_rows_of_a_cache_with_an_interval_do_not_depend_on_their_batch() -> None:
    rollouts = [
        _caching(ROLLOUT_CACHES["taylorseer"], rollout_batch=batch).rollout(
            prompts_of("flux"), group_size=2, seed=SEED, plan=Plan(stochastic=WINDOW)
        )
        for batch in (1, 4)
    ]
    assert sample_difference(rollouts[0].samples, rollouts[1].samples) <= 1
    assert rollouts[0].num_forwards == pytest.approx(rollouts[1].num_forwards)


@pytest.mark.nightly
def test_renoised_samples_use_the_cache_and_evaluations_do_not() -> None:
    plain, policy = _caching(None), _caching(FIRST_BLOCK)
    evaluated, expected = (
        each.rollout(prompts_of("flux"), group_size=1, seed=SEED, plan=GREEDY) for each in (policy, plain)
    )
    assert sample_difference(evaluated.samples, expected.samples) == 0
    renoised = policy.rollout(prompts_of("flux"), group_size=1, seed=SEED, plan=RENOISED)
    assert sample_difference(renoised.samples, expected.samples) > 1
    assert renoised.num_forwards < evaluated.num_forwards


@pytest.mark.parametrize(
    ("family", "cache", "error"),
    [
        ("flux", {"name": "FirstBlock"}, "unknown name 'FirstBlock'; use one of FirstBlockCache, TaylorSeerCache"),
        ("flux", {"name": "FirstBlockCache", "limit": 1}, "FirstBlockCache has no limit; it has threshold"),
        ("flux", {"name": "MagCache"}, "MagCache: .*mag_ratios"),
        ("sd3", FIRST_BLOCK, "SD3Transformer2DModel, the pipeline's transformer, takes no cache of diffusers"),
        ("ltx", ROLLOUT_CACHES["taylorseer"], "TaylorSeerCache has no effect on LTXVideoTransformer3DModel"),
    ],
)
def test_a_cache_that_cannot_work_is_an_error(family: str, cache: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=f"policy.cache: {error}"):
        _caching(cache, family)


def test_a_cache_on_the_pipeline_excludes_that_of_the_policy() -> None:
    with pytest.raises(ConfigError, match=r"cannot be enabled on FluxTransformer2DModel.*already been enabled"):
        policy_of("flux", _cached("first-block"), cache=FIRST_BLOCK)


def test_a_cache_does_not_support_compilation() -> None:
    with pytest.raises(ConfigError, match="compile does not support cache"):
        _caching(FIRST_BLOCK, compile=True)


def test_a_cache_that_the_pipeline_gives_no_steps_is_an_error() -> None:
    policy = _caching({"name": "SeaCache", "threshold": 10.0}, "qwen-image")
    with pytest.raises(ConfigError, match="SeaCache needs the step and its noise level"):
        policy.rollout(prompts_of("qwen-image"), group_size=2, seed=SEED, plan=Plan(stochastic=(2,)))


@pytest.mark.nightly
def test_a_run_with_a_cache_trains_on_exact_steps(tmp_path: Path) -> None:
    policy = _caching(FIRST_BLOCK)
    lines = train_on_exact_steps(policy, run_config(policy, tmp_path))
    assert all(2 + 4 < line["count/forwards_per_sample"] < 2 + STEPS for line in lines)  # 2 of updates, 4 to 8 sampled


@pytest.mark.nightly
def test_doctor_measures_ratio_1_with_a_cache() -> None:
    policy = _caching(FIRST_BLOCK)
    config = validated(
        {
            "policy": {"name": "denoising", **policy.settings.model_dump(exclude_unset=True)},
            "rollout": {"window": {"name": "fixed", "start": 2, "size": 2}},
        }
    )
    results = {
        result.check: result for result in examine(config, policy, {"brightness": Brightness()}, prompts_of("flux"))
    }
    assert results["on-policy gap"].ok
    assert results["on-policy gap"].measured.startswith("log-prob 0.0e+00, log-ratio 0.0e+00;")
    assert results["window"].ok
    assert results["window"].measured.startswith("2 of 8 decisions of a sample trained on")


@pytest.mark.parametrize("states", ["sampled", "renoised"])
def test_a_cache_without_an_untrained_step_is_an_error(states: str) -> None:
    policy = {"name": "denoising", "model": "m", "cache": FIRST_BLOCK, "call": {"num_inference_steps": STEPS}}
    config = validated({"policy": policy, "rollout": {"training_states": states}})
    algorithm, sampler = Algorithm.of(config), _caching(FIRST_BLOCK)
    if states == "renoised":
        assert algorithm.window_at(sampler, 0) is None
    else:
        with pytest.raises(ConfigError, match=r"policy\.cache applies to the steps outside rollout\.window"):
            algorithm.window_at(sampler, 0)
