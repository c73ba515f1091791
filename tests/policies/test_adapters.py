"""Starting from an adapter of another run, peft or diffusers: the same policy, and errors that name the setting."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.utils import convert_state_dict_to_diffusers
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.policies.adapters import DIFFUSERS_FILE
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.language.settings import LanguageSettings
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from mmgrpo.config.loading import validated
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.runs.adapter_files import copy_adapters
from mmgrpo.training.build import build_policy
from mmgrpo.training.trainer import Trainer
from tests.breadth import adapters, assembly
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, move, values
from tests.policies.families import daily
from tests.policies.test_named_weights import DORA, FULL, LORA
from tests.test_trainer import BASE, CALL, brightness, make_policy, weights

CASES = [("sd3", LORA), ("sd3", FULL), ("sd3", DORA), ("llama", LORA), ("llama", FULL), ("llama", DORA)]
DIGITS = "python:tests.policies.test_adapters:speaking_pipeline"
SD_TARGETS = ["to_k", "to_q", "to_v", "to_out.0"]
SMALL = {"rank": 2, "alpha": 4.0, "targets": ["to_q", "to_v"]}


def speaking_pipeline() -> Any:
    """A pipeline whose output is not 0 at first."""
    return make_policy().pipeline


def made(name: str, **settings: Any) -> Any:
    return (tiny_language if name == "llama" else tiny_policies).policy_of(name, **settings)


def trained_weights(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.trainable])


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "settings"), daily(CASES, ("sd3", LORA), ("llama", FULL), ("llama", DORA)))
def test_saved_adapters_are_loaded_by_another_policy(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
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


def test_adapters_that_do_not_fit_raise(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="holds neither pytorch_lora_weights"):
        made("llama", adapter=str(tmp_path), **LORA)
    for name in ("llama", "sd3"):
        made(name, **LORA).save(tmp_path)
        with pytest.raises(
            ConfigError, match=r"has rank 2 at .*; policy\.lora has 1: set policy\.lora\.rank to the largest"
        ):
            made(name, adapter=str(tmp_path), lora={"rank": 1, "alpha": 1.0})
        with pytest.raises(ConfigError, match=r"has dora false, policy\.lora has true: give it the"):
            made(name, adapter=str(tmp_path), **DORA)
    config = validated({"policy": {"name": "denoising", "model": DIGITS, "adapter": str(tmp_path / "none")}})
    with pytest.raises(ConfigError, match=r"policy\.adapter: there is no"):
        build_policy(config, "cpu")


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("name", ["llama", "sd3"])
@pytest.mark.parametrize("lora", [{"rank": 2, "alpha": 8.0}, {"rank": 4, "alpha": 2.0}], ids=["alpha", "rank"])
def test_other_scale_or_higher_rank_adds_the_same(name: str, lora: dict[str, Any], tmp_path: Path) -> None:
    first = made(name, **LORA)
    move(first.trainable)
    first.save(tmp_path)
    second = made(name, adapter=str(tmp_path), lora=lora)
    prompts = (tiny_language if name == "llama" else tiny_policies).prompts_of(name)
    rollout = first.rollout(prompts, group_size=2, seed=1)
    torch.testing.assert_close(values(second, rollout), values(first, rollout), rtol=0, atol=1e-6)
    assert values(made(name, **LORA), rollout).sub(values(first, rollout)).abs().max() > 1e-3
    assert all(gradient.any() for gradient in gradients(second, rollout)[:2])  # rows that the file lacks are trained


def stock_file(tmp_path: Path, **settings: Any) -> tuple[Any, Path]:
    """A U-Net with adapters of peft's, and the folder that diffusers saves them in."""
    pipe = tiny_policies.pipeline_of("sd15")
    pipe.unet.add_adapter(LoraConfig(**{"r": 4, "lora_alpha": 4, "target_modules": SD_TARGETS, **settings}))  # pyrefly: ignore[bad-argument-type]
    with torch.no_grad():
        torch.manual_seed(1)
        for name, parameter in pipe.unet.named_parameters():
            if "lora_" in name:
                parameter.add_(0.2 * torch.randn_like(parameter))
    state, config = get_peft_model_state_dict(pipe.unet), pipe.unet.peft_config["default"].to_dict()
    pipe.save_lora_weights(tmp_path, unet_lora_layers=state, unet_lora_adapter_metadata=config)
    return pipe, tmp_path / DIFFUSERS_FILE


def generated(pipe: Any) -> np.ndarray:
    call = {**tiny_policies.settings_of("sd15")["call"], "output_type": "np"}
    return np.asarray(pipe(prompt=["a cat"], generator=torch.Generator().manual_seed(3), **call).images)


def copied(file: Path) -> dict[str, torch.Tensor]:
    """Copies of the tensors, so that the file can be written again."""
    return {key: value.clone() for key, value in load_file(file).items()}


def rewritten(file: Path, form: str) -> None:
    """The file in another form that diffusers reads, without its header."""
    tensors = copied(file)
    if form == "script":  # diffusers' own training scripts of SD and SDXL
        tensors = convert_state_dict_to_diffusers(tensors)
    if form == "kohya":
        names = {key.split(".lora_")[0] for key in tensors}
        tensors = {
            f"lora_unet_{name.removeprefix('unet.').replace('.', '_')}.{factor}": value
            for name in names
            for factor, value in (
                ("lora_down.weight", tensors[f"{name}.lora_A.weight"]),
                ("lora_up.weight", tensors[f"{name}.lora_B.weight"]),
                ("alpha", torch.tensor(8.0)),
            )
        }
    if form == "bare":  # as save_lora_adapter of the U-Net has them
        tensors = {key.removeprefix("unet."): value for key, value in tensors.items()}
    save_file({key: value.contiguous() for key, value in tensors.items()}, file)


FORMS = {
    "alpha pattern": {"alpha_pattern": {"attn2.to_q": 40, "attn2.to_k": 40}},
    "rank pattern": {"rank_pattern": {"attn2.to_q": 2}, "lora_alpha": 2},
    "rslora": {"use_rslora": True},
    "no header": {"lora_alpha": 16},
    "script": {},
    "kohya": {},
    "bare": {},
}


@pytest.mark.first_case
@pytest.mark.parametrize("form", daily(FORMS, "alpha pattern", "kohya"))
def test_policy_adds_the_adapters_of_the_stock_pipeline(form: str, tmp_path: Path) -> None:
    """Files of diffusers, its training scripts and kohya, with or without a header, at their library's own scale."""
    _, file = stock_file(tmp_path, **FORMS[form])
    if form in ("no header", "script", "kohya", "bare"):
        rewritten(file, form)
    stock = tiny_policies.pipeline_of("sd15")
    untrained = generated(stock)
    if form == "bare":
        stock.unet.load_lora_adapter(tmp_path, prefix=None, weight_name=DIFFUSERS_FILE)
    else:
        stock.load_lora_weights(tmp_path)
    pipe = tiny_policies.pipeline_of("sd15")
    lora = {"rank": 4, "alpha": 8.0, "targets": SD_TARGETS}
    DenoisingPolicy(pipe, {**tiny_policies.settings_of("sd15"), "lora": lora, "adapter": str(tmp_path)})
    assert np.abs(generated(pipe) - generated(stock)).max() < 1e-5
    assert np.abs(generated(stock) - untrained).max() > 1e-2


@pytest.mark.nightly
def test_unreadable_files_raise_with_a_suggested_fix(tmp_path: Path) -> None:
    made("sd15", **LORA).save(tmp_path)
    file = tmp_path / DIFFUSERS_FILE
    data, tensors = file.read_bytes(), copied(file)

    def refusal() -> str:
        with pytest.raises(CheckpointError) as error:
            made("sd15", adapter=str(tmp_path), **LORA)
        return str(error.value)

    file.write_bytes(data[:900])
    assert "(900 bytes) is not a complete safetensors file" in refusal()
    with pytest.raises(CheckpointError, match="is not a complete safetensors file"):
        made("sd15", **LORA).load(tmp_path)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12\n")
    assert "is a git-lfs pointer of 64 bytes in place of the weights: run `git lfs pull`" in refusal()
    first = next(iter(tensors))
    save_file({**tensors, first: torch.full_like(tensors[first], float("nan"))}, file)
    assert f"1 of the {len(tensors)} tensors of {file} hold NaN or infinite numbers ({first})" in refusal()
    save_file({**tensors, "unet.x.lokr_w1": torch.zeros(1)}, file)
    assert "holds LoKr adapters; LoRA is read alone" in refusal()
    save_file({key: value for key, value in tensors.items() if "to_q" in key}, file)
    assert "for the same model set policy.lora.targets: [to_q]" in refusal()


@pytest.mark.parametrize("alpha", [8.0, 3.0])
def test_saved_adapters_are_restored_bitwise_at_any_scale(alpha: float, tmp_path: Path) -> None:
    lora = {"rank": 4, "alpha": alpha}
    first, second = made("sd15", lora=lora), made("sd15", lora=lora)
    move(first.trainable, scale=0.1)
    first.save(tmp_path)
    second.load(tmp_path)
    assert torch.equal(trained_weights(second), trained_weights(first))


@pytest.mark.nightly
@pytest.mark.parametrize("lora", [{"rank": 4, "alpha": 8.0}, {"rank": 4, "alpha": 8.0, "dora": True}])
def test_a_reader_without_the_header_gets_the_scale(lora: dict[str, Any], tmp_path: Path) -> None:
    """alpha / rank is in the factors: diffusers rejects files with keys of alphas, or prefers one of both."""
    policy = made("sd15", lora=lora)
    move(policy.trainable, scale=0.1)
    policy.save(tmp_path)
    save_file(copied(tmp_path / DIFFUSERS_FILE), tmp_path / DIFFUSERS_FILE)
    stock = tiny_policies.pipeline_of("sd15")
    stock.load_lora_weights(tmp_path)
    assert np.array_equal(generated(stock), generated(policy.pipeline))


@pytest.mark.nightly
def test_an_export_has_any_scale_in_its_factors(tmp_path: Path) -> None:
    policy = made("sd15", lora={"rank": 4, "alpha": 3.0})
    move(policy.trainable, scale=0.1)
    saved, exported = tmp_path / "saved", tmp_path / "exported"
    saved.mkdir()
    exported.mkdir()
    policy.save(saved)
    copy_adapters(saved, exported, base=None, revision=None)
    for is_bare in (False, True):
        if is_bare:
            save_file(copied(exported / DIFFUSERS_FILE), exported / DIFFUSERS_FILE)
        stock = tiny_policies.pipeline_of("sd15")
        stock.load_lora_weights(exported)
        assert np.abs(generated(stock) - generated(policy.pipeline)).max() < 1e-5
    begun = made("sd15", lora={"rank": 4, "alpha": 3.0}, adapter=str(exported))
    torch.testing.assert_close(trained_weights(begun), trained_weights(policy), rtol=1e-6, atol=0)


def test_peft_folders_of_components_are_exported(tmp_path: Path) -> None:
    policy = adapters.policy_of("Kandinsky3Pipeline", assembly.build("Kandinsky3Pipeline"))
    saved, exported = tmp_path / "saved", tmp_path / "exported"
    saved.mkdir()
    exported.mkdir()
    policy.weights.store("before")
    policy.save(saved)
    copy_adapters(saved, exported, base=None, revision=None)
    names = sorted(str(path.relative_to(exported)) for path in exported.rglob("*") if path.is_file())
    assert names == [DIFFUSERS_FILE, "unet/adapter_config.json", "unet/adapter_model.safetensors"]


def test_diffusers_reads_no_keys_of_alphas(tmp_path: Path) -> None:
    """Why our files have none."""
    made("sd3", **LORA).save(tmp_path)
    tensors = copied(tmp_path / DIFFUSERS_FILE)
    layer = next(iter(tensors)).split(".lora_")[0]
    save_file({**tensors, f"{layer}.alpha": torch.tensor(2.0)}, tmp_path / DIFFUSERS_FILE)
    with pytest.raises(ValueError, match="Make sure all LoRA param names contain `'lora'` substring"):
        tiny_policies.pipeline_of("sd3").load_lora_weights(tmp_path)


@pytest.mark.nightly
@pytest.mark.parametrize("lora", [SMALL, pytest.param(None, marks=pytest.mark.nightly)], ids=["lora", "full"])
def test_a_second_stage_starts_where_the_first_ended(lora: dict[str, Any] | None, tmp_path: Path) -> None:
    policy = {"name": "denoising", "model": DIGITS, "call": CALL, "lora": lora, "rollout_batch": 8, "update_batch": 8}
    values = {**BASE, "steps": 1, "update": {"optimizer": {"lr": 1e-3}}, "output": str(tmp_path / "one")}
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
