"""Adapters on frozen weights in 4 and 8 bit: the same policy in rollout, update, checkpoint, export and engine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.pipeline_loading import load_pipeline
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.quantization import dequantize_layers, pipeline_quantization, quantized_layers
from peft import get_peft_model_state_dict
from pydantic import ValidationError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

from mmgrpo import Trainer
from mmgrpo.config.loading import find_config, read_layers
from mmgrpo.errors import ConfigError, MissingPackageError
from mmgrpo.values import SAMPLER_LOGPROB
from tests.policies import tiny_language, tiny_policies
from tests.policies.contract import gradients, largest_difference, move, relative_difference, values
from tests.policies.families import daily
from tests.policies.test_engine import connect
from tests.policies.token_server import TokenServer
from tests.test_trainer_language import vowels, weights
from tests.tiny import language_models

pytest.importorskip("bitsandbytes", reason="the extra quantization is not installed")
pytest.importorskip("torchao", reason="the extra quantization is not installed")

LORA = {"rank": 2, "alpha": 4.0}
NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True}
INT8 = {"load_in_8bit": True, "llm_int8_threshold": 0.0}


def torchao(name: str, **arguments: Any) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"name": name, **arguments}}


FORMATS = {
    "nf4": NF4,
    "int8": INT8,
    "torchao-int8": torchao("Int8WeightOnlyConfig"),
    "torchao-int4": torchao("IntxWeightOnlyConfig", weight_dtype="int4"),
    "torchao-fp8": torchao("Float8WeightOnlyConfig"),
}
ROUNDED_INPUTS = {"int8": 0.05}
"""Relative difference of gradients: LLM.int8 rounds the inputs of layers too, to 8 bit; the others compute exactly."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    language_models.save("llama", folder)
    return folder


@pytest.fixture(scope="module")
def sd3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sd3")
    tiny_policies.pipeline_of("sd3").save_pretrained(folder)
    return folder


def language_settings(model: Path, quantization: Mapping[str, Any] | None, **settings: Any) -> dict[str, Any]:
    options = {"max_new_tokens": 5, "temperature": tiny_language.TEMPERATURE, "lora": LORA, **settings}
    return {"model": str(model), "quantization_config": quantization, **options}


def language_policy(model: Path, quantization: Mapping[str, Any] | None = None, **settings: Any) -> LanguagePolicy:
    torch.manual_seed(0)
    return LanguagePolicy.from_config(language_settings(model, quantization, **settings))


def denoising_policy(model: Path, quantization: Mapping[str, Any] | None = None) -> DenoisingPolicy:
    torch.manual_seed(0)
    settings = tiny_policies.settings_of("sd3")
    return DenoisingPolicy.from_config({**settings, "model": str(model), "quantization_config": quantization})


@pytest.mark.parametrize("name", daily(FORMATS, "nf4", "int8"))
def test_language_policy_has_same_layers_in_sampling_and_update(name: str, llama: Path) -> None:
    policy = language_policy(llama, FORMATS[name])
    assert len(quantized_layers(policy.model)) == 14
    assert all(parameter.dtype == torch.float32 for parameter in policy.trainable)
    move(policy.trainable, scale=0.1)
    rollout = policy.rollout(tiny_language.prompts_of("llama"), group_size=2, seed=1)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    quantized = gradients(policy, rollout)
    dequantize_layers(policy.model)
    assert relative_difference(quantized, gradients(policy, rollout)) < ROUNDED_INPUTS.get(name, 1e-4)


def test_gradients_pass_after_a_call_without_grad(llama: Path) -> None:
    """bitsandbytes packs 4-bit weights at such a call on some CPUs, and packed weights pass no gradient."""
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(llama, quantization_config=config, device_map={"": "cpu"})
    with torch.no_grad():
        model(input_ids=torch.tensor([[1, 2, 3]]))
    _, processor = tiny_language.build_llama()
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 4, "lora": LORA})
    move(policy.trainable)
    rollout = policy.rollout(tiny_language.prompts_of("llama"), group_size=2, seed=1)
    quantized = gradients(policy, rollout)
    dequantize_layers(policy.model)
    assert relative_difference(quantized, gradients(policy, rollout)) < 1e-4


def run(model: Path, output: Path, *, resume: Path | None = None, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    config = {
        "output": str(output),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 3},
        "update": {"optimizer": {"lr": 1e-2}},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu"},
    }
    policy = language_policy(model, NF4, **settings)
    trainer = Trainer(policy, {"vowels": vowels}, tiny_language.prompts_of("llama"), config, resume=resume)
    trainer.train()
    return trainer


@pytest.mark.nightly
def test_checkpoints_have_adapters_and_resume_bitwise(llama: Path, tmp_path: Path) -> None:
    complete = run(llama, tmp_path / "complete")
    checkpoint = complete.folder.path / "checkpoints" / "step-000001"
    resumed = run(llama, tmp_path / "resumed", resume=checkpoint)
    assert torch.equal(weights(resumed), weights(complete))
    fresh = torch.cat([parameter.detach().flatten() for parameter in language_policy(llama, NF4).trainable])
    assert float((weights(complete) - fresh).abs().max()) > 1e-3
    (stored,) = (checkpoint / "policy").glob("*.safetensors")
    assert stored.name == "adapter_model.safetensors"


@pytest.mark.parametrize("quantization", [NF4, INT8, torchao("Int8WeightOnlyConfig")], ids=str)
def test_export_merges_into_dequantized_weights(quantization: Mapping[str, Any], llama: Path, tmp_path: Path) -> None:
    policy = language_policy(llama, quantization)
    move(policy.trainable, scale=0.1)
    tokens = torch.tensor([[5, 9, 2, 14, 7, 3]])
    with torch.no_grad():
        trained = policy.model(input_ids=tokens).logits
    policy.export(tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert not quantized_layers(stock)
    assert getattr(stock.config, "quantization_config", None) is None
    with torch.no_grad():
        gap = (stock(input_ids=tokens).logits - trained).norm() / trained.norm()
    assert gap < (0.02 if quantization is INT8 else 1e-5)


@pytest.mark.nightly
def test_engine_gets_dequantized_weights_and_trainer_scores_with_quantized(llama: Path) -> None:
    server = TokenServer(tiny_language.policy_of("llama").model)
    policy = language_policy(llama, NF4)
    move(policy.trainable, scale=0.1)
    rollout = connect(server, policy).rollout(tiny_language.prompts_of("llama"), group_size=3, seed=5)
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    assert len(quantized_layers(policy.model)) == 14
    assert policy.model.hf_quantizer is not None
    server.end()


@pytest.mark.nightly
def test_model_with_quantized_weights_on_disk_is_loaded(llama: Path, tmp_path: Path) -> None:
    config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForCausalLM.from_pretrained(llama, quantization_config=config, device_map={"": "cpu"})
    model.save_pretrained(tmp_path)
    tiny_language.build_llama()[1].save_pretrained(tmp_path)
    stored = language_policy(tmp_path)
    assert len(quantized_layers(stored.model)) == 14
    prompts = tiny_language.prompts_of("llama")
    rollouts = [policy.rollout(prompts, group_size=2, seed=3) for policy in (stored, language_policy(llama, NF4))]
    single = language_policy(llama, {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"})
    expected = single.rollout(prompts, group_size=2, seed=3)
    assert torch.equal(rollouts[0].old_logprob_BT, expected.old_logprob_BT)
    assert not torch.equal(rollouts[1].old_logprob_BT, expected.old_logprob_BT)
    with pytest.raises(ConfigError, match=r"quantized weights already \(bitsandbytes\): remove policy"):
        language_policy(tmp_path, NF4)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"load_in_8bit": True}, "llm_int8_threshold 6: columns of outliers are selected over all rows"),
        ({**NF4, "bnb_4bit_quant": "nf4"}, "BitsAndBytesConfig has no bnb_4bit_quant; it has .*bnb_4bit_quant_type"),
        ({"load_in_4bit": True, "load_in_8bit": True}, "load_in_4bit and load_in_8bit are both True"),
        ({"quant_method": "fewer"}, "Unknown quantization type, got fewer - supported types are:.*torchao"),
        (torchao("Int8WeightOnly"), "torchao has no Int8WeightOnly; it has .*Int8WeightOnlyConfig"),
        (torchao("Int8WeightOnlyConfig", bits=4), "unexpected keyword argument 'bits'"),
        (torchao("Int8DynamicActivationInt8WeightConfig"), "no gradient passes through its quantized layers"),
    ],
    ids=str,
)
def test_unsupported_quantization_raises(quantization: Mapping[str, Any], message: str, llama: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        language_policy(llama, quantization)


def test_full_training_and_sharding_of_quantized_weights_raise(llama: Path) -> None:
    with pytest.raises(ValidationError, match=r"cannot be trained in full: set policy.lora"):
        language_policy(llama, NF4, lora=None)
    policy = language_policy(llama, NF4)
    with pytest.raises(ConfigError, match="model: quantized weights cannot be divided among processes"):
        policy.weights.shard(lambda name, module: None)
    model = AutoModelForCausalLM.from_pretrained(
        llama, quantization_config=BitsAndBytesConfig(load_in_4bit=True), device_map={"": "cpu"}
    )
    with pytest.raises(ConfigError, match=r"model has 14 layers with quantized weights, .*: set policy.lora"):
        LanguagePolicy(model, tiny_language.build_llama()[1], {"lora": None})


def test_quantization_of_a_python_model_raises() -> None:
    settings = {"model": "python:tests.policies.tiny_language:build_llama", "lora": LORA, "quantization_config": NF4}
    with pytest.raises(ConfigError, match="quantize the model in the function of a python: model"):
        LanguagePolicy.from_config(settings)


def adapters_of(policy: DenoisingPolicy) -> dict[str, Tensor]:
    return get_peft_model_state_dict(policy.pipeline.transformer, adapter_name="default")


def bitsandbytes_sd3(kind: str) -> Any:
    """A pipeline with layers of bitsandbytes; the loaders of diffusers replace them on a GPU alone."""
    import bitsandbytes

    pipeline = tiny_policies.pipeline_of("sd3")
    for path, layer in list(pipeline.transformer.named_modules()):
        if isinstance(layer, nn.Linear) and ".attn." in path:
            options: dict[str, Any] = {"bias": layer.bias is not None}
            if kind == "nf4":
                quantized = bitsandbytes.nn.Linear4bit(
                    layer.in_features, layer.out_features, quant_type="nf4", **options
                )
            else:
                quantized = bitsandbytes.nn.Linear8bitLt(
                    layer.in_features, layer.out_features, has_fp16_weights=False, **options
                )
            quantized.load_state_dict(layer.state_dict())
            pipeline.transformer.set_submodule(path, quantized.to("cpu"))
    return pipeline


INDEX = {
    "_class_name": "StableDiffusion3Pipeline",
    "scheduler": ["diffusers", "FlowMatchEulerDiscreteScheduler"],
    "text_encoder": ["transformers", "CLIPTextModelWithProjection"],
    "text_encoder_2": [None, None],
    "text_encoder_3": ["transformers", "T5EncoderModel"],
    "tokenizer": ["transformers", "CLIPTokenizer"],
    "transformer": ["diffusers", "SD3Transformer2DModel"],
    "vae": ["diffusers", "AutoencoderKL"],
}


def test_arguments_of_a_model_apply_to_denoisers_and_large_text_encoders() -> None:
    values = read_layers(find_config("qlora"))["policy"]["quantization_config"]
    mapping = pipeline_quantization(values, INDEX, "bfloat16").quant_mapping
    assert mapping is not None
    libraries = {name: type(value).__module__.partition(".")[0] for name, value in mapping.items()}
    assert libraries == {"text_encoder_3": "transformers", "transformer": "diffusers"}
    assert {(value.bnb_4bit_quant_type, value.bnb_4bit_compute_dtype) for value in mapping.values()} == {  # pyrefly: ignore[missing-attribute]
        ("nf4", torch.bfloat16)
    }


def compute_dtypes(module: nn.Module) -> set[torch.dtype]:
    layers: dict[str, Any] = quantized_layers(module)
    return {layer.compute_dtype for layer in layers.values()}


@pytest.mark.parametrize(
    ("dtype", "arguments", "expected"),
    [
        ("bfloat16", {}, torch.bfloat16),
        ("bfloat16", {"bnb_4bit_compute_dtype": None}, torch.bfloat16),
        ("bfloat16", {"bnb_4bit_compute_dtype": "float32"}, torch.float32),
        ("float32", {}, torch.float32),
        ("float16", {}, torch.float16),
    ],
)
def test_layers_in_4_bit_compute_in_the_dtype_of_the_policy(
    dtype: str, arguments: dict[str, Any], expected: torch.dtype, llama: Path
) -> None:
    policy = language_policy(llama, {"load_in_4bit": True, **arguments}, dtype=dtype)
    assert compute_dtypes(policy.model) == {expected}


@pytest.mark.parametrize(
    ("quantization", "components", "expected"),
    [
        ({"quant_mapping": {"text_encoder_3": NF4}}, {}, torch.bfloat16),
        ({"quant_mapping": {"text_encoder_3": NF4}}, {"text_encoder_3": "float16"}, torch.float16),
        (
            {
                "quant_backend": "bitsandbytes_4bit",
                "quant_kwargs": {"load_in_4bit": True},
                "components_to_quantize": "text_encoder_3",
            },
            {},
            torch.bfloat16,
        ),
    ],
)
def test_components_in_4_bit_compute_in_their_dtype(
    quantization: dict[str, Any], components: dict[str, str], expected: torch.dtype, sd3: Path
) -> None:
    settings = {"model": str(sd3), "quantization_config": quantization, "lora": LORA, "components": components}
    pipeline = load_pipeline(DenoisingSettings.model_validate({**settings, "dtype": "bfloat16"}))
    assert compute_dtypes(pipeline.text_encoder_3) == {expected}


@pytest.mark.nightly
def test_a_pipeline_has_quantized_denoisers_and_large_text_encoders(sd3: Path) -> None:
    policy = denoising_policy(sd3, FORMATS["torchao-int8"])
    quantized = {name for name, part in policy.pipeline.components.items() if isinstance(part, nn.Module)}
    quantized = {name for name in quantized if quantized_layers(policy.pipeline.components[name])}
    assert quantized == {"transformer", "text_encoder_3"}
    rollout = policy.rollout(tiny_policies.prompts_of("sd3")[:1], group_size=2, seed=1)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


@pytest.mark.nightly
def test_text_encoders_of_a_pipeline_are_loaded_in_4_bit(sd3: Path) -> None:
    """As QLoRA has them; diffusers loads its denoiser in 4 bit on a GPU alone."""
    policy = denoising_policy(sd3, {"quant_mapping": {"text_encoder_3": NF4}})
    layers = quantized_layers(policy.pipeline.text_encoder_3)
    assert {type(layer).__name__ for layer in layers.values()} == {"Linear4bit"}
    rollout = policy.rollout(tiny_policies.prompts_of("sd3")[:1], group_size=2, seed=1)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["torchao-int8", "torchao-fp8", "nf4", "int8"], "torchao-int8"))
def test_denoising_policy_has_same_layers_in_sampling_and_update(name: str, sd3: Path, tmp_path: Path) -> None:
    if name.startswith("torchao"):
        policy = denoising_policy(sd3, {"quant_mapping": {"transformer": FORMATS[name]}})
    else:
        policy = tiny_policies.policy_of("sd3", bitsandbytes_sd3(name))
    transformer = policy.pipeline.transformer
    assert len(quantized_layers(transformer)) >= 8
    move(policy.trainable, scale=0.1)
    rollout = policy.rollout(tiny_policies.prompts_of("sd3")[:1], group_size=2, seed=1)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    policy.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pytorch_lora_weights.safetensors"]
    stored = {key: value.clone() for key, value in adapters_of(policy).items()}
    move(policy.trainable, scale=0.1, seed=9)
    policy.weights.load(tmp_path)
    assert all(torch.equal(value, stored[key]) for key, value in adapters_of(policy).items())
    quantized = gradients(policy, rollout)
    dequantize_layers(transformer)
    assert relative_difference(quantized, gradients(policy, rollout)) < ROUNDED_INPUTS.get(name, 1e-4)


@pytest.mark.nightly
def test_pipeline_export_merges_into_dequantized_weights(sd3: Path, tmp_path: Path) -> None:
    policy = denoising_policy(sd3, {"quant_mapping": {"transformer": FORMATS["torchao-int8"]}})
    move(policy.trainable, scale=0.1)
    prompts = tiny_policies.prompts_of("sd3")[:1]
    trained = policy.rollout(prompts, group_size=1, seed=3)
    policy.export(tmp_path)
    stock = DiffusionPipeline.from_pretrained(tmp_path)
    assert not quantized_layers(stock.transformer)
    assert "quantization_config" not in stock.transformer.config
    settings = {**tiny_policies.settings_of("sd3"), "model": str(tmp_path)}
    again = DenoisingPolicy.from_config(settings).rollout(prompts, group_size=1, seed=3)
    latents = [tiny_policies.final_latent(rollout) for rollout in (trained, again)]
    assert float((latents[0] - latents[1]).abs().max()) < 1e-4


@pytest.mark.nightly
def test_pipeline_with_quantized_weights_on_disk_is_loaded(sd3: Path, tmp_path: Path) -> None:
    quantization = {"quant_mapping": {"transformer": FORMATS["torchao-int8"]}}
    settings = {**tiny_policies.settings_of("sd3"), "model": str(sd3), "quantization_config": quantization}
    load_pipeline(DenoisingSettings.of(settings)).save_pretrained(tmp_path)
    stored, loaded = denoising_policy(tmp_path), denoising_policy(sd3, quantization)
    prompts = tiny_policies.prompts_of("sd3")[:1]
    rollouts = [policy.rollout(prompts, group_size=2, seed=3) for policy in (stored, loaded)]
    assert torch.equal(rollouts[0].old_logprob_BT, rollouts[1].old_logprob_BT)


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ({"quant_mapping": {"unet": NF4}}, "the pipeline has no unet; it has .*transformer"),
        ({"quant_backend": "bnb", "quant_kwargs": NF4}, "Provided quant_backend=bnb was not found"),
        (
            {"quant_backend": "bitsandbytes_4bit", "quant_kwargs": {**NF4, "bits": 4}},
            "quant_kwargs: BitsAndBytesConfig has no bits",
        ),
        ({"quant_backend": "bitsandbytes_4bit", "quant_kwargs": NF4}, "No GPU found"),
        ({"load_in_4bit": True}, "No GPU found"),
        ({"load_in_4bit": True, "bits": 4}, "quantization_config: BitsAndBytesConfig has no bits"),
        ({"quant_mapping": {"transformer": {"load_in_4bit": True, "bits": 4}}}, "BitsAndBytesConfig has no bits"),
    ],
    ids=str,
)
def test_unsupported_quantization_of_a_pipeline_raises(
    quantization: Mapping[str, Any], message: str, sd3: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        denoising_policy(sd3, quantization)


def test_a_missing_library_raises_with_the_command_that_installs_it(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingPackageError, match=r"needs the package 'bitsandbytes': .*quantization"):
        language_policy(llama, NF4)
