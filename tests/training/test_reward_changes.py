"""The share of the decisions that the rewards of methods change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from mmgrpo import Sample, Trainer, load_config
from mmgrpo.scoring import NamedReward
from mmgrpo.types import Score
from tests.policies.tiny_language import measured_policy_of, prompts_of

SMALL = {
    "steps": 2,
    "rollout.prompts_per_step": 2,
    "rollout.group_size": 4,
    "update.minibatches": 1,
    "runtime.device": "cpu",
    "evaluation.watchdog": {"window": 2},
}


def right(samples: Sequence[Sample]) -> list[float]:
    """The scores 0, 0.25, 0.5 and 1 by place in the group."""
    return [(0.0, 0.25, 0.5, 1.0)[sample.member] for sample in samples]


def longer(samples: Sequence[Sample]) -> list[float | Score | None]:
    return [float(sample.member == 0) for sample in samples]


def lines_and_alerts(folder: Path) -> tuple[list[dict[str, float]], list[str]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    alerts = folder / "alerts.jsonl"
    measured = [json.loads(line)["measured"] for line in alerts.read_text().splitlines()] if alerts.exists() else []
    return lines, [text for text in measured if "no decision is changed" in text]


@pytest.mark.parametrize(
    ("method", "name"), [("arm", "rarity"), ("diver", "unique_formulas"), ("geometryzero", "where_useful")]
)
def test_reward_of_a_method_without_its_marks_raises_an_alert(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], method: str, name: str
) -> None:
    config = load_config(f"methods/{method}", {**SMALL, "output": str(tmp_path)})
    folder = Trainer(measured_policy_of("llama", max_new_tokens=3), right, prompts_of("llama"), config).train()
    lines, alerts = lines_and_alerts(folder)
    assert [line[f"reward/{name}/changed_frac"] for line in lines] == [0.0, 0.0]
    assert len(alerts) == 1
    assert f"reward/{name}/changed_frac" in alerts[0]
    output = capsys.readouterr()
    assert f"by reward/{name} in the first step" in " ".join((output.out + output.err).split())


def test_reward_of_a_method_that_acts_changes_advantages(tmp_path: Path) -> None:
    rewards = [NamedReward("right", right), NamedReward("rarity", longer, from_method="arm")]
    config = load_config("methods/arm", {**SMALL, "output": str(tmp_path)})
    folder = Trainer(measured_policy_of("llama", max_new_tokens=3), rewards, prompts_of("llama"), config).train()
    lines, alerts = lines_and_alerts(folder)
    assert [line["reward/rarity/changed_frac"] for line in lines] == [1.0, 1.0]
    assert "reward/right/changed_frac" not in lines[0]
    assert alerts == []


def test_substitute_of_a_method_changes_advantages(tmp_path: Path) -> None:
    config = load_config("methods/noisy-verifiers", {**SMALL, "output": str(tmp_path)})
    folder = Trainer(measured_policy_of("llama", max_new_tokens=3), right, prompts_of("llama"), config).train()
    lines, alerts = lines_and_alerts(folder)
    assert [line["reward/noisy_verifier/changed_frac"] for line in lines] == [1.0, 1.0]
    assert alerts == []


def test_reward_without_weight_has_no_share(tmp_path: Path) -> None:
    rewards = [NamedReward("right", right), NamedReward("rarity", longer, weight=0.0, from_method="arm")]
    config = load_config("methods/arm", {**SMALL, "steps": 1, "output": str(tmp_path)})
    folder = Trainer(measured_policy_of("llama", max_new_tokens=3), rewards, prompts_of("llama"), config).train()
    (line,), alerts = lines_and_alerts(folder)
    assert line["reward/rarity/mean"] == 0.25
    assert "reward/rarity/changed_frac" not in line
    assert alerts == []
