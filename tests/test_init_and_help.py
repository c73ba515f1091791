"""The first commands of a user: a first run to edit, lists, help, completion, and rewards in explain."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from mmgrpo.cli import app
from mmgrpo.config.loading import shipped
from mmgrpo.config.registry import REWARDS, resolve
from mmgrpo.docgen.reward_signatures import signature_at

SMALL = ["steps=1", "update.warmup.steps=2", "rollout.group_size=2", "evaluation.samples_per_prompt=2"]


def call(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env=environment)


def output_of(*command: str, folder: Path, **environment: str) -> str:
    """The output of ``python -m mmgrpo`` in a new process."""
    surroundings = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-m", "mmgrpo", *command], cwd=folder, env=surroundings,
                          capture_output=True, text=True, timeout=300)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_files_of_init_are_explained_and_trained_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = output_of("init", "mine", folder=tmp_path)
    assert answer.splitlines() == ["wrote mine/run.yaml", "wrote mine/my_rewards.py", "wrote mine/prompts.jsonl",
                                 "cd mine && mmgrpo train run.yaml"]  # fmt: skip
    folder = tmp_path / "mine"
    assert "10 prompts x 16 members = 160 samples a step" in output_of("explain", "run.yaml", folder=folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])  # the command appends the folder
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # of another test
    assert call("train", "run.yaml", *SMALL).exit_code == 0
    (line,) = {row["step"]: row for row in map(json.loads, (folder / "runs/my-run/metrics.jsonl").open())}.values()
    total = line["reward/digit_verifier/mean"] + 0.1 * line["reward/brightness/mean"]
    assert line["reward/mean"] == pytest.approx(total, rel=1e-5)
    before = (folder / "run.yaml").read_text()
    again = call("init", str(folder))
    assert again.exit_code == 2
    assert "has run.yaml and my_rewards.py and prompts.jsonl already" in again.stderr
    assert (folder / "run.yaml").read_text() == before


def test_recipes_lists_every_recipe_with_its_note() -> None:
    printed = call("recipes", COLUMNS="80").output
    names = [name for folder in ("quickstart", "recipes", "one-gpu", "papers") for name in shipped(folder)]
    assert [line for line in printed.splitlines() if line and not line.startswith(" ")] == names
    assert "Choose the held-out prompts. (arXiv:2503.01785)" in " ".join(printed.split())
    assert "Needs no data: prompts are generated. Flow-GRPO reports GenEval 0.63" in " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80


def test_recipes_are_found_by_a_part_of_their_names() -> None:
    printed = call("recipes", "flux", COLUMNS="80").output
    names = [
        "recipes/flux-dance-grpo",
        "recipes/flux-dance-grpo-one-gpu",
        "recipes/flux-mix-grpo",
        "recipes/flux-mix-grpo-one-gpu",
    ]
    assert [line for line in printed.splitlines() if line and not line.startswith(" ")] == names
    refused = call("recipes", "fluxx")
    assert refused.exit_code == 2
    assert "no recipe has 'fluxx' in its name; mmgrpo recipes lists all" in refused.stderr


def test_help_is_complete_in_80_columns() -> None:
    helped = call("--help", COLUMNS="80", TERMINAL_WIDTH="80").output
    assert "..." not in helped.replace("COMMAND [ARGS]...", "")
    assert max(map(len, helped.splitlines())) <= 80
    words = " ".join(helped.split())
    for command in app.registered_commands:
        assert (inspect.getdoc(command.callback) or "").partition("\n")[0] in words


def test_commands_are_completed_by_the_shell(tmp_path: Path) -> None:
    script = output_of(folder=tmp_path, _MMGRPO_COMPLETE="source_bash")
    assert "_MMGRPO_COMPLETE=complete_bash" in script
    environment = {"_MMGRPO_COMPLETE": "complete_bash", "COMP_WORDS": "mmgrpo re", "COMP_CWORD": "1"}
    assert output_of(folder=tmp_path, **environment).split() == ["report", "recipes", "rewards"]


class TestRewards:
    """explain catches what train would, without importing the reward."""

    @pytest.mark.parametrize(
        ("override", "message"),
        [
            ("rewards=[{name: digit_verifer}]", "unknown name 'digit_verifer' among rewards; did you mean digit_v"),
            ("rewards=[{name: number, relativ: 1}]", "reward number: unknown setting 'relativ'; did you mean relative"),
            ("rewards=[{name: jpeg_size, quallity: 3}]", "reward jpeg_size: unknown setting 'quallity'"),
            ("evaluation.rewards=[{name: held_out_juge}]", "did you mean held_out_judge"),
            (
                "rewards=[{name: 'python:mmgrpo.rewards.images.pixels:Brightnes'}]",
                "no 'Brightnes'; did you mean Brightness",
            ),
            ("rewards=[{name: conciseness}]", "reward conciseness: needs the setting of"),
            ("rewards=[{name: conciseness, of: exact_mach}]", "did you mean exact_match"),
        ],
    )
    def test_mistakes(self, override: str, message: str) -> None:
        result = call("explain", "quickstart/digits-image", override)
        assert result.exit_code == 2, result.output
        assert message in result.stderr

    def test_every_reward_is_read_as_it_is(self) -> None:
        signatures = {name: signature_at(target) for name, target in REWARDS.items()}
        for name, signature in signatures.items():
            parameters = inspect.signature(resolve("rewards", name)).parameters.values()
            if signature is not None:
                assert list(signature.takes) == [parameter.name for parameter in parameters], name
                assert list(signature.needs) == [
                    parameter.name for parameter in parameters if parameter.default is parameter.empty
                ], name
        assert sum(signature is not None for signature in signatures.values()) > 0.9 * len(signatures)
