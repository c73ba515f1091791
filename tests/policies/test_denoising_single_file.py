"""One-file checkpoints: the pipeline that diffusers loads, and errors with a suggested fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.pipeline_loading import load_pipeline
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.language import LanguagePolicy
from safetensors.torch import load_file, save_file

from mmgrpo.config import RunConfig
from mmgrpo.errors import CheckpointError, ConfigError
from mmgrpo.report.usage_code import FOLDER, BaseModelSource, exported_in, usage
from mmgrpo.training.arguments import with_policy
from tests.policies.contract import move
from tests.policies.tiny_policies import pipeline_of, policy_of, settings_of
from tests.tiny import single_files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A one-file checkpoint, and in its folder the pipeline's configuration without weights."""
    path = tmp_path_factory.mktemp("single")
    pipeline = pipeline_of("sd15")
    single_files.save(pipeline, path / "model.safetensors")
    pipeline.save_pretrained(path / "config")
    for file in (path / "config").rglob("*.safetensors"):
        file.unlink()
    return path


def settings(folder: Path, **values: Any) -> DenoisingSettings:
    samples = {"model": str(folder / "model.safetensors"), "single_file_config": str(folder / "config"), **values}
    return DenoisingSettings(**{key: value for key, value in samples.items() if value is not None})  # pyrefly: ignore[bad-argument-type]


def refusal(folder: Path, **values: Any) -> str:
    with pytest.raises(ConfigError) as error:
        load_pipeline(settings(folder, **values))
    return str(error.value)


@pytest.mark.nightly
def test_a_one_file_checkpoint_equals_its_pipeline(folder: Path) -> None:
    stock, loaded = pipeline_of("sd15"), load_pipeline(settings(folder))
    assert type(loaded) is type(stock)
    for name in ("unet", "vae", "text_encoder"):
        expected, actual = getattr(stock, name).state_dict(), getattr(loaded, name).state_dict()
        assert expected.keys() == actual.keys()
        assert all(torch.equal(value, actual[key]) for key, value in expected.items())
    half = load_pipeline(settings(folder, dtype="bfloat16", components={"vae": "float32"}))
    assert (half.unet.dtype, half.vae.dtype) == (torch.bfloat16, torch.float32)


@pytest.mark.nightly
def test_adapters_trained_on_a_one_file_checkpoint_load_per_model_card(folder: Path, tmp_path: Path) -> None:
    samples = settings_of("sd15")
    policy = DenoisingPolicy.from_config({**settings(folder).model_dump(exclude_unset=True), **samples})
    move(policy.trainable, scale=0.1)
    policy.save(tmp_path)
    base = BaseModelSource(model=policy.settings.model, single_file_config=policy.settings.single_file_config)
    code = usage(exported_in(tmp_path), base)
    assert "StableDiffusionPipeline.from_single_file(" in code
    variables: dict[str, Any] = {}
    exec(code.replace(FOLDER, repr(str(tmp_path))), variables)
    call = {"prompt": ["a cat"], "output_type": "np", **samples["call"]}
    trained, loaded = (
        np.asarray(pipeline(generator=torch.Generator().manual_seed(3), **call).images)
        for pipeline in (policy.pipeline, variables["pipeline"])
    )
    assert np.abs(trained - loaded).max() < 1e-5


def test_a_run_trains_a_one_file_checkpoint(folder: Path) -> None:
    config = with_policy(folder / "model.safetensors", RunConfig())
    assert config.policy is not None
    assert (config.policy.name, config.policy.settings["model"]) == ("denoising", str(folder / "model.safetensors"))


def test_invalid_one_file_checkpoints_raise(folder: Path, tmp_path: Path) -> None:
    policy_of("sd15").save(tmp_path)
    adapters = str(tmp_path / "pytorch_lora_weights.safetensors")
    assert "has adapters and no model: set policy.adapter to it" in refusal(folder, model=adapters)
    other = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(2)}, other)
    message = refusal(folder, model=str(other), single_file_config=None)
    assert "with keys of no one-file checkpoint that diffusers supports (x): set policy.single_file_config" in message
    (tmp_path / "model.ckpt").write_bytes(b"x")
    assert "one-file checkpoints are .safetensors files" in refusal(folder, model=str(tmp_path / "model.ckpt"))
    folder_is_no_file = refusal(folder, model=str(folder / "config"))
    assert "policy.single_file_config needs a one-file checkpoint" in folder_is_no_file


def test_missing_configurations_and_components_raise(folder: Path, tmp_path: Path) -> None:
    message = refusal(folder, single_file_config=str(tmp_path / "nowhere"))
    assert "has weights only; its pipeline's configuration, " in message
    assert "set policy.single_file_config to a folder with its model_index.json" in message
    tensors = load_file(folder / "model.safetensors")
    unet = {key: value for key, value in tensors.items() if key.startswith("model.diffusion_model.")}
    save_file(unet, tmp_path / "unet.safetensors")
    message = refusal(folder, model=str(tmp_path / "unet.safetensors"))
    assert "cannot be loaded as a StableDiffusionPipeline configured as" in message
    assert "if components are missing from the file, build the pipeline in a function" in message


def test_a_truncated_file_raises(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "torn.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"torn\.safetensors \(5,000 bytes\) is not a complete safetensors file"):
        load_pipeline(settings(folder, model=str(tmp_path / "torn.safetensors")))


def test_a_file_raises_as_a_language_model(folder: Path) -> None:
    with pytest.raises(ConfigError, match="it is a file: give the folder with the weights and the configuration"):
        LanguagePolicy.from_config({"model": str(folder / "model.safetensors")})
