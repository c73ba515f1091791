"""Starting from what another run, peft or diffusers has left: the same policy, and errors that say what to set."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file

from mmgrpo.config.loading import validated
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.settings import LanguageSettings
from mmgrpo.train.build import build_policy
from mmgrpo.train.trainer import Trainer
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import move, values
from tests.policies.test_kept import DORA, FULL, LORA
from tests.test_trainer import BASE, CALL, brightness, make_policy, weights

CASES = [("sd3", LORA), ("sd3", FULL), ("sd3", DORA), ("llama", LORA), ("llama", FULL), ("llama", DORA)]
DIGITS = "python:tests.policies.test_adapters:speaking_pipeline"
SMALL = {"rank": 2, "alpha": 4.0, "targets": ["to_q", "to_v"]}


def speaking_pipeline() -> Any:
    """A pipeline whose output is not 0 at first."""
    return make_policy().pipeline


def made(name: str, **settings: Any) -> Any:
    return (tiny_language if name == "llama" else tiny_policies).policy_of(name, **settings)


def trained_weights(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.trainable])


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_what_one_saves_another_starts_from(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    first = made(name, **settings)
    move(first.trainable)
    first.save(tmp_path)
    second = made(name, adapter=str(tmp_path), **settings)
    assert torch.equal(trained_weights(second), trained_weights(first))
    prompts = (tiny_language if name == "llama" else tiny_policies).prompts_of(name)
    rollout = second.rollout(prompts, group_size=2, seed=1)
    assert torch.equal(values(second, rollout), values(first, rollout))
    if settings["lora"] is not None:  # the reference without adapters is the model itself
        fresh = made(name, **settings)
        values(fresh, rollout)  # which decides how rows go through the model
        with second.reference(), fresh.reference():
            assert torch.equal(values(second, rollout), values(fresh, rollout))


def test_adapters_of_peft(tmp_path: Path) -> None:
    policy = made("llama", **LORA)
    base = copy.deepcopy(made("llama").model)
    wrapped = get_peft_model(base, LoraConfig(r=2, lora_alpha=2, target_modules=["q_proj"], init_lora_weights=False))
    wrapped.save_pretrained(str(tmp_path))
    with pytest.raises(CheckpointError, match="is of another model or other LoRA settings"):
        made("llama", adapter=str(tmp_path), **LORA)
    begun = made("llama", adapter=str(tmp_path), lora={**LORA["lora"], "targets": ["q_proj"]})
    rollout = policy.rollout(tiny_language.prompts_of("llama"), group_size=2, seed=1)
    merged: Any = wrapped.merge_and_unload()
    plain = LanguagePolicy(merged, policy.processor, {**policy.settings.model_dump(), "lora": None})
    torch.testing.assert_close(values(begun, rollout), values(plain, rollout), rtol=0, atol=1e-5)


def test_adapters_of_diffusers_and_of_peft_for_one_denoiser(tmp_path: Path) -> None:
    first = made("sd3", **LORA)
    move(first.trainable)
    first.save(tmp_path)
    tensors = load_file(tmp_path / "pytorch_lora_weights.safetensors")
    as_peft = {f"base_model.model.{key.removeprefix('transformer.')}": value for key, value in tensors.items()}
    (tmp_path / "peft").mkdir()
    save_file(as_peft, tmp_path / "peft" / "adapter_model.safetensors")
    second = made("sd3", adapter=str(tmp_path / "peft"), **LORA)
    assert torch.equal(trained_weights(second), trained_weights(first))
    file = made("sd3", adapter=str(tmp_path / "pytorch_lora_weights.safetensors"), **LORA)
    assert torch.equal(trained_weights(file), trained_weights(first))
    tensors["text_encoder.x.lora_A.weight"] = torch.zeros(2, 2)
    save_file(tensors, tmp_path / "pytorch_lora_weights.safetensors")
    with pytest.raises(CheckpointError, match="which is of none of the trained components transformer"):
        made("sd3", adapter=str(tmp_path), **LORA)


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither pytorch_lora_weights"):
        made("llama", adapter=str(tmp_path), **LORA)
    for name in ("llama", "sd3"):
        made(name, **LORA).save(tmp_path)
        with pytest.raises(ConfigError, match=r"rank 2, alpha 2, .* policy.lora has 2, 8, false: give it the file's"):
            made(name, adapter=str(tmp_path), lora={"rank": 2, "alpha": 8.0})
    config = validated({"policy": {"name": "denoising", "model": DIGITS, "adapter": str(tmp_path / "none")}})
    with pytest.raises(ConfigError, match=r"policy\.adapter: there is no"):
        build_policy(config, "cpu")


@pytest.mark.parametrize("lora", [SMALL, None], ids=["lora", "full"])
def test_a_second_stage_starts_where_the_first_ended(lora: dict[str, Any] | None, tmp_path: Path) -> None:
    policy = {"name": "denoising", "model": DIGITS, "call": CALL, "lora": lora, "rollout_batch": 8, "update_batch": 8}
    values = {**BASE, "steps": 1, "update": {"lr": 1e-3}, "output": str(tmp_path / "one")}
    config = validated({**values, "policy": policy})
    first = Trainer(build_policy(config, "cpu"), {"brightness": brightness}, digit_prompts(), config)
    first.train()
    for path in (first.folder.path, first.folder.path / "checkpoints" / "step-000001"):
        staged = validated({**values, "policy": {**policy, "adapter": str(path)}, "output": str(tmp_path / "two")})
        begun = build_policy(staged, "cpu")
        assert torch.equal(trained_weights(begun), weights(first))
        assert not torch.equal(trained_weights(begun), trained_weights(build_policy(config, "cpu")))
    second = Trainer(begun, {"brightness": brightness}, digit_prompts(), staged)
    second.train()
    resumed = Trainer(
        build_policy(staged, "cpu"),
        {"brightness": brightness},
        digit_prompts(),
        staged,
        resume=second.folder.path,
    )
    assert torch.equal(weights(resumed), weights(second))


def test_a_full_fine_tune_of_a_language_model_is_a_model(tmp_path: Path) -> None:
    first = made("llama", lora=None)
    move(first.trainable)
    first.save(tmp_path)
    settings = LanguageSettings(model=str(tmp_path / "model"), max_new_tokens=7, lora=None)
    second = LanguagePolicy.from_config(settings)
    assert torch.equal(trained_weights(second), trained_weights(first))
