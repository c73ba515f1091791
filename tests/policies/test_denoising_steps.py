"""Special steps: learned variance, tokens at separate levels, old default schedulers."""

# diffusers exports lazily and annotates tuples and schedulers more narrowly than it takes them.

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    DDPMScheduler,
    FlowMatchEulerDiscreteScheduler,
    IFPipeline,
    LTXConditionPipeline,
    PNDMScheduler,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from mmgrpo.policies.diffusion import DenoisingPolicy
from PIL import Image

from mmgrpo.types import Plan, Prompt
from mmgrpo.values import DRIFT, from_reference
from tests.breadth import assembly
from tests.breadth.trial import prompts_and_call
from tests.policies.contract import gradients, move, sample_difference, values
from tests.policies.families import daily
from tests.policies.tiny_policies import pipeline_of, policy_of
from tests.tiny.pipelines import build_seeded
from tests.tiny.text_encoders import WIDTH, t5_encoder
from tests.tiny.tokenizers import t5_tokenizer

SEED = 3
LORA = {"rank": 2, "alpha": 2.0}
PROMPTS = [Prompt("a red fox"), Prompt("two blue squares on a table")]


def _picture(size: int = 16) -> Image.Image:
    ramp = np.linspace(0, 255, size * size * 3).reshape(size, size, 3)
    return Image.fromarray(ramp.astype(np.uint8))


def _deep_floyd() -> IFPipeline:
    tokenizer = t5_tokenizer()
    unet = UNet2DConditionModel(
        sample_size=8,
        in_channels=3,
        out_channels=6,
        down_block_types=("ResnetDownsampleBlock2D", "SimpleCrossAttnDownBlock2D"),
        mid_block_type="UNetMidBlock2DSimpleCrossAttn",
        up_block_types=("SimpleCrossAttnUpBlock2D", "ResnetUpsampleBlock2D"),
        block_out_channels=(16, 32),
        layers_per_block=1,
        norm_num_groups=4,
        attention_head_dim=8,
        encoder_hid_dim=WIDTH,
        encoder_hid_dim_type="text_proj",
        cross_attention_dim=WIDTH,
        addition_embed_type="text",
        addition_embed_type_num_heads=2,
        resnet_time_scale_shift="scale_shift",
        time_embedding_type="positional",
        act_fn="gelu",
        cross_attention_norm="group_norm",
        only_cross_attention=False,
    )
    scheduler = DDPMScheduler(
        beta_schedule="squaredcos_cap_v2",
        variance_type="learned_range",
        thresholding=True,
        dynamic_thresholding_ratio=0.95,
        sample_max_value=1.5,
        prediction_type="epsilon",
    )
    return IFPipeline(
        tokenizer=tokenizer,
        text_encoder=t5_encoder(tokenizer),
        unet=unet,
        scheduler=scheduler,
        safety_checker=None,
        feature_extractor=None,
        watermarker=None,
        requires_safety_checker=False,
    )


def _if_policy(**settings: Any) -> DenoisingPolicy:
    call = {"height": 8, "width": 8, "num_inference_steps": 4, "guidance_scale": 4.0, "clean_caption": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DenoisingPolicy(build_seeded(_deep_floyd), {"call": call, "lora": LORA, **settings})


@pytest.mark.nightly
@pytest.mark.parametrize("sampler", daily([None, "ddim", "native"], None, "native"))
def test_learned_variance_equals_the_stock_sampler(sampler: str | None) -> None:
    policy = _if_policy(sampler=sampler)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=SEED, plan=Plan(values=(DRIFT,)))
    assert rollout.mask_BT[0].tolist() == [True, True, True, False]
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert rollout.trace.transitions[0][0].next_state.shape == (1, 3, 8, 8)
    move(policy.trainable)
    assert all(bool(gradient.any()) for gradient in gradients(policy, rollout))


@pytest.mark.nightly
@pytest.mark.parametrize(("sampler", "is_trained"), [("native", True), ("ddim", False)])
def test_learned_variance_is_trained_if_used_in_sampling(sampler: str, is_trained: bool) -> None:
    policy = _if_policy(sampler=sampler, lora=None)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=SEED)
    value = from_reference("gaussian")
    for evaluation in policy.evaluate(rollout, values=[value]):
        assert float(evaluation.values[value].detach().abs().max()) < 1e-6
        evaluation.logprob_BT.sum().backward()
    gradient = policy.pipeline.unet.conv_out.bias.grad
    assert bool(gradient[:3].all())
    assert bool(gradient[3:].any()) == is_trained


@pytest.mark.nightly
def test_shared_noise_supports_learned_variance() -> None:
    policy = _if_policy(sampler="native")
    rollout = policy.rollout(PROMPTS, group_size=2, seed=SEED, plan=Plan(stochastic=(1, 2), same_initial_noise=True))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


def _ltx_condition(**settings: Any) -> DenoisingPolicy:
    parts = pipeline_of("ltx").components
    names = ("vae", "text_encoder", "tokenizer", "transformer")
    pipeline = LTXConditionPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), **{name: parts[name] for name in names}
    )
    return policy_of("ltx", pipeline, **settings)


@pytest.mark.nightly
@pytest.mark.parametrize("guided", [True, False])
def test_tokens_at_other_levels_are_excluded_from_decisions(guided: bool) -> None:
    policy = _ltx_condition(guided=guided)
    image_prompts = [Prompt("a red fox", images=(_picture(32),))]
    rollout = policy.rollout(image_prompts, group_size=2, seed=SEED, plan=Plan(values=(DRIFT,)))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    first = rollout.trace.transitions[0][0]
    assert first.keep is not None
    keep = first.keep.float().mean(-1)[0]
    num_tokens = len(keep)
    assert keep.tolist() == [0.0] * (num_tokens // 2) + [1.0] * (num_tokens // 2)  # the first of two latent frames
    move(policy.trainable)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(policy, rollout))


@pytest.mark.nightly
def test_without_a_condition_every_token_is_a_decision() -> None:
    policy = _ltx_condition()
    rollout = policy.rollout(PROMPTS, group_size=1, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert all(step.keep is None for steps in rollout.trace.transitions for step in steps)


def _with_pndm(kind: Callable[..., Any], **changes: Any) -> Any:
    parts = dict(pipeline_of("sd15").components)
    parts["scheduler"] = PNDMScheduler.from_config(parts["scheduler"].config, skip_prk_steps=True)
    if changes:
        torch.manual_seed(0)
        parts["unet"] = type(parts["unet"]).from_config({**parts["unet"].config, **changes})
    return kind(**parts, requires_safety_checker=False)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("kind", "changes", "call"),
    [
        pytest.param(
            StableDiffusionImg2ImgPipeline, {}, {"strength": 0.8, "num_inference_steps": 5}, marks=pytest.mark.nightly
        ),
        (
            StableDiffusionInpaintPipeline,
            {},
            {"mask_image": _picture().convert("L"), "height": 16, "width": 16, "num_inference_steps": 4},
        ),
        (StableDiffusionInstructPix2PixPipeline, {"in_channels": 8}, {"num_inference_steps": 4}),
    ],
)
def test_the_old_default_scheduler_supports_decisions(kind: Any, changes: dict[str, Any], call: dict[str, Any]) -> None:
    policy = policy_of("sd15", _with_pndm(kind, **changes), without=("height", "width"), sampler=None, call=call)
    rollout = policy.rollout([Prompt("a red fox", images=(_picture(),))], group_size=2, seed=SEED)
    assert rollout.shape == (2, 4)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.nightly), 4])
def test_a_pipeline_that_calls_step_twice_is_exact(batch: int) -> None:
    pipeline = assembly.build("CosmosTextToWorldPipeline")
    _, call = prompts_and_call("CosmosTextToWorldPipeline", pipeline)
    settings = {"call": call, "lora": LORA, "rollout_batch": batch, "update_batch": batch, "strength": 1.0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        policy = DenoisingPolicy(pipeline, settings)
    rollout = policy.rollout(PROMPTS, group_size=2, seed=SEED, plan=Plan(values=(DRIFT,)))
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert rollout.num_forwards == 2 * 3 * 4  # guided, three steps, four rows: nothing is run twice
    move(policy.trainable)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients(policy, rollout))
    quiet = DenoisingPolicy(assembly.build("CosmosTextToWorldPipeline"), {**settings, "strength": 0.0})
    sampled = quiet.rollout(PROMPTS[:1], group_size=1, seed=SEED)
    greedy = quiet.rollout(PROMPTS[:1], group_size=1, seed=SEED, plan=Plan(stochastic=()))
    assert sample_difference(sampled.samples, greedy.samples) <= 1  # without noise its steps are the stock ones
