"""Settings that only loading reads are an error next to a loaded model."""

from __future__ import annotations

from typing import Any

import pytest
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.errors import ConfigError
from tests.policies.tiny_language import policy_of as language_policy
from tests.policies.tiny_policies import pipeline_of

QUANTIZED = {"quantization_config": {"load_in_4bit": True}}


@pytest.mark.parametrize("settings", [{"attention": "eager"}, {"dtype": "bfloat16"}, QUANTIZED], ids=str)
def test_loading_settings_of_a_loaded_model_raise(settings: dict[str, Any]) -> None:
    policy = language_policy("llama")
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"policy\.{name} would have no effect on a model that is loaded"):
        LanguagePolicy(policy.model, policy.processor, settings)


def test_loading_settings_of_a_loaded_pipeline_raise() -> None:
    with pytest.raises(ConfigError, match=r"policy\.variant, policy\.dtype would have no effect"):
        DenoisingPolicy(pipeline_of("sd3"), {"dtype": "bfloat16", "variant": "fp16"})
