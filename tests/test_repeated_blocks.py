"""Passes extrapolated from a shorter model are those of the complete one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import SD3Transformer2DModel
from torch import nn

from mmgrpo.config.loading import validated
from mmgrpo.explain import memory_meter
from mmgrpo.explain.process_scale import ProcessPlan, plan_processes
from mmgrpo.explain.repeated_blocks import repeated_blocks
from tests.tiny import language_models

TYPES = ["sliding_attention", "full_attention"]


def plan_of(folder: Path, **settings: Any) -> ProcessPlan:
    policy = {"name": "language", "model": str(folder), "lora": {"rank": 2}, "max_new_tokens": 16, **settings}
    rollout = {"prompts_per_step": 2, "group_size": 4}
    return plan_processes(validated({"policy": policy, "rollout": rollout}), prompt_tokens=12)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{}, {"gradient_checkpointing": True}, {"lora": None}, {"share_prefix": False}])
@pytest.mark.parametrize(
    ("name", "period", "changes"),
    [
        ("llama", 1, {"num_hidden_layers": 9}),
        ("gemma2", 2, {"num_hidden_layers": 10, "layer_types": TYPES * 5, "sliding_window": 8}),
    ],
)
def test_the_passes_are_those_of_the_complete_model(
    name: str,
    period: int,
    changes: dict[str, Any],
    settings: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    language_models.save(name, tmp_path)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    extrapolated = plan_of(tmp_path, **settings)
    repeated = repeated_blocks(extrapolated.outline.sharded)
    assert repeated is not None
    assert (len(repeated.blocks), repeated.period) == (changes["num_hidden_layers"], period)
    monkeypatch.setattr(memory_meter, "repeated_blocks", lambda _: None)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert plan_of(tmp_path, **settings).passes == extrapolated.passes


def test_blocks_that_differ_are_not_extrapolated() -> None:
    sizes: dict[str, Any] = {"num_attention_heads": 1, "attention_head_dim": 8, "joint_attention_dim": 8}
    sizes |= {"caption_projection_dim": 8, "pooled_projection_dim": 8, "in_channels": 4, "pos_embed_max_size": 4}
    with torch.device("meta"):
        last_differs = SD3Transformer2DModel(sample_size=4, num_layers=9, **sizes)
        equal = nn.ModuleList([nn.Linear(4, 4) for _ in range(9)])
        wider = nn.ModuleList([nn.Linear(4, 4) for _ in range(8)] + [nn.Linear(4, 4, bias=False)])
        few = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    assert repeated_blocks([last_differs]) is None
    assert repeated_blocks([equal]) is not None
    assert repeated_blocks([wider]) is None
    assert repeated_blocks([few]) is None
    assert repeated_blocks([equal, equal]) is None  # the model may use one of two lists
    equal[4].requires_grad_(False)
    assert repeated_blocks([equal]) is None
