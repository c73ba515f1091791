"""Settings with arguments, sizes and components of a pipeline: invalid ones raise before sampling."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxPipeline, StableDiffusion3Pipeline, StableDiffusionPipeline, WanPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.call_form import RowsError, form_of
from mmgrpo.policies.diffusion.policy import load_pipeline
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.diffusion.signature import arguments_of

from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.types import Plan, Prompt
from tests.policies.contract import values
from tests.policies.tiny_policies import pipeline_of, policy_of

SEED = 3


@pytest.mark.parametrize(
    ("name", "argument"),
    [("sd15", "num_images_per_prompt"), ("wan", "num_videos_per_prompt"), ("flux", "num_images_per_prompt")],
)
@pytest.mark.parametrize("section", ["call", "evaluation_call"])
def test_several_results_per_prompt_raise_and_name_group_size(name: str, argument: str, section: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.{section}: {argument} is 2.*set rollout\.group_size"):
        DenoisingPolicy(pipeline_of(name), {section: {argument: 2}})
    assert DenoisingSettings.of({section: {argument: 1}})


def test_several_results_per_prompt_raise_in_plans_and_columns() -> None:
    policy = policy_of("sd15")
    for argument in ("num_images_per_prompt", "num_waveforms_per_prompt"):
        with pytest.raises(ConfigError, match=rf"policy\.columns: {argument}"):
            DenoisingSettings.of({"columns": (argument,)})
    plan = Plan(settings={"call": {"num_images_per_prompt": 3}})
    with pytest.raises(ConfigError, match=r"num_images_per_prompt is 3.*rollout\.group_size"):
        policy.rollout([Prompt("a cat")], group_size=1, seed=SEED, plan=plan)


@pytest.mark.parametrize(("name", "near"), [("sd15", "guidance_scale"), ("flux", "guidance_scale")])
def test_an_unknown_argument_raises_with_the_nearest_name(name: str, near: str) -> None:
    for section in ("call", "evaluation_call"):
        with pytest.raises(ConfigError, match=rf"policy\.{section}: .* has no argument guidance_scal; {near} for"):
            DenoisingPolicy(pipeline_of(name), {section: {"guidance_scal": 2.0}})


@pytest.mark.parametrize("name", ["prompt", "generator"])
def test_arguments_of_rows_raise_as_settings(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.call\.{name}: each row has its own"):
        DenoisingPolicy(pipeline_of("sd15"), {"call": {name: "a cat"}})


def test_a_stored_pipeline_is_validated_before_loading_weights(tmp_path: Path) -> None:
    pipeline_of("sd3").save_pretrained(tmp_path)
    for weights in tmp_path.glob("*/*.safetensors"):
        weights.unlink()
    for settings, message in (
        ({"call": {"heigth": 16}}, "policy.call: the call of StableDiffusion3Pipeline has no argument heigth; height"),
        ({"call": {"steps": 4}}, r"StableDiffusion3Pipeline has no argument steps; num_inference_steps for steps\?"),
        ({"columns": ("prompt_4",)}, "policy.columns: .*prompt_4"),
        ({"components": {"text_encoder_4": None}}, "policy.components: the pipeline has no text_encoder_4; it has"),
    ):
        with pytest.raises(ConfigError, match=message):
            load_pipeline(DenoisingSettings.of({"model": str(tmp_path), **settings}))


def test_names_read_from_kwargs_are_arguments() -> None:
    names = arguments_of(StableDiffusionPipeline.__call__.__wrapped__)
    assert names is not None
    assert {"callback", "callback_steps", "guidance_scale"} <= names
    assert not {"self", "kwargs", "image"} & names

    def passes_on(prompt: str, **kwargs: Any) -> Any:
        return dict(prompt=prompt, **kwargs)

    assert arguments_of(passes_on) is None


def test_image_arguments_that_the_pipeline_ignores_raise() -> None:
    assert not form_of(StableDiffusionPipeline.__call__.__wrapped__, ()).takes("image")


@pytest.mark.parametrize(
    ("name", "kind", "multiple"),
    [
        ("sd15", StableDiffusionPipeline, 2),
        ("sd3", StableDiffusion3Pipeline, 4),
        ("flux", FluxPipeline, 4),
        ("wan", WanPipeline, 8),
    ],
)
def test_an_unsupported_size_raises_with_the_multiple(name: str, kind: type, multiple: int) -> None:
    pipeline, low = pipeline_of(name), 37 // multiple * multiple
    for section in ("call", "evaluation_call"):
        with pytest.raises(ConfigError) as error:
            DenoisingPolicy(pipeline, {section: {"width": 37, "height": 37}})
        assert str(error.value) == (
            f"policy.{section}.width is 37; {kind.__name__} needs a multiple of {multiple}, for example "
            f"{low} or {low + multiple}"
        )
    sizes = {"sizes": [{"width": low, "height": low}, {"width": low, "height": 37}]}
    with pytest.raises(ConfigError, match=r"policy\.buckets\.sizes\[1\]\.height is 37"):
        DenoisingPolicy(pipeline, {"buckets": sizes})


def test_a_call_that_fails_for_one_row_raises(caplog: pytest.LogCaptureFixture) -> None:
    policy = policy_of("sd15", call={"timesteps": [5, 9], "sigmas": [1.0, 0.5]})  # one of them at most
    with caplog.at_level(logging.WARNING, logger="mmgrpo"), pytest.raises(RowsError, match="Only one of `timesteps`"):
        policy.rollout([Prompt("a cat"), Prompt("a dog")], group_size=1, seed=SEED)
    assert not [record for record in caplog.records if "does not take rows as lists" in record.getMessage()]


@pytest.mark.nightly
def test_components_can_be_omitted_or_have_another_dtype(tmp_path: Path) -> None:
    pipeline = pipeline_of("sd3")
    pipeline.save_pretrained(tmp_path)
    components = {"text_encoder_3": None, "tokenizer_3": None, "vae": "float32"}
    values_of = {"model": str(tmp_path), "dtype": "bfloat16", "components": components, "lora": {"rank": 2}}
    call = {"num_inference_steps": 3, "height": 16, "width": 16, "max_sequence_length": 16}
    policy = DenoisingPolicy.from_config({**values_of, "call": call})
    assert policy.pipeline.text_encoder_3 is None
    assert (policy.pipeline.vae.dtype, policy.pipeline.text_encoder.dtype) == (torch.float32, torch.bfloat16)
    rollout = policy.rollout([Prompt("a red fox")], group_size=2, seed=SEED)
    assert torch.equal(values(policy, rollout), rollout.old_logprob_BT)


def test_pipeline_saved_without_components_names_the_setting(tmp_path: Path) -> None:
    pipeline = pipeline_of("sd3")
    pipeline.text_encoder_3 = pipeline.tokenizer_3 = None
    pipeline.save_pretrained(tmp_path)
    nulls = {"text_encoder_3": None, "tokenizer_3": None}
    message = re.escape("policy: {components: {text_encoder_3: null, tokenizer_3: null}} loads it without them")
    with pytest.raises(ConfigError, match=message):
        load_pipeline(DenoisingSettings.of({"model": str(tmp_path)}))
    assert load_pipeline(DenoisingSettings.of({"model": str(tmp_path), "components": nulls})).text_encoder_3 is None


def test_components_need_a_stored_pipeline() -> None:
    settings = {"model": "python:tests.policies.tiny_policies:build_sd3", "components": {"text_encoder_3": None}}
    with pytest.raises(ConfigError, match=r"policy\.components needs a stored pipeline"):
        load_pipeline(DenoisingSettings.of(settings))
    assert issubclass(ConfigError, ValueError)
    assert not issubclass(ConfigError, PolicyError)
