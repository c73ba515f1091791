"""Trained weights: precision, saving and loading."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import SD3Transformer2DModel, WanPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.types import Plan
from mmgrpo.values import DRIFT
from tests.policies.contract import gradients, move, relative_difference, values
from tests.policies.families import daily, families
from tests.policies.tiny_policies import final_latent, parameters_of, pipeline_of, policy_of, prompts_of, settings_of

SEED = 3
GREEDY = Plan(stochastic=())
FULL = {"lora": None}


@pytest.mark.first_case
@pytest.mark.each_value
@pytest.mark.parametrize("name", ["sd15", pytest.param("sd3", marks=pytest.mark.nightly), "flux"])
@pytest.mark.parametrize("lora", [{"rank": 2, "alpha": 3.0}, {"rank": 2, "alpha": 3.0, "dora": True}])
def test_adapters_load_into_the_stock_pipeline(name: str, lora: dict[str, Any], tmp_path: Path) -> None:
    policy = policy_of(name, lora=lora)
    untrained = policy.rollout(prompts_of(name)[:1], group_size=1, seed=SEED, plan=GREEDY).samples[0]
    move(policy.trainable, scale=0.1)
    rollout = policy.rollout(prompts_of(name)[:1], group_size=1, seed=SEED, plan=GREEDY)
    policy.save(tmp_path)
    stock = pipeline_of(name)
    stock.load_lora_weights(tmp_path)
    call = settings_of(name)["call"]
    expected = stock(prompt=[prompts_of(name)[0].text], generator=[rollout.trace.rows[0].generator()], **call).images[0]
    trained = rollout.samples[0]
    assert np.array_equal(np.asarray(trained.image), np.asarray(expected))
    assert not np.array_equal(np.asarray(trained.image), np.asarray(untrained.image))


def test_the_reference_disables_adapters() -> None:
    policy = policy_of("sd3")
    move(policy.trainable, scale=0.1)
    prompts = prompts_of("sd3")[:1]
    with policy.reference():
        rollout = policy.rollout(prompts, group_size=1, seed=SEED, plan=GREEDY)
    call = settings_of("sd3")["call"]
    stock = pipeline_of("sd3")(prompt=[prompts[0].text], generator=[rollout.trace.rows[0].generator()], **call)
    assert np.array_equal(np.asarray(rollout.samples[0].image), np.asarray(stock.images[0]))


@pytest.mark.nightly
def test_the_frozen_copy_survives_save_and_load(tmp_path: Path) -> None:
    policy = policy_of("sd3", **FULL)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    with policy.reference():
        assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    move(policy.trainable, scale=0.01)
    trained_BT = values(policy, rollout)
    policy.save(tmp_path)

    resumed = policy_of("sd3", **FULL)
    move(resumed.trainable, scale=0.02, seed=9)  # whatever it was, the checkpoint says what it is
    resumed.load(tmp_path)
    assert torch.equal(values(resumed, rollout), trained_BT)
    with resumed.reference():
        assert torch.equal(values(resumed, rollout), rollout.old_logprob_BT)
    with resumed.weights.using("reference"):
        copies = resumed.weights.active_copies
        assert copies.keys() == {"transformer"}
        assert not any(p.requires_grad for copied in copies.values() for p in copied.parameters())
    stock = SD3Transformer2DModel.from_pretrained(tmp_path / "transformer")
    for name, parameter in stock.named_parameters():
        assert torch.equal(parameter, dict(policy.pipeline.transformer.named_parameters())[name])


def test_a_full_fine_tune_trains_every_weight_of_the_denoiser() -> None:
    policy = policy_of("sd3", **FULL)
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert [id(p) for p in policy.trainable] == [id(p) for p in policy.pipeline.transformer.parameters()]
    # The last block throws its text stream away, so the queries of it alone reach nothing.
    names = [name for name, _ in policy.pipeline.transformer.named_parameters()]
    idle = {name for name, actual in zip(names, gradients(policy, rollout), strict=True) if not actual.any()}
    last = "transformer_blocks.1.attn."
    assert idle == {last + "add_q_proj.weight", last + "add_q_proj.bias", last + "norm_added_q.weight"}
    assert sum(p.requires_grad for p in parameters_of(policy)) == len(policy.trainable)


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["sd15", "sd3", "wan"], "sd3"))
def test_bfloat16_is_exact_on_policy(name: str) -> None:
    policy = policy_of(name, pipeline_of(name).to(torch.bfloat16))
    assert {p.dtype for p in policy.trainable} == {torch.float32}
    rollout = policy.rollout(prompts_of(name), group_size=2, seed=SEED, plan=Plan(values=(DRIFT,)))
    assert final_latent(rollout).dtype == (
        torch.float32 if name == "wan" else torch.bfloat16
    )  # Wan's latents never are
    assert rollout.old_logprob_BT.dtype == torch.float32
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    assert not rollout.trace.run_ghosts
    assert all(t[0].mean.dtype == torch.float32 for t in rollout.trace.transitions)
    move(policy.trainable)
    actual = gradients(policy, rollout)
    assert all(torch.isfinite(gradient).all() for gradient in actual)
    # SD3's last block throws its text stream away: the two factors on the queries of it reach nothing
    assert sum(not gradient.any() for gradient in actual) == (2 if name == "sd3" else 0)


@pytest.mark.nightly
def test_a_full_fine_tune_of_a_half_precision_pipeline_keeps_float32_masters() -> None:
    policy = policy_of("sd3", pipeline_of("sd3").to(torch.bfloat16), **FULL)
    assert {p.dtype for p in policy.trainable} == {torch.float32}
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    with policy.reference():
        assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    actual = gradients(policy, rollout)
    assert all(torch.isfinite(gradient).all() for gradient in actual)
    assert {gradient.dtype for gradient in actual} == {torch.float32}
    assert sum(not gradient.any() for gradient in actual) == 3  # the idle ones of the last block


@pytest.mark.nightly
@pytest.mark.parametrize("name", families("drawing", ["sd15", "sd3", "flux", "z-image", "wan"]))
def test_gradient_checkpointing_changes_no_gradient(name: str) -> None:
    plain, thrifty = policy_of(name), policy_of(name, gradient_checkpointing=True)
    rollout = plain.rollout(prompts_of(name), group_size=2, seed=SEED)
    for policy in (plain, thrifty):
        move(policy.trainable)
    assert torch.equal(values(plain, rollout), values(thrifty, rollout))
    assert relative_difference(gradients(thrifty, rollout), gradients(plain, rollout)) < 1e-6


@pytest.mark.nightly
def test_a_saved_pipeline_is_loaded_and_restored(tmp_path: Path) -> None:
    model, checkpoint = tmp_path / "model", tmp_path / "checkpoint"
    checkpoint.mkdir()
    pipeline_of("sd3").save_pretrained(model)
    settings = {"model": str(model), **settings_of("sd3")}
    policy, other = (DenoisingPolicy.from_config(settings) for _ in range(2))
    rollout = policy.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    torch.testing.assert_close(
        rollout.old_logprob_BT,
        policy_of("sd3").rollout(prompts_of("sd3"), group_size=2, seed=SEED).old_logprob_BT,
        rtol=1e-6,
        atol=1e-6,
    )
    move(policy.trainable)
    policy.save(checkpoint)
    other.load(checkpoint)
    assert torch.equal(values(policy, rollout), values(other, rollout))
    half = DenoisingPolicy.from_config({**settings, "dtype": "bfloat16"})
    assert half.pipeline.transformer.dtype == torch.bfloat16


def test_a_pipeline_from_a_python_function_is_supported() -> None:
    settings = {"model": "python:tests.policies.tiny_policies:build_sd3", "lora": {"targets": ("to_q",)}}
    policy = DenoisingPolicy.from_config(settings)
    assert type(policy.pipeline).__name__ == "StableDiffusion3Pipeline"
    assert len(policy.trainable) == 2 * 2  # two factors in each of two blocks


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "policy.model is not set"),
        ("python:nowhere", "must be python:module:function"),
        ("python:tests.policies.tiny_policies:missing", "must be python:module:function; .*missing"),
        ("/no/such/folder", "'/no/such/folder' cannot be loaded as a diffusers pipeline"),
    ],
)
def test_models_that_cannot_be_loaded_raise(model: str | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DenoisingPolicy.from_config({"model": model})


def test_checkpoints_of_another_kind_raise(tmp_path: Path) -> None:
    lora, full = tmp_path / "lora", tmp_path / "full"
    lora.mkdir()
    full.mkdir()
    policy_of("sd3").save(lora)
    policy_of("sd3", **FULL).save(full)
    with pytest.raises(CheckpointError, match="was it a full fine-tune"):
        policy_of("sd3").load(full)
    with pytest.raises(CheckpointError, match="was the checkpoint made with LoRA"):
        policy_of("sd3", **FULL).load(lora)
    with pytest.raises(CheckpointError, match="is of another model or other LoRA settings"):
        policy_of("sd3", lora={"rank": 4}).load(lora)
    with pytest.raises(CheckpointError, match="is of another model"):
        policy_of("flux").load(lora)


@pytest.mark.parametrize("targets", [("query",), ("to_q", "query", "to_k")])
def test_lora_targets_without_matches_list_the_layers(targets: tuple[str, ...]) -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.lora\.targets: query match no module of transformer .*to_k, to_out|to_k"
    ) as refusal:
        policy_of("sd3", lora={"targets": targets})
    assert "to_q" in str(refusal.value)


@pytest.mark.nightly
def test_a_pipeline_with_adapters_raises_until_they_are_fused(tmp_path: Path) -> None:
    donor = policy_of("sd3")
    move(donor.trainable, scale=0.1)
    donor.save(tmp_path)
    pipe = pipeline_of("sd3")
    pipe.load_lora_weights(tmp_path)
    for lora in ({"rank": 2}, None):
        with pytest.raises(ConfigError, match=r"transformer already carries adapters.*pipe.fuse_lora\(\)") as refusal:
            policy_of("sd3", pipe, lora=lora)
    exec(str(refusal.value).split("first: ")[1], {"pipe": pipe})
    policy = policy_of("sd3", pipe)
    fused = policy.rollout(prompts_of("sd3"), group_size=1, seed=SEED)
    torch.testing.assert_close(values(donor, fused), fused.old_logprob_BT, rtol=1e-4, atol=1e-4)


@pytest.mark.nightly
def test_two_experts_train_at_their_steps(tmp_path: Path) -> None:
    def build() -> Any:
        pipeline = pipeline_of("wan")
        low = copy.deepcopy(pipeline.transformer)
        move(list(low.parameters()), scale=0.01)
        parts = {**pipeline.components, "transformer_2": low}
        return WanPipeline(**parts, boundary_ratio=0.9)  # 4 steps at 999, 900, 749, ...: the first alone is noisy

    policy, other = policy_of("wan", build()), policy_of("wan", build())
    rollout = policy.rollout(prompts_of("wan"), group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
    move(policy.trainable)
    half = len(policy.trainable) // 2
    first = gradients(policy, rollout.keep(torch.arange(4).expand(4, 4) == 0))
    assert all(gradient.any() for gradient in first[:half])
    assert not any(gradient.any() for gradient in first[half:])
    third = gradients(policy, rollout.keep(torch.arange(4).expand(4, 4) == 2))
    assert not any(gradient.any() for gradient in third[:half])
    assert all(gradient.any() for gradient in third[half:])
    policy.save(tmp_path)
    other.load(tmp_path)
    assert torch.equal(values(other, rollout), values(policy, rollout))


@pytest.mark.nightly
def test_adapters_start_at_zero_for_any_initialization() -> None:
    gaussian, kaiming = (policy_of("sd3", lora={"rank": 2, "init": init}) for init in ("gaussian", "kaiming"))
    assert not torch.equal(gaussian.trainable[0], kaiming.trainable[0])
    rollout = gaussian.rollout(prompts_of("sd3"), group_size=2, seed=SEED)
    for policy in (gaussian, kaiming):
        assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)
