"""The table of one GPU runs on a CPU with tiny models, and its formulas count what torch counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FluxTransformer2DModel, SD3Transformer2DModel, WanTransformer3DModel
from torch import nn

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.flops import counted, decoder_forward, denoiser_forward
from benchmarks.gpu.rows import Bench
from benchmarks.gpu.sections import SECTIONS
from benchmarks.language import CASES, model_and_processor

pytestmark = pytest.mark.nightly  # `.ci/run` has ten minutes


def run(folder: Path, *names: str) -> list[dict[str, Any]]:
    assert (
        main(
            [
                "--tiny",
                "--device",
                "cpu",
                "--rounds",
                "1",
                "--budget-factor",
                "10",
                "--into",
                str(folder),
                "--only",
                *names,
            ]
        )
        == 0
    )
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


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


@pytest.mark.slow
def test_all_sections_run(tmp_path: Path) -> None:
    names = [name for name in SECTIONS if name not in ("compile", "attention")]
    assert {row["section"] for row in run(tmp_path, *names)} == set(names)


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


@pytest.mark.parametrize("make", [_sd3, _flux, _wan])
def test_operations_of_a_denoiser(make: Any) -> None:
    model, call = make()
    # the modulations and the time embedding are a few thousand weights per sample, the most in FLUX
    with torch.no_grad():
        assert 0.9 < denoiser_forward(model, call) / counted(lambda: model(**call)) <= 1.0


def test_operations_of_a_decoder() -> None:
    model, _ = model_and_processor(CASES["text"])
    ids_NL = torch.zeros(2, 100, dtype=torch.long)
    with torch.no_grad():
        measured = counted(lambda: model(input_ids=ids_NL))
    # attention of torch counts every pair, the formula those that are not masked
    assert 0.97 < decoder_forward(model.config, [(100, 0)] * 2, 200) / measured <= 1.0
