"""Complete models exported for their libraries: the stock class that loads them gives the policy's outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from mmgrpo.policies.masked import MaskedPolicy
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

from mmgrpo.errors import ConfigError
from mmgrpo.policy import SupportsExport
from mmgrpo.types import Plan
from tests.policies import tiny_language, tiny_masked, tiny_policies
from tests.policies.contract import move
from tests.policies.families import daily
from tests.policies.test_named_weights import DORA, FULL, LORA

TOKENS = torch.tensor([[5, 9, 2, 14, 7, 3]])
GREEDY = Plan(stochastic=())


def logits_of(model: Any) -> Tensor:
    with torch.no_grad():
        return model(input_ids=TOKENS).logits


@pytest.mark.each_value
@pytest.mark.parametrize("settings", [FULL, LORA, DORA])
@pytest.mark.parametrize(
    ("name", "stock"), [("llama", AutoModelForCausalLM), ("qwen2-vl", AutoModelForImageTextToText)]
)
def test_a_language_model_is_read_by_its_stock_class(
    name: str, stock: Any, settings: dict[str, Any], tmp_path: Path
) -> None:
    policy = tiny_language.policy_of(name, **settings)
    untrained = logits_of(policy.model)
    move(policy.trainable, scale=0.1)
    policy.weights.store("before", decay=0.0)  # further adapters, which are no part of what is written
    trained = logits_of(policy.model)
    policy.export(tmp_path)
    result = stock.from_pretrained(tmp_path)
    assert type(result) is type(policy.model)
    assert not [key for key in result.state_dict() if "lora" in key or "base_layer" in key]
    gap = (logits_of(result) - trained).norm() / trained.norm()
    assert gap < 2e-6 if settings["lora"] else gap == 0  # the sum of weight and adapters is rounded to float32
    assert (trained - untrained).abs().max() > 0.1
    assert AutoTokenizer.from_pretrained(tmp_path)("how many").input_ids == policy._tokenizer("how many").input_ids  # pyrefly: ignore[not-callable]
    assert result.generation_config.eos_token_id == policy.model.generation_config.eos_token_id


@pytest.mark.first_case
@pytest.mark.parametrize("settings", [FULL, LORA, DORA])
@pytest.mark.parametrize("name", daily(["sd3", "sd15"], "sd3"))
def test_a_pipeline_is_read_by_diffusers(name: str, settings: dict[str, Any], tmp_path: Path) -> None:
    policy = tiny_policies.policy_of(name, **settings)
    prompts = tiny_policies.prompts_of(name)[:1]
    untrained = policy.rollout(prompts, group_size=1, seed=3, plan=GREEDY).samples[0]
    move(policy.trainable, scale=0.1)
    rollout = policy.rollout(prompts, group_size=1, seed=3, plan=GREEDY)
    policy.export(tmp_path)
    stock: Any = DiffusionPipeline.from_pretrained(tmp_path)
    assert type(stock) is type(policy.pipeline)
    call = tiny_policies.settings_of(name)["call"]
    images = stock(prompt=[prompts[0].text], generator=[rollout.trace.rows[0].generator()], **call).images[0]
    trained = np.asarray(rollout.samples[0].image).astype(int)
    assert np.abs(np.asarray(images).astype(int) - trained).max() <= (1 if settings["lora"] else 0)
    assert np.abs(np.asarray(untrained.image).astype(int) - trained).max() > 5


def test_the_dtype_is_that_of_the_model_or_the_requested_one(tmp_path: Path) -> None:
    for dtype, expected in ((None, torch.float32), ("bfloat16", torch.bfloat16)):
        policy = tiny_language.policy_of("llama", lora=LORA["lora"])
        policy.export(tmp_path, dtype=dtype)
        assert AutoModelForCausalLM.from_pretrained(tmp_path, dtype="auto").dtype == expected


def test_models_that_no_library_loads_raise(tmp_path: Path) -> None:
    policy = tiny_masked.policy_of("amused", lora=None)
    assert isinstance(policy, SupportsExport)
    with pytest.raises(ConfigError, match="export does not support masked pipelines"):
        policy.export(tmp_path)
    assert isinstance(policy, MaskedPolicy)
    assert list(tmp_path.iterdir()) == []
