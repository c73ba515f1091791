"""Frozen layers that wait on the meta device: the same bits in rollouts, updates and exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.offloading import layers_of, offloaded_parts
from pydantic import ValidationError
from transformers import AutoModelForCausalLM

from mmgrpo.errors import ConfigError
from mmgrpo.policy import EngineContext
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, move
from tests.policies.test_quantization import NF4
from tests.tiny import language_models

CHECKPOINTED = {"lora": {"rank": 2, "alpha": 2.0}, "gradient_checkpointing": True}


def policy_of(name: str, **settings: Any) -> Any:
    if name == "sd3":
        torch.manual_seed(0)
        policy = tiny_policies.policy_of("sd3", tiny_policies.pipeline_of("sd3"), **CHECKPOINTED, **settings)
    else:
        policy = tiny_language.policy_of(name, **CHECKPOINTED, **settings)
    move(policy.trainable, scale=0.1)
    return policy


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize(
    ("name", "offload"),
    [("llama", True), ("qwen2.5-vl", True), ("sd3", ["transformer", "text_encoder_3", "text_encoder"])],
    ids=str,
)
def test_offloaded_policy_is_bitwise_the_same(name: str, offload: Any) -> None:
    prompts = tiny_policies.prompts_of("sd3") if name == "sd3" else tiny_language.prompts_of(name)
    plain, offloaded = policy_of(name), policy_of(name, offload=offload)
    trained = offloaded.weights.modules["transformer" if name == "sd3" else "model"]
    waiting = [part for part in offloaded_parts(trained) if next(part.parameters()).is_meta]
    assert len(waiting) >= 2 * len(layers_of(trained))
    loaded: list[int] = []
    waiting[-1].register_forward_pre_hook(
        lambda *_: loaded.append(sum(not next(part.parameters()).is_meta for part in waiting))
    )
    rollouts = [policy.rollout(prompts, group_size=2, seed=1) for policy in (plain, offloaded)]
    assert torch.equal(rollouts[0].old_logprob_BT, rollouts[1].old_logprob_BT)
    both = [gradients(policy, rollout) for policy, rollout in zip((plain, offloaded), rollouts, strict=True)]
    pairs = zip(*both, strict=True)
    assert all(torch.equal(first, second) for first, second in pairs)
    assert max(loaded) <= 1  # none of the others has its weights
    assert all(next(part.parameters()).is_meta for part in waiting)


def test_export_loads_offloaded_layers(tmp_path: Path) -> None:
    policy, tokens = policy_of("llama", offload=True), torch.tensor([[5, 9, 2, 14, 7, 3]])
    with torch.no_grad():
        trained = policy.model(input_ids=tokens).logits
    policy.export(tmp_path)
    with torch.no_grad():
        result = AutoModelForCausalLM.from_pretrained(tmp_path)(input_ids=tokens).logits
    assert (result - trained).norm() / trained.norm() < 2e-6


@pytest.mark.nightly
def test_stored_models_load_with_offloaded_layers(tmp_path: Path) -> None:
    language_models.save("llama", tmp_path / "llama")
    tiny_policies.pipeline_of("sd3").save_pretrained(tmp_path / "sd3")
    language = LanguagePolicy.from_config({**CHECKPOINTED, "model": str(tmp_path / "llama"), "offload": True})
    assert len(offloaded_parts(language.model)) >= 14
    settings = {**tiny_policies.settings_of("sd3"), "model": str(tmp_path / "sd3"), "offload": ["text_encoder_3"]}
    denoising = DenoisingPolicy.from_config(settings)
    assert offloaded_parts(denoising.pipeline.text_encoder_3)
    assert not offloaded_parts(denoising.pipeline.transformer)
    assert len(denoising.rollout(tiny_policies.prompts_of("sd3"), group_size=1, seed=1).samples) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora": None}, r"offload: needs policy.lora"),
        ({"gradient_checkpointing": False}, r"needs policy.lora, .* policy.gradient_checkpointing: true"),
        ({"compile": True}, r"offload: a compiled model does not run accelerate's hooks"),
        ({"lora": {"rank": 2, "dora": True}}, r"offload: DoRA reads weights"),
    ],
    ids=str,
)
def test_unsupported_settings_of_a_language_policy_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, ValidationError), match=message):
        tiny_language.policy_of("llama", **{**CHECKPOINTED, "offload": True, **settings})  # pyrefly: ignore[bad-argument-type]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"offload": ["unet"]}, r"the pipeline has no module unet; it has .*transformer"),
        ({"offload": ["transformer"]}, r"offload: transformer needs policy.lora, .*gradient_checkpointing"),
    ],
    ids=str,
)
def test_unsupported_settings_of_a_denoising_policy_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiny_policies.policy_of("sd3", tiny_policies.pipeline_of("sd3"), **settings)


def test_other_owners_of_weights_raise(tmp_path: Path) -> None:
    policy = policy_of("llama", offload=True)
    context = EngineContext(log=tmp_path / "engine.log", is_main=True, run_on_main=lambda function: function())
    engine = policy.use_engine(VllmEngine(url="http://127.0.0.1:9", retries=0), context)
    with pytest.raises(ConfigError, match=r"rollout.engine does not support offloaded layers"), engine:
        pass
    with pytest.raises(ConfigError, match="sharding does not support offloaded layers"):
        policy.shard(lambda name, module: None)
    language_models.save("llama", tmp_path)
    with pytest.raises(ConfigError, match="are quantized, which accelerate does not offload"):
        LanguagePolicy.from_config(
            {**CHECKPOINTED, "model": str(tmp_path), "offload": True, "quantization_config": NF4}
        )
