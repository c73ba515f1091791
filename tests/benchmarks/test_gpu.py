"""The table of one GPU runs on a CPU with tiny models, and its formulas count what torch counts."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from diffusers.models.attention_dispatch import AttentionBackendName
from mmgrpo.policies.quantization import dequantized_weight, quantized_layers
from torch import nn

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.flops import counted, decoder_forward, denoiser_forward
from benchmarks.gpu.flow_grpo import GEOMETRIES, FlowGrpo, Mmgrpo, Times, iterate
from benchmarks.gpu.models import to_nf4
from benchmarks.gpu.rows import Bench
from benchmarks.gpu.sections import (
    OF_PACKAGES,
    OF_TORCH,
    OF_TORCH_ON_CPU,
    SECTIONS,
    TOTAL_S,
    reason_against,
)
from benchmarks.language import CASES, model_and_processor

VLLM_PYTHON = os.environ.get("MMGRPO_VLLM_PYTHON")
FLOW_GRPO = os.environ.get("MMGRPO_FLOW_GRPO")


def run(folder: Path, *names: str, options: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The rows of some sections with tiny models, none of which fails."""
    sizes = ["--tiny", "--device", "cpu", "--rounds", "1", "--budget-factor", "10"]
    assert main([*sizes, "--into", str(folder), *options, "--only", *names]) == 0
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_table_of_a_section_and_of_parts_that_are_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = run(tmp_path, "ceilings", "flow-grpo", "vllm")
    assert [(row["section"], row["case"]) for row in rows] == [
        ("ceilings", "CPU"),
        ("flow-grpo", "flow_grpo"),
        ("vllm", "vLLM"),
    ]
    assert rows[0]["bf16 product TFLOP/s"] == rows[0]["peak TFLOP/s of MFU"] > 0
    printed = capsys.readouterr().out
    assert printed.startswith(
        "| section | case | measured |\n| --- | --- | --- |\n| ceilings | CPU | bf16 product TFLOP/s "
    )
    assert "\n| flow-grpo | flow_grpo | skipped no --flow-grpo FOLDER |\n" in printed
    assert "\n| vllm | vLLM | skipped no --vllm-python PATH of an environment with vLLM (docs" in printed
    assert printed.endswith("failed: nothing\n")


def test_budgets_add_up_to_less_than_the_time_of_a_run() -> None:
    assert sum(section.budget_s for section in SECTIONS.values()) <= TOTAL_S == 25 * 60


def test_run_ends_on_time(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(device="cpu", total_s=0.5)
    bench.run("first", lambda _: time.sleep(30), budget_s=60)
    bench.run("second", lambda _: time.sleep(30), budget_s=60)
    assert "| second | second | skipped no time left in the run |" in capsys.readouterr().out
    assert bench.failed == ["first"]


def test_attention_back_ends_are_those_of_the_transformer() -> None:
    bench = Bench(device="cpu", tiny=True)
    assert {name.value for name in AttentionBackendName} >= {*OF_PACKAGES, *OF_TORCH, *OF_TORCH_ON_CPU}
    assert reason_against(bench, "_native_flash") is None
    reason = reason_against(bench, "_flash_3_hub")
    assert reason is not None
    assert "cannot train FluxTransformer2DModel here" in reason  # not that it has no back ends, as SD3's


def test_linear_layers_are_replaced_by_4_bit_ones() -> None:
    pytest.importorskip("bitsandbytes", reason="the extra quantization is not installed")
    torch.manual_seed(0)
    linear = nn.Linear(256, 128)
    module = nn.ModuleDict({"linear": linear, "norm": nn.LayerNorm(128)})
    to_nf4(module)
    assert list(quantized_layers(module)) == ["linear"]
    weight = dequantized_weight(module["linear"])
    # a block of 64 weights has 16 levels between plus and minus its largest: half of the widest step is 0.15 of it
    assert 0 < float((weight - linear.weight.detach()).abs().max()) < 0.153 * float(linear.weight.detach().abs().max())
    assert module["linear"].bias is linear.bias


@pytest.mark.nightly
def test_denoising_rows_are_exact(tmp_path: Path) -> None:
    rows = run(tmp_path, "ceilings", "sd3")
    cases = ["SD3.5-M 512 px, LoRA, G=8", "SD3.5-M 1024 px, LoRA, G=8", "SD3.5-M 512 px, all weights, G=8"]
    assert [row["case"] for row in rows[1:]] == cases
    # 5, 4 and 5 steps of 8 rows in one pass each; all but the last trained in passes of 8, 2 and 4 rows
    assert [(row["forwards"], row["backwards"]) for row in rows[1:]] == [(5, 4), (4, 12), (5, 8)]
    assert [row["log-prob gap"] for row in rows[1:]] == [0.0, 0.0, 0.0]


@pytest.mark.nightly
def test_language_rows_agree_with_direct_calls(tmp_path: Path) -> None:
    rows = run(tmp_path, "language")
    assert [row["shares prompt"] for row in rows] == [True, True, True]
    # 32 x 32 pixels are 16 tokens
    assert all(row["log-prob gap"] < 1e-5 and row["direct call, max gap"] < 1e-5 for row in rows)


@pytest.mark.nightly
def test_attention_back_ends_are_measured(tmp_path: Path) -> None:
    rows = {row["case"]: row for row in run(tmp_path, "attention")}
    for name in OF_TORCH_ON_CPU:
        row = rows[f"FLUX-dev 1024 px, {name}"]
        assert row["log-prob gap"] == 0.0
        assert row["faster update"] > 0
    assert "kernels" in rows["FLUX-dev 1024 px, _flash_3_hub"]["skipped"]
    assert "flash-attn" in rows["FLUX-dev 1024 px, flash"]["skipped"]
    for name in ("flash_attention_2", "flash_attention_3"):
        assert "doesn't seem to be installed" in rows[f"Qwen2.5-VL-3B, {name}"]["skipped"]
    assert all(rows[f"Qwen2.5-VL-3B, {name}"]["log-prob gap"] < 1e-5 for name in ("the default", "eager"))


@pytest.mark.nightly
def test_quantized_weights_are_measured_against_bf16(tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra quantization is not installed")
    rows = run(tmp_path, "quantized")
    assert [row["case"].rsplit(", ", 1)[1] for row in rows] == ["bf16", "NF4"] * 2
    assert [row["layers in 4 bit"] > 0 for row in rows] == [False, True, False, True]
    assert all(row["log-prob gap"] < 1e-5 for row in rows)
    assert ["update / bf16" in row for row in rows] == [False, True, False, True]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "name", [name for name in SECTIONS if name not in ("sd3", "language", "attention", "quantized")]
)
def test_section_runs(name: str, tmp_path: Path) -> None:
    rows = run(tmp_path, name)
    assert {row["section"] for row in rows} == {name}
    skipped = [row["case"] for row in rows if "skipped" in row]
    assert skipped == {"flow-grpo": ["flow_grpo"], "vllm": ["vLLM"]}.get(name, [])


@pytest.mark.slow
@pytest.mark.skipif(VLLM_PYTHON is None, reason="MMGRPO_VLLM_PYTHON is not set: see test_engine_vllm.py")
def test_vllm_on_the_trainers_device(tmp_path: Path) -> None:
    trainer, server = run(tmp_path, "vllm", options=["--vllm-python", str(VLLM_PYTHON)])
    assert "mismatch max" not in trainer
    assert server["case"] == "Qwen2.5-VL-3B, LoRA, G=8, vLLM, files"
    assert server["mismatch max"] < 1e-4
    assert server["log-prob gap"] < 1e-5
    assert 0 < server["of it weights s"] < server["rollout s"]


@pytest.mark.slow
@pytest.mark.skipif(FLOW_GRPO is None, reason="MMGRPO_FLOW_GRPO, a clone of yifan123/flow_grpo, is not set")
def test_flow_grpo_has_as_many_forwards() -> None:
    bench = Bench(device="cpu", tiny=True)
    geometry = GEOMETRIES["Flow-GRPO-Fast, 10 steps, 3 trained, no guidance"]
    sides = (Mmgrpo(bench, geometry), FlowGrpo(Path(str(FLOW_GRPO)), bench, geometry, torch.float32))
    iterate(bench, sides[0], Times())  # mmgrpo checks replay once
    for side in sides:
        rows: list[int] = []
        denoiser = side.denoiser
        denoiser.register_forward_hook(lambda _, args, output, rows=rows: rows.append(len(output[0])))
        iterate(bench, side, Times())
        assert rows == [8] * (10 + 3)


def test_failure_ends_neither_the_section_nor_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    def work(bench: Bench) -> None:
        with bench.case("first"):
            raise ValueError("no such shape")
        bench.row("second", {"seconds": 1.5})

    bench = Bench(device="cpu")
    bench.run("part", work, budget_s=60)
    printed = capsys.readouterr()
    assert "| part | first | error ValueError: no such shape |\n| part | second | seconds 1.5 |" in printed.out
    assert "raise ValueError" in printed.err
    assert bench.failed == ["part: first"]


SIZES: dict[str, Any] = {"attention_head_dim": 16, "num_attention_heads": 4}


def _sd3() -> tuple[nn.Module, dict[str, Any]]:
    model = SD3Transformer2DModel(
        sample_size=16, num_layers=3, joint_attention_dim=64, caption_projection_dim=64, pooled_projection_dim=8,
        pos_embed_max_size=8, dual_attention_layers=(0,), qk_norm="rms_norm", **SIZES,
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(2, 16, 16, 16),
        "encoder_hidden_states": torch.randn(2, 12, 64),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.ones(2),
    }


def _flux() -> tuple[nn.Module, dict[str, Any]]:
    model = FluxTransformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=2, joint_attention_dim=64, pooled_projection_dim=8,
        axes_dims_rope=(4, 6, 6), **SIZES,
    )  # fmt: skip
    return model, {
        "hidden_states": torch.randn(2, 64, 64),
        "encoder_hidden_states": torch.randn(2, 12, 64),
        "pooled_projections": torch.randn(2, 8),
        "timestep": torch.ones(2),
        "img_ids": torch.zeros(64, 3),
        "txt_ids": torch.zeros(12, 3),
    }


def _wan() -> tuple[nn.Module, dict[str, Any]]:
    model = WanTransformer3DModel(
        in_channels=16, out_channels=16, text_dim=64, freq_dim=16, ffn_dim=192, num_layers=2, **SIZES
    )
    return model, {
        "hidden_states": torch.randn(2, 16, 3, 16, 16),
        "encoder_hidden_states": torch.randn(2, 12, 64),
        "timestep": torch.ones(2, dtype=torch.long),
    }


@pytest.mark.nightly
@pytest.mark.parametrize("make", [_sd3, _flux, _wan])
def test_operations_of_a_denoiser(make: Any) -> None:
    model, call = make()
    # the modulations and the time embedding are a few thousand weights per sample, the most in FLUX
    with torch.no_grad():
        assert 0.9 < denoiser_forward(model, call) / counted(lambda: model(**call)) <= 1.0


@pytest.mark.nightly
def test_operations_of_a_decoder() -> None:
    model, _ = model_and_processor(CASES["text"])
    ids_NL = torch.zeros(2, 100, dtype=torch.long)
    with torch.no_grad():
        measured = counted(lambda: model(input_ids=ids_NL))
    # attention of torch counts every pair, the formula those that are not masked
    assert 0.97 < decoder_forward(model.config, [(100, 0)] * 2, 200) / measured <= 1.0
