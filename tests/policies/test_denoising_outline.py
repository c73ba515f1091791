"""The calls that memory and time are estimated of have the shapes of the pipelines' calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion.denoising_outline import AUDIO_TEXT_TOKENS, INPUTS, outline_of
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from torch import Tensor

from tests.breadth import assembly
from tests.tiny.pipelines import PIPELINES

AUDIO = "StableAudioPipeline"


def built(name: str) -> tuple[Any, dict[str, Any]]:
    """A tiny pipeline and the arguments of a call without guidance."""
    if name == AUDIO:
        return assembly.build(name), {**assembly.arguments(name), "prompt": "a fox", "guidance_scale": 1.0}
    return PIPELINES[name].build(), PIPELINES[name].arguments(["a fox"], guided=False)


def shapes(inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: [tuple(part.shape) for part in (value if isinstance(value, tuple) else (value,))]
        for name, value in inputs.items()
        if isinstance(value, (Tensor, tuple))
    }


@pytest.mark.parametrize("name", ["sd3", "flux", "flux-kontext", AUDIO])
def test_estimated_calls_have_the_shapes_of_the_pipeline(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, arguments = built(name)
    calls: list[dict[str, Any]] = []

    def record(module: Any, positional: tuple[Any, ...], named: dict[str, Any]) -> None:
        calls.append(named | ({"hidden_states": positional[0], "timestep": positional[1]} if positional else {}))

    pipeline.transformer.register_forward_pre_hook(record, with_kwargs=True)
    pipeline(**arguments, output_type="latent")
    inputs_of = INPUTS.get(type(pipeline).__name__, INPUTS[type(pipeline.transformer).__name__])
    if name == AUDIO:
        monkeypatch.setattr(
            "mmgrpo.policies.diffusion.denoising_outline.AUDIO_TEXT_TOKENS", pipeline.tokenizer.model_max_length
        )
    scale = getattr(pipeline, "vae_scale_factor", None) or getattr(pipeline, "vae_scale_factor_spatial", 8)
    expected = shapes(calls[0])
    if name.startswith("sd3"):  # its text encoders are smaller than CLIP's 77 tokens
        expected.pop("encoder_hidden_states")
    estimated = shapes(inputs_of(pipeline.transformer.config, arguments, 1, torch.float32, scale))
    assert {key: estimated[key] for key in expected} == expected


def test_sources_of_edits_count_at_the_size_they_are_resized_to() -> None:
    config, call = PIPELINES["flux-kontext"].build().transformer.config, {"height": 512, "width": 256}
    inputs = INPUTS["FluxKontextPipeline"]
    resized, same = (
        inputs(config, {**call, **more}, 2, torch.float32, 8)["hidden_states"] for more in ({}, {"_auto_resize": False})
    )
    assert resized.shape[:2] == (2, 32 * 16 + 64 * 64)
    assert same.shape[:2] == (2, 2 * 32 * 16)


def test_published_sizes_have_their_number_of_parameters() -> None:
    """In billions: 1.06 of Stable Audio Open's denoiser, as its paper (arXiv:2407.14358) has it, and 11.9 of FLUX."""
    sizes = {"height": 512, "width": 512}
    for model, call, billions in (
        ("stabilityai/stable-audio-open-1.0", {"audio_end_in_s": 10.0}, 1.06),
        ("black-forest-labs/FLUX.1-Kontext-dev", sizes, 11.9),
    ):
        settings = DenoisingSettings(model=model, dtype="bfloat16", call={**call, "guidance_scale": 7.0})
        modules = outline_of(settings).modules
        number = sum(parameter.numel() for parameter in modules["transformer"].parameters())
        assert number / 1e9 == pytest.approx(billions, rel=0.01)
    assert AUDIO_TEXT_TOKENS == 128
