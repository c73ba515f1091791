"""Runs of papers with an environment train a tiny language model on conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config.loading import load_config
from mmgrpo.training.build import build_rewards
from mmgrpo.training.trainer import Trainer
from tests.environments.test_search import CITIES, written
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import prompts_of
from tests.rewards.sandboxed import needs_sandbox

pytestmark = needs_sandbox

SMALL: Mapping[str, Any] = {
    "steps": 2,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "rollout.max_turns": 2,
    "update.minibatches": 1,
    "update.optimizer.lr": 1e-3,
    "runtime.device": "cpu",
    "advantage.zero_variance_groups": "keep",
}


def local_search(name: str, folder: Path) -> dict[str, Any]:
    """The environment of a run with a corpus in the folder."""
    environment = load_config(f"papers/{name}").rollout.environment
    assert environment is not None
    corpus = str(written(folder / "cities.jsonl", CITIES))
    numbers = dict(environment.numbers)
    if environment.name == "combined":
        search, *others = numbers["parts"]
        numbers["parts"] = [{**search, "corpus": corpus}, *others]
    else:
        numbers = {key: value for key, value in numbers.items() if key != "url"} | {"corpus": corpus}
    return {"name": environment.name, **numbers}


Columns = Mapping[str, Any]

RUNS: Mapping[str, tuple[Callable[[str, Path], dict[str, Any]], Columns, Columns]] = {
    "tapo": (local_search, {"answer": "7", "fact": "Oslo"}, {"value": 0.5, "estimate": 200}),
    "veri-r1": (local_search, {"answer": "SUPPORT", "evidence": ["Oslo"]}, {"answer": "REFUTE", "evidence": []}),
}
"""The environment of each run and the columns of its two rows."""


@pytest.mark.parametrize("name", RUNS)
def test_run_trains_on_conversations(name: str, tmp_path: Path) -> None:
    environment, *columns = RUNS[name]
    settings = {**SMALL, "rollout.environment": environment(name, tmp_path), "output": str(tmp_path / "run")}
    config = load_config(f"papers/{name}", settings)
    prompts = [replace(prompt, columns=row) for prompt, row in zip(prompts_of("llama"), columns, strict=True)]
    policy = terse("llama", max_new_tokens=80)
    folder = Trainer(policy, build_rewards(config.rewards), prompts, config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"] for line in lines} == {1, 2}
    assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)
    assert all(line["optimizer/grad_norm"] < float("inf") for line in lines)
