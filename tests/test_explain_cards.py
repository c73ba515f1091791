"""The sizes of GPUs that ``explain`` states, with the settings that make a run fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.offloading import offloaded_parts
from mmgrpo.policies.quantization import model_quantization, quantized_layers, stored_bytes
from torch import nn

from mmgrpo.config.loading import load_config, validated
from mmgrpo.explain import card_sizes
from mmgrpo.explain.card_sizes import card_rows
from mmgrpo.explain.process_scale import ProcessPlan, ShardingEngine, plan_processes
from tests.policies.families import daily
from tests.policies.test_quantization import FORMATS
from tests.policies.tiny_language import prompts_of
from tests.tiny import language_models

LORA = {"rank": 2, "alpha": 2.0}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    language_models.save("llama", folder)
    return folder


def plan_of(model: Path, **settings: Any) -> ProcessPlan:
    policy = {"name": "language", "model": str(model), "lora": LORA, "max_new_tokens": 16, **settings}
    rollout = {"prompts_per_step": 2, "group_size": 8}
    return plan_processes(validated({"policy": policy, "rollout": rollout}), prompt_tokens=8)


def rows_of(plan: ProcessPlan, monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> dict[str, str]:
    """The rows for cards of so many bytes."""
    monkeypatch.setattr(card_sizes, "GIB", 1)
    monkeypatch.setattr(card_sizes, "USABLE", 1.0)
    monkeypatch.setattr(card_sizes, "CARDS", sizes)
    return dict(card_rows(plan, ShardingEngine.GPUS, lambda line: None))


@pytest.mark.nightly
def test_rows_name_the_settings_with_which_the_run_fits(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(llama)
    memory = plan.memory()
    assert plan.outline.update_rows == 16
    assert memory.update > memory.rollout
    # 16 rows of 2 prompts are 2 x 8 + 16 x 16 = 272 tokens; 8 rows of one prompt are 8 + 8 x 16 = 136
    half = memory.peak - memory.update // 2
    fitting, halved, none = memory.peak, half, memory.resident.total // 4
    rows = rows_of(plan, monkeypatch, [fitting, halved, none])
    assert rows[f"{fitting} GB"].startswith("fits: ")
    assert rows[f"{halved} GB"].startswith("fits with policy.update_tokens=136: ")
    assert rows[f"{none} GB"].startswith("does not fit: ")
    assert "policy.gradient_checkpointing=true" in rows[f"{none} GB"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["language", "denoising"])
def test_checkpointed_layers_change_the_update_alone(name: str, llama: Path) -> None:
    if name == "language":
        plain, checkpointed = plan_of(llama), plan_of(llama, gradient_checkpointing=True)
    else:
        config = load_config("quickstart/digits-image")
        plain = plan_processes(config)
        checkpointed = plan_processes(plain.with_policy(gradient_checkpointing=True))
    assert checkpointed.passes.update != plain.passes.update
    assert checkpointed.passes.rollout == plain.passes.rollout
    assert checkpointed.passes.forward == plain.passes.forward


@pytest.mark.nightly
def test_full_fine_tuning_names_the_optimizer(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(llama, lora=None, gradient_checkpointing=True)
    resident = plan.memory().resident
    (row,) = rows_of(plan, monkeypatch, [resident.total - resident.moments // 4]).values()
    assert "update.optimizer.name=adamw_8bit" in row


@pytest.mark.nightly
@pytest.mark.parametrize("name", daily(["nf4", "int8", "torchao-int8"], "nf4"))
def test_quantized_weights_count_as_they_are_stored(name: str, llama: Path) -> None:
    config = model_quantization(FORMATS[name])
    model = nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.Embedding(4, 4))
    (size,) = stored_bytes(model, config).values()
    ratio = {"nf4": 0.515, "int8": 1.0, "torchao-int8": 1.0}[name]
    assert ratio <= size / 1024**2 < ratio + 0.02
    plain, quantized = plan_of(llama), plan_of(llama, quantization_config=FORMATS[name])
    policy = LanguagePolicy.from_config({"model": str(llama), "quantization_config": FORMATS[name], "lora": LORA})
    assert len(quantized.outline.stored_bytes) == len(quantized_layers(policy.model))
    assert quantized.memory().resident.frozen < plain.memory().resident.frozen
    assert plain.memory().update == quantized.memory().update


@pytest.mark.nightly
def test_offloaded_layers_count_one_at_a_time(llama: Path) -> None:
    settings = {"gradient_checkpointing": True}
    plain, offloaded = plan_of(llama, **settings).memory(), plan_of(llama, offload=True, **settings).memory()
    policy = LanguagePolicy.from_config({"model": str(llama), "offload": True, "lora": LORA, **settings})
    parts = offloaded_parts(policy.model)
    num_bytes = sum(4 * weight.numel() for part in parts for weight in vars(part)["_hf_hook"].weights_map.values())
    assert plain.resident.frozen - offloaded.resident.frozen == num_bytes
    assert offloaded.loaded == num_bytes // 2  # of two equal layers


@pytest.mark.nightly
def test_a_full_cache_of_features_of_media_counts(llama: Path, tmp_path: Path) -> None:
    language_models.save("qwen3-vl", tmp_path)
    memo_bytes = 40_000
    policy = LanguagePolicy.from_config(
        {"model": str(tmp_path), "lora": LORA, "memo_bytes": memo_bytes, "max_new_tokens": 4}
    )
    prompts = [prompt for _ in range(4) for prompt in prompts_of("qwen3-vl")]
    policy.rollout(prompts, group_size=2, seed=0)
    features: Any = policy.path.transformer._features  # pyrefly: ignore
    assert memo_bytes / 2 < features._bytes <= memo_bytes
    cached, none = (plan_of(tmp_path, memo_bytes=size) for size in (memo_bytes, 0))
    assert cached.memory().cached == memo_bytes
    assert cached.memory().peak == none.memory().peak + memo_bytes
    assert plan_of(llama).memory().cached == 0  # it has no encoder
    assert plan_of(tmp_path, lora=None).memory().cached == 0  # and this one is trained
    assert plan_of(tmp_path, lora=None, freeze_vision=True, memo_bytes=memo_bytes).memory().cached == memo_bytes
