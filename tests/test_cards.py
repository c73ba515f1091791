"""The code of a model card, executed for every kind of policy: it loads the policy's weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from torch import Tensor

from mmgrpo.report.usage_code import FOLDER, BaseModelSource, auto_class, exported_in, usage
from tests.breadth import adapters
from tests.policies import test_language_sounds as sounds
from tests.policies import test_unified as unified
from tests.policies import tiny_image_tokens, tiny_language, tiny_masked, tiny_policies
from tests.policies.contract import move
from tests.policies.families import daily

LORA = {"rank": 2, "alpha": 3.0}
TOKENS = torch.tensor([[5, 9, 2, 14, 7, 3]])
QUICK = (
    "StableDiffusionPipeline",
    "StableDiffusion3Pipeline",
    "FluxPipeline",
    "WanImageToVideoPipeline",
    "HunyuanVideo15Pipeline",
    "StableAudioPipeline",
    "Kandinsky3Pipeline",
)
"""One of each way: by the pipeline, by two components, by one, by peft."""

GRAY_LEVEL = 1 / 255
"""Of a pixel, which float32 may round otherwise where weights have other addresses."""


def run_card(folder: Path, base: BaseModelSource) -> tuple[dict[str, Any], str]:
    """The variables that the code leaves, and the code."""
    code = usage(exported_in(folder), base)
    variables: dict[str, Any] = {}
    exec(code.replace(FOLDER, repr(str(folder))), variables)
    return variables, code


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits.float()


MODELS: dict[str, tuple[Callable[..., Any], Callable[[Any], Any], str, str]] = {
    "language": (
        lambda **s: tiny_language.policy_of("llama", **s),
        lambda policy: policy.model,
        "AutoModelForCausalLM",
        "tokenizer = AutoTokenizer",
    ),
    "vision": (
        lambda **s: tiny_language.policy_of("qwen2-vl", **s),
        lambda policy: policy.model,
        "AutoModelForImageTextToText",
        "processor = AutoProcessor",
    ),
    "audio": (
        lambda **s: sounds.hearing(**s),
        lambda policy: policy.model,
        "AutoModelForMultimodalLM",
        "processor = AutoProcessor",
    ),
    "masked": (
        lambda **s: tiny_masked.policy_of("modernbert", **s),
        lambda policy: policy.predictor.model,
        "AutoModelForMaskedLM",
        "tokenizer = AutoTokenizer",
    ),
    "image tokens": (
        lambda **s: tiny_image_tokens.policy_of("chameleon", **s),
        lambda policy: policy.model,
        "AutoModelForImageTextToText",
        "processor = AutoProcessor",
    ),
    "unified": (
        lambda **s: unified.policy_of(**s),
        lambda policy: policy.write.model,
        "AutoModelForImageTextToText",
        "processor = AutoProcessor",
    ),
}


@pytest.mark.each_value
@pytest.mark.parametrize("form", ["adapters", "merged", "full"])
@pytest.mark.parametrize("kind", MODELS)
def test_card_of_a_transformers_model_loads_it(kind: str, form: str, tmp_path: Path) -> None:
    make, model_of, class_name, processor = MODELS[kind]
    policy = make(lora=None if form == "full" else LORA)
    base, folder = tmp_path / "base", tmp_path / "exported"
    folder.mkdir()
    if form == "adapters":
        make(lora=None).export(base)
    untrained = logits_of(model_of(policy))
    move(policy.trainable, scale=0.05)
    trained = logits_of(model_of(policy))
    (policy.save if form == "adapters" else policy.export)(folder)
    variables, code = run_card(folder, BaseModelSource(model=str(base)))
    assert class_name in code
    assert processor in code
    assert (trained - untrained).abs().max() > 1e-3
    assert (logits_of(variables["model"].eval()) - trained).norm() < 3e-6 * trained.norm()
    words = variables.get("tokenizer") or variables["processor"].tokenizer
    assert words("red").input_ids


@pytest.mark.first_case
@pytest.mark.parametrize("named", ["by its base", "by the type of its base", "by its own type"])
def test_class_of_a_vision_model_that_names_none_is_of_its_configuration(named: str, tmp_path: Path) -> None:
    """Adapters that peft wrote for a plain model name no class, and a configuration may lack ``architectures``."""
    base, folder = tmp_path / "base", tmp_path / "exported"
    folder.mkdir()
    policy = tiny_language.policy_of("qwen2-vl", lora=LORA)
    tiny_language.policy_of("qwen2-vl").export(base)
    if named == "by its own type":
        policy.export(folder)
    else:
        policy.save(folder)
        without_key(folder / "adapter_config.json", "auto_mapping")
    if named != "by its base":
        without_key((folder if named == "by its own type" else base) / "config.json", "architectures")
    variables, code = run_card(folder, BaseModelSource(model=str(base)))
    assert "AutoModelForImageTextToText" in code
    assert "AutoModelForCausalLM" not in code
    assert (logits_of(variables["model"].eval()) - logits_of(policy.model)).abs().max() < 1e-5


def without_key(file: Path, key: str) -> None:
    values = json.loads(file.read_text())
    assert values.pop(key) is not None
    file.write_text(json.dumps(values))


def test_class_of_the_part_that_writes_is_its_own() -> None:
    """The index of a model that speaks, too, names another class for the complete model."""
    assert auto_class("Qwen2_5OmniThinkerForConditionalGeneration") == "Qwen2_5OmniThinkerForConditionalGeneration"
    assert auto_class("ClassWithItsOwnCode") == "AutoModel"


@pytest.mark.first_case
@pytest.mark.parametrize("name", QUICK)
def test_card_of_a_pipelines_adapters_loads_every_layer(name: str) -> None:
    assert adapters.differences(*adapters.both(name)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("name", adapters.names())
def test_adapters_of_every_pipeline_load_by_the_code_of_their_card(name: str) -> None:
    policy, stock = adapters.both(name)
    assert adapters.differences(policy, stock) == []
    if name in adapters.BFLOAT16_ALONE:
        with pytest.raises(RuntimeError, match="BFloat16"):
            adapters.outputs(name, stock)
    elif name in adapters.names(called=True):
        assert adapters.output_gap(name, policy, stock) <= GRAY_LEVEL


def image_of(pipeline: Any, name: str) -> np.ndarray:
    call = {**tiny_policies.settings_of(name)["call"], "output_type": "np"}
    return np.asarray(pipeline(prompt=["a cat"], generator=torch.Generator().manual_seed(3), **call)[0])


@pytest.mark.parametrize("name", daily(["sd15", "sd3", "wan"], "sd3"))
def test_stock_pipeline_with_a_cards_adapters_gives_the_policys_outputs(name: str, tmp_path: Path) -> None:
    base, folder = tmp_path / "base", tmp_path / "exported"
    folder.mkdir()
    tiny_policies.pipeline_of(name).save_pretrained(base)
    policy = tiny_policies.policy_of(name, DiffusionPipeline.from_pretrained(base), lora=LORA)
    untrained = image_of(policy.pipeline, name)
    move(policy.trainable, scale=0.1)
    policy.save(folder)
    variables, _ = run_card(folder, BaseModelSource(model=str(base)))
    trained = image_of(policy.pipeline, name)
    assert np.array_equal(image_of(variables["pipeline"], name), trained)
    assert np.abs(untrained - trained).max() > 1e-3


@pytest.mark.each_value
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [LORA, None], ids=["merged", "full"])
def test_card_of_a_complete_pipeline_loads_it_in_its_dtype(lora: Any, dtype: str, tmp_path: Path) -> None:
    """A half-precision pipeline whose text encoders diffusers and transformers would load in two dtypes."""
    loaded = getattr(torch, dtype)
    policy = tiny_policies.policy_of("sd3", tiny_policies.pipeline_of("sd3").to(loaded), lora=lora)
    move(policy.trainable, scale=0.05)
    policy.export(tmp_path)
    variables, code = run_card(tmp_path, BaseModelSource())
    assert f"dtype=torch.{dtype}" in code
    parts = variables["model"].components.items()
    assert {part.dtype for _, part in parts if isinstance(part, torch.nn.Module)} == {loaded}
    assert np.abs(image_of(variables["model"], "sd3") - image_of(policy.pipeline, "sd3")).max() < 1e-5


def test_dtype_of_a_merged_pipeline_is_that_of_all_its_components(tmp_path: Path) -> None:
    policy = tiny_policies.policy_of("sd15", tiny_policies.pipeline_of("sd15").to(torch.bfloat16), lora=LORA)
    policy.export(tmp_path, dtype="float32")
    assert set(exported_in(tmp_path).dtypes.values()) == {"float32"}
    variables, code = run_card(tmp_path, BaseModelSource())
    assert "dtype=torch.float32" in code
    assert np.isfinite(image_of(variables["model"], "sd15")).all()


def test_components_of_unlike_dtypes_are_loaded_in_their_own(tmp_path: Path) -> None:
    pipeline = tiny_policies.pipeline_of("sd15")
    pipeline.unet.to(torch.bfloat16)
    pipeline.save_pretrained(tmp_path)
    variables, code = run_card(tmp_path, BaseModelSource())
    assert '"unet": torch.bfloat16' in code
    assert (variables["model"].unet.dtype, variables["model"].vae.dtype) == (torch.bfloat16, torch.float32)


def test_masked_pipelines_adapters_load_by_their_card(tmp_path: Path) -> None:
    policy = tiny_masked.policy_of("amused", lora={**LORA})
    base, folder = tmp_path / "base", tmp_path / "exported"
    folder.mkdir()
    policy_base: Any = tiny_masked.parts_of("amused")[0]
    policy_base.save_pretrained(base)
    move(policy.trainable, scale=0.05)
    policy.save(folder)
    variables, code = run_card(folder, BaseModelSource(model=str(base)))
    assert "pipeline.transformer.load_lora_adapter" in code
    wanted = policy.predictor.pipeline.transformer.state_dict()  # pyrefly: ignore[missing-attribute]
    loaded = variables["pipeline"].transformer.state_dict()
    pairs = [(value, loaded[key.replace(".default.", ".default_0.")]) for key, value in wanted.items() if "lora" in key]
    assert pairs
    assert all(torch.equal(first, other) for first, other in pairs)


def test_base_is_loaded_as_the_run_loaded_it(tmp_path: Path) -> None:
    policy = tiny_policies.policy_of("sd15", lora=LORA)
    policy.save(tmp_path)
    base = BaseModelSource(model="owner/name", dtype="bfloat16", options={"revision": "a'b", "variant": "fp16"})
    code = usage(exported_in(tmp_path), base)
    assert """from_pretrained('owner/name', dtype=torch.bfloat16, revision="a'b", variant='fp16')""" in code
    assert "from_pretrained('BASE_MODEL', " in usage(exported_in(tmp_path), BaseModelSource(model="python:a:b"))
    parts = BaseModelSource(model="owner/name", components={"vae": "float32", "text_encoder": None}, dtype="bfloat16")
    stated = 'dtype={"default": torch.bfloat16, "vae": torch.float32}, text_encoder=None)'
    assert stated in usage(exported_in(tmp_path), parts)
    single = usage(exported_in(tmp_path), replace(parts, model="a.safetensors", single_file_config="b"))
    assert "from_single_file('a.safetensors', dtype=torch.bfloat16, config='b', text_encoder=None)" in single
    assert "pipeline.vae.to(torch.float32)" in single
    assert isinstance(policy, DenoisingPolicy)


@pytest.mark.parametrize(
    ("merged", "words"), [(False, "loads the original weights"), (True, "were dequantized before")]
)
def test_card_names_the_quantization_of_the_run(merged: bool, words: str, tmp_path: Path) -> None:
    policy = tiny_language.policy_of("llama", lora=LORA)
    (policy.export if merged else policy.save)(tmp_path)
    model, _ = tiny_language.build_llama()
    model.save_pretrained(tmp_path / "base")
    base = BaseModelSource(model=str(tmp_path / "base"), quantization={"load_in_4bit": True})
    variables, code = run_card(tmp_path, base)
    assert code.startswith("# trained on weights quantized by {'load_in_4bit': True};\n# ")
    assert words in code.splitlines()[1]
    assert logits_of(variables["model"]).shape == (1, 6, model.config.vocab_size)
