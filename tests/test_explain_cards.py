"""The sizes of GPUs that ``explain`` states, with the settings that make a run fit."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.policies.offloading import offloaded_parts
from mmgrpo.policies.quantization import model_quantization, quantized_layers, stored_bytes
from torch import nn

from mmgrpo.config.loading import load_config, validated
from mmgrpo.errors import ConfigError
from mmgrpo.explain import card_sizes
from mmgrpo.explain.card_sizes import card_rows
from mmgrpo.explain.operator_times import MachineSpeed
from mmgrpo.explain.process_scale import ProcessPlan, ShardingEngine, plan_processes, scale_rows
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


def plan_of(model: Path, *, engine: dict[str, Any] | None = None, **settings: Any) -> ProcessPlan:
    policy = {"name": "language", "model": str(model), "lora": LORA, "max_new_tokens": 16, **settings}
    rollout: dict[str, Any] = {"prompts_per_step": 2, "group_size": 8}
    if engine is not None:
        rollout["engine"] = {"name": "vllm", **engine}
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
    config = model_quantization(FORMATS[name], "float32")
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
    features: Any = policy.path.transformer._features  # pyrefly: ignore[missing-attribute]
    assert memo_bytes / 2 < features._bytes <= memo_bytes
    cached, none = (plan_of(tmp_path, memo_bytes=size) for size in (memo_bytes, 0))
    assert cached.memory().cached == memo_bytes
    assert cached.memory().peak == none.memory().peak + memo_bytes
    assert plan_of(llama).memory().cached == 0  # it has no encoder
    assert plan_of(tmp_path, lora=None).memory().cached == 0  # and this one is trained
    assert plan_of(tmp_path, lora=None, freeze_vision=True, memo_bytes=memo_bytes).memory().cached == memo_bytes


def served(**settings: Any) -> dict[str, Any]:
    """A server that the run starts, with the half of a GPU."""
    return {"python": sys.executable, "options": ["--gpu-memory-utilization=0.5"], **settings}


def test_a_server_generates_and_the_trainer_scores(llama: Path) -> None:
    plain, plan = plan_of(llama), plan_of(llama, engine=served())
    before, memory = plain.memory(), plan.memory()
    assert before.rollout > 0 == memory.rollout
    assert (before.scoring, memory.resident, memory.update) == (0, before.resident, before.update)
    assert plan.passes.forward is not None
    assert memory.scoring == plan.passes.forward.num_bytes < memory.update
    seconds, seconds_before = plan.seconds(MachineSpeed()), plain.seconds(MachineSpeed())
    assert (seconds.rollout, seconds.update) == (0.0, seconds_before.update)
    scoring_s = MachineSpeed().batched(plan.passes.forward.work, rows=16, batch_size=16)
    assert seconds.views == pytest.approx(seconds_before.views + scoring_s)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("engine", "words"),
    [
        (served(), "may be on the first process's GPU and then takes 0.5 of it (--gpu-memory-utilization)"),
        (served(options=["--gpu_memory_utilization", "0.25"]), "takes 0.25 of it"),
        (served(options=[]), "takes 0.92 of it"),
        (served(sleep=True), "; it sleeps while the trainer scores and updates"),
        (served(options=["--kv-cache-memory-bytes", "1G"]), "does not limit its memory, which is not counted"),
        (served(variables={"CUDA_VISIBLE_DEVICES": "1"}), "CUDA_VISIBLE_DEVICES=1, so its memory is not counted"),
        (served(variables={"CUDA_VISIBLE_DEVICES": "0"}, transfer="ipc"), "takes 0.5 of it"),
        ({"url": "http://127.0.0.1:9"}, "is at http://127.0.0.1:9, on this GPU or on another one, so its memory is"),
    ],
)
def test_the_place_of_a_server_is_stated(engine: dict[str, Any], words: str, llama: Path) -> None:
    rows = dict(scale_rows(plan_of(llama, engine=engine), MachineSpeed(), ShardingEngine.GPUS))
    assert rows["server"].startswith("generates the samples; it ")
    assert words in rows["server"]
    assert "rollout of" not in rows["memory"]
    assert rows["time"].startswith(tuple("0123456789"))
    assert " a step without rewards and without the server's completions: views" in rows["time"]


@pytest.mark.nightly
def test_a_share_that_is_none_raises(llama: Path) -> None:
    for options in (["--gpu-memory-utilization"], ["--gpu-memory-utilization=30"]):
        with pytest.raises(ConfigError, match=r"--gpu-memory-utilization is a share of the GPU, above 0 and up to 1"):
            plan_of(llama, engine=served(options=options))


def test_trainer_and_server_share_a_card(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(llama, engine=served())
    memory = plan.memory()
    resident, weights = memory.resident.total - memory.resident.gradients, plan.num_weights * 4
    # half of 2 P is left for the peak P; of 1.6 P it is 0.375 of the card, in steps of 0.01 down to 0.37
    fitting, smaller, small = 2 * memory.peak, int(1.6 * memory.peak), 2 * weights
    assert 0.37 * smaller > weights
    rows = rows_of(plan, monkeypatch, [fitting, smaller, small])
    assert rows[f"{fitting} GB"] == f"fits: {memory.peak:.1f} GiB and {memory.peak:.1f} GiB of the server"
    server_bytes = int(0.37 * smaller)
    assert rows[f"{smaller} GB"] == (
        "fits with --gpu-memory-utilization in rollout.engine.options at most 0.37: "
        f"{memory.peak:.1f} GiB and {server_bytes:.1f} GiB of the server"
    )
    assert rows[f"{small} GB"].startswith("does not fit: the server takes ")
    assert rows[f"{small} GB"].endswith("; raise --gpu-memory-utilization in rollout.engine.options")
    asleep = rows_of(plan_of(llama, engine=served(sleep=True)), monkeypatch, [memory.peak])
    assert asleep[f"{memory.peak} GB"] == f"fits: {memory.peak:.1f} GiB and {memory.peak // 2:.1f} GiB of the server"
    # while it generates it has at most all but the resident 0.11 of the card
    assert 0.1 < resident / memory.peak < 0.11
    (row,) = rows_of(plan_of(llama, engine=served(sleep=True, options=[])), monkeypatch, [memory.peak]).values()
    assert row.startswith("fits with --gpu-memory-utilization in rollout.engine.options at most 0.89: ")
    uncounted = plan_of(llama, engine={"url": "http://127.0.0.1:9"})
    (row,) = rows_of(uncounted, monkeypatch, [memory.peak]).values()
    assert row == f"fits: {memory.peak:.1f} GiB without the server"


@pytest.mark.nightly
def test_layers_do_not_wait_on_the_host_with_a_server(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine, offloads in ((None, True), ({"url": "http://127.0.0.1:9"}, False)):
        (row,) = rows_of(plan_of(llama, engine=engine, gradient_checkpointing=True), monkeypatch, [1000]).values()
        assert ("policy.offload" in row) == offloads, row
