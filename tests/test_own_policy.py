"""A policy of another package: found by its entry points, checked by the laws, trained, reported."""

from __future__ import annotations

import importlib
import json
import re
import runpy
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from mmgrpo import policy
from mmgrpo.cli import app
from mmgrpo.config.loading import find_config, load_config
from mmgrpo.config.registry import decides, is_scheduled, names, resolve, settings_type
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.doctor.examination import examine
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy
from mmgrpo.testing import LAWS, Subject
from mmgrpo.training.build import build_policy, build_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.policy_package import PAGE, PROJECT, page_blocks, put_on_path

SMALL = [
    "policy.chunks=2", "policy.denoising_steps=3", "policy.width=16", "update.warmup.steps=2",
    "update.warmup.batch_size=4", "update.warmup.examples.num=8", "steps=2",
    "rollout.prompts_per_step=4", "rollout.group_size=3",
    "evaluation.prompts.limit=3", "evaluation.every=1", "checkpoint.every=1", "update.optimizer.schedule=constant",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path_factory.mktemp("site"), monkeypatch)


def configured(*overrides: str, path: Path = PROJECT / "push.yaml") -> Any:
    return load_config(path, [*SMALL, *overrides])


def trainer(config: Any, **more: Any) -> Trainer:
    """Of a policy that is to move to the right, which is seen at once."""
    rewards = {"right": lambda samples: [float(sample.array[-1, 0]) for sample in samples]}
    return Trainer(build_policy(config, "cpu"), rewards, load_prompts_of(config.prompts), config, **more)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
def test_it_keeps_the_laws(law: Callable[[Subject], None]) -> None:
    law(runpy.run_path(str(PROJECT / "tests" / "test_laws.py"))["SUBJECT"])


def test_names_and_settings_are_found_without_the_policy() -> None:
    assert names("policies")["action_chunks"] == "diffusion_policy.chunk_policy:ChunkPolicy"
    assert settings_type("action_chunks").__name__ == "ChunkSettings"
    assert (is_scheduled("action_chunks"), decides("action_chunks")) == (True, "denoising")
    assert "diffusion_policy.chunk_policy" not in sys.modules
    assert resolve("policies", "action_chunks").settings_type is settings_type("action_chunks")


def test_settings_are_typed() -> None:
    with pytest.raises(ConfigError, match=r"policy \(action_chunks\): unknown key 'chunk'; did you mean chunks"):
        build_policy(configured("policy.chunk=3"), "cpu")


def test_methods_for_other_policies_raise() -> None:
    with pytest.raises(ConfigError, match="is for tokens, and the policy action_chunks is for denoising policies"):
        load_config(PROJECT / "push.yaml", methods=["methods/aepo"])


def test_an_unknown_kind_of_policy_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_type("action_chunks"), "decides", "actions")
    assert configured().about.method is None
    with pytest.raises(
        ConfigError, match="settings of action_chunks say decides = 'actions'; methods are for tokens, "
    ):
        configured(path=PROJECT / "push_dppo.yaml")


@pytest.mark.nightly
def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    uninterrupted = trainer(configured(f"output={tmp_path / 'whole'}"))
    uninterrupted.train()
    part = trainer(configured(f"output={tmp_path / 'part'}", "steps=1"))
    part.train()
    resumed = trainer(configured(f"output={tmp_path / 'part'}"), resume=part.folder.path)
    resumed.train()
    for ours, other in zip(uninterrupted.policy.trainable, resumed.policy.trainable, strict=True):
        assert torch.equal(ours, other)
    rows = [json.loads(line) for line in (uninterrupted.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["optimizer/grad_norm"] > 0 for row in rows)
    assert max(abs(row["policy/on_policy_gap"]) for row in rows) < 1e-5
    folder = uninterrupted.folder.path / "samples" / "step-000002"
    with Image.open(folder / "0000.png") as picture:
        assert picture.size == (128, 128)
    assert (folder / "0000.npy").exists()
    assert "data:image/png" in (uninterrupted.folder.path / "report.html").read_text()


@pytest.mark.parametrize("variant", ["push_dppo", "push_chunks"])
def test_custom_and_shared_methods_train_it(variant: str, tmp_path: Path) -> None:
    progress = "[{name: push_progress, chunks: 2, denoising_steps: 3}]"
    settings = [f"output={tmp_path}", "evaluation=null", f"rewards={progress}"]
    config = configured(*settings, path=PROJECT / f"{variant}.yaml")
    near = replace(load_prompts_of(config.prompts)[0], columns={"start": [0.0, 0.0, 0.0, 0.2]})
    run = Trainer(build_policy(config, "cpu"), build_rewards(config.rewards), [near], config)
    run.train()
    rows = [json.loads(line) for line in (run.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert all(row["optimizer/grad_norm"] > 0 for row in rows)


def test_its_method_is_included_by_name_and_listed() -> None:
    config = configured(path=PROJECT / "push_dppo.yaml")
    assert config.about.method is not None
    assert config.about.method.name == "dppo-episodes"
    assert [named.settings["each"] for named in config.objective.modulations] == ["segment", "segment"]
    assert find_config("methods/dppo-episodes") == PROJECT / "diffusion_policy" / "dppo_episodes.yaml"


def test_a_sample_starts_at_the_column_of_the_command_line(tmp_path: Path) -> None:
    common = ["sample", str(PROJECT / "push.yaml"), "from here", "--out", str(tmp_path), "--count", "2"]
    called = CliRunner().invoke(app, [*common, "--column", "start=[0.1, 0.5, 0.0, -0.2]", "policy.chunks=2"])
    assert called.exit_code == 0, called.output
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "0000.npy", "0000.png", "0001.npy", "0001.png", "samples.jsonl", "sheet.png"
    ]  # fmt: skip
    path_NS = torch.from_numpy(np.load(tmp_path / "0000.npy"))
    assert path_NS.shape == (9, 4)
    assert path_NS[0].tolist() == pytest.approx([0.1, 0.5, 0.0, -0.2])
    without = CliRunner().invoke(app, [*common, "policy.chunks=2"])
    assert "the column start holds x and y of the pusher and of the block, got None" in without.stderr
    wrong = CliRunner().invoke(app, [*common, "--column", "start"])
    assert "--column is written key=value (label=3), got 'start'" in wrong.stderr


def test_the_simulator() -> None:
    simulator = importlib.import_module("diffusion_policy.simulator")
    state_BS = torch.tensor([[0.0, 0.0, 0.25, 0.0], [0.95, 0.0, -0.5, 0.0], [0.0, 0.0, 0.0, 0.25]])
    action_BA = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, -1.0]])
    # 0.1 to the right leaves 0.15 between centres that touch at 0.2; the edge is at 1; away from the block
    expected_BS = torch.tensor([[0.1, 0.0, 0.3, 0.0], [1.0, 0.0, -0.5, 0.0], [0.0, -0.1, 0.0, 0.25]])
    torch.testing.assert_close(simulator.step(state_BS, action_BA), expected_BS)
    rewards = importlib.import_module("diffusion_policy.push_rewards")
    x, y = simulator.GOAL
    path_NS = torch.tensor([[0, 0, x, y - 0.5], [0, 0, x, y - 0.3], [0, 0, x, y - 0.3], [0, 0, x, y - 0.09]])
    sample = Sample(Prompt("x"), 0, 0, array=torch.cat([path_NS, path_NS[-1:].repeat(3, 1)]))
    (pushed,), (progress,) = rewards.Pushed()([sample]), rewards.PushProgress(chunks=3, denoising_steps=4)([sample])
    assert (pushed.value, pushed.explanation) == (1.0, {"reason": "0.09 from the goal"})
    assert progress.value == pytest.approx(0.41)
    assert [(scope.start, scope.end) for scope in progress.scopes] == [(0, 4), (4, 8), (8, 12)]
    assert [scope.value for scope in progress.scopes] == pytest.approx([0.2, 0.21, 0.0])


def test_experts_reach_their_goals() -> None:
    tasks, simulator = (importlib.import_module(f"diffusion_policy.{name}") for name in ("push_tasks", "simulator"))
    ends_BS = torch.stack([example.array[-1, :4] for example in tasks.demonstrations(200)])
    at_goal, at_decoy = (
        (ends_BS[:, 2:] - torch.tensor(place)).norm(dim=1) < simulator.TOLERANCE
        for place in (simulator.GOAL, simulator.DECOY)
    )
    assert float((at_goal | at_decoy).float().mean()) > 0.9
    assert 0.3 < float(at_goal.float().mean()) < 0.5  # a share of 0.4 by default


def test_the_doctor_finds_no_fault() -> None:
    config = configured("objective.kl.divergence=gaussian", "objective.kl.beta=0.1")
    policy = build_policy(config, "cpu")
    findings = examine(config, policy, build_rewards(config.rewards), load_prompts_of(config.prompts))
    assert [finding for finding in findings if not finding.ok and "reward" not in finding.check] == []


def test_page_lists_every_contract_with_its_methods() -> None:
    section = PAGE.read_text().partition("| contract | methods | without it |")[2].partition("\n\n")[0]
    listed = {name: row for row in section.splitlines() for name in re.findall(r"`(Supports\w+)`", row)}
    contracts = {name: contract for name, contract in vars(policy).items() if name.startswith("Supports")}
    assert len(contracts) > 15
    assert listed.keys() == contracts.keys()
    missing = {
        name: [method for method in contract.__abstractmethods__ - Policy.__abstractmethods__ if method not in row]
        for name, contract, row in ((name, contract, listed[name]) for name, contract in contracts.items())
    }
    assert {name: methods for name, methods in missing.items() if methods} == {}


def test_commands_of_the_page_install_pytest() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    commands = "".join(page_blocks("bash")).splitlines()
    assert "pytest own_policy/tests" in commands
    assert commands[0] == 'uv pip install "./own_policy[test]"'
    assert project["optional-dependencies"] == {"test": ["pytest"]}


@pytest.mark.parametrize(
    "block", [block_of_kind for kind in ("python", "toml", "yaml") for block_of_kind in page_blocks(kind)]
)
def test_code_of_the_page_is_in_the_files(block: str) -> None:
    first, _, rest = block.partition("\n")
    text = (PROJECT / first.removeprefix("# ")).read_text()
    for part in rest.split("...\n"):
        assert part.strip("\n")
        assert part in text
