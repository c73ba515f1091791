"""Settings that only loading reads are an error next to a loaded model."""

from __future__ import annotations

from typing import Any

import pytest
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.errors import ConfigError
from tests.policies.tiny_language import policy_of as language_policy
from tests.policies.tiny_policies import pipeline_of


@pytest.mark.parametrize(
    "settings",
    [{"attention": "eager"}, {"dtype": "bfloat16"}, {"quantization_config": {"load_in_4bit": True}}],
    ids=str,
)
def test_loading_settings_of_a_loaded_model_raise(settings: dict[str, Any]) -> None:
    policy = language_policy("llama")
    (name,) = settings
    with pytest.raises(
        ConfigError, match=rf"policy\.{name} would have no effect on a model that is loaded: load it so"
    ):
        LanguagePolicy(policy.model, policy.processor, settings)


def test_loading_settings_of_a_loaded_pipeline_raise() -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.dtype, .*would have no effect|policy\.variant, policy\.dtype would"
    ):
        DenoisingPolicy(pipeline_of("sd3"), {"dtype": "bfloat16", "variant": "fp16"})
