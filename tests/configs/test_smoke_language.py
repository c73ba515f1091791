"""Every recipe of a vision-language model trains on rows of its own form, with a tiny model of its own class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import load_config
from mmgrpo.data.prompts import load_prompts_of
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.train.build import build_rewards
from mmgrpo.train.trainer import Trainer
from tests.policies.tiny_language import picture
from tests.tiny.language_models import make

SHRUNK: dict[str, Any] = {
    "steps": 1,
    "rollout.prompts_per_step": 4,
    "rollout.group_size": 2,
    "policy.dtype": "float32",
    "policy.max_new_tokens": 6,
    "runtime.device": "cpu",
}
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "clevr": ("qwen2.5-vl", {"prompt": "How many circle?", "image": "0.png", "answer": "3"}),
    "geometry3k": ("qwen2.5-vl", {"problem": "<image>Find x.", "images": ["0.png"], "answer": "3"}),
    "refcoco": ("qwen3-vl", {"prompt": "the red square", "image": "0.png", "answer": [1, 2, 9, 12]}),
    "gui": (
        "qwen2.5-vl",
        {"prompt": "open it", "image": "0.png", "answer": {"action": "click", "bbox": [1, 2, 9, 12]}},
    ),
}
RECIPES = {
    "clevr": "recipes/qwen2.5-vl-clevr-count",
    "geometry3k": "recipes/qwen2.5-vl-geometry3k",
    "refcoco": "recipes/qwen3-vl-refcoco",
    "gui": "recipes/qwen2.5-vl-gui",
}


@pytest.mark.parametrize("data", RECIPES)
def test_recipe_trains(data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model_name, row = ROWS[data]
    picture(24, 16).save(tmp_path / "0.png")
    for file in (f"{data}.jsonl", f"{data}_held_out.jsonl"):
        (tmp_path / file).write_text("".join(json.dumps(row) + "\n" for _ in range(4)))
    config = load_config(RECIPES[data], SHRUNK | {"output": str(tmp_path)})
    assert config.policy is not None
    assert config.prompts is not None
    model, processor = make(model_name)
    settings = {name: value for name, value in config.policy.numbers.items() if name not in ("model", "processor")}
    policy = LanguagePolicy(model, processor, settings)
    prompts = load_prompts_of(config.prompts)
    assert all(len(prompt.images) == 1 for prompt in prompts)
    folder = Trainer(policy, build_rewards(config.rewards), prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == config.update.epochs * config.update.minibatches
    for reward in config.rewards:
        assert lines[0][f"reward/{reward.name}/applies_frac"] == 1.0
    assert lines[0]["policy/on_policy_gap"] < 1e-5
    assert lines[0]["completions/max_length"] <= 6
    assert config.evaluation is not None
    judged = [json.loads(line) for line in (folder / "evaluation.jsonl").read_text().splitlines()]
    assert [line["step"] for line in judged] == [0, 1]
    assert {f"eval/{reward.known_as}/mean" for reward in config.evaluation.rewards} <= set(judged[0])
