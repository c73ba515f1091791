"""The run folder of another user: nothing that its configuration names is imported or called without ``--trust``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.config.loading import read_layers
from mmgrpo.runs.checkpoint import RunPosition, save_checkpoint
from mmgrpo.runs.trust import is_trusted_config, record_trusted_config, untrusted_settings
from tests.test_docs import page_names

DIGITS = "quickstart/digits-image"
TINY = (
    "update.warmup=null",
    "evaluation.watchdog=null",
    "steps=1",
    "rollout.group_size=2",
    "rollout.prompts_per_step=2",
)
PROMPTS = "python:mmgrpo.examples.digits:digit_prompts"

PLANTED = """
from pathlib import Path
Path(__file__).with_name("ran.txt").write_text("it did")

def reward(samples):
    return [1.0] * len(samples)
"""


def call(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an unknown author as the working directory: a run, and a module that its rewards name."""
    folder = tmp_path / "run"
    policy: Any = page_names("learn/smallest-policy.md")["LetterPolicy"]()
    save_checkpoint(folder, RunPosition(1, 0), policy, {}, keep=None)
    (folder / "run.json").write_text(json.dumps({"name": "letters", "status": "finished"}))
    (tmp_path / "planted_module.py").write_text(PLANTED)
    say(folder, rewards=[{"name": "python:planted_module:reward"}])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "planted_module", raising=False)
    return folder


def say(folder: Path, **values: Any) -> None:
    """The configuration of the run: images of digits, and what is given."""
    values = {
        "about": {"name": "letters"},
        "policy": {"name": "denoising", "model": "python:mmgrpo.examples.pipelines:digits_pipeline"},
        "prompts": {"source": PROMPTS},
        "evaluation": {"prompts": {"source": PROMPTS}},
        **values,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(values))


COMMANDS = {
    "evaluate": lambda run: ["evaluate", run],
    "evaluate the file": lambda run: ["evaluate", f"{run}/config.yaml"],
    "evaluate a checkpoint": lambda run: ["evaluate", f"{run}/checkpoints/step-000001"],
    "sample": lambda run: ["sample", run, "a digit"],
    "export": lambda run: ["export", run],
    "doctor": lambda run: ["doctor", run],
    "explain": lambda run: ["explain", run],
    "serve-rewards": lambda run: ["serve-rewards", run],
    "train": lambda run: ["train", run],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_runs_code_of_a_foreign_run(command: str, stranger: Path) -> None:
    done = call(*COMMANDS[command](str(stranger)))
    assert done.exit_code == 2, done.output
    setting = " ".join(done.stderr.split())
    assert "would run code or call servers, and no run of yours wrote it there" in setting
    assert "rewards[0].name: 'python:planted_module:reward'" in setting
    assert "give --trust" in setting
    assert not (stranger.parent / "ran.txt").exists()
    assert not (stranger.parent / "exports").exists() or not any((stranger.parent / "exports").iterdir())


def test_a_folder_with_only_a_configuration_is_foreign_too(stranger: Path) -> None:
    shutil.rmtree(stranger / "checkpoints")
    (stranger / "run.json").unlink()
    done = call("sample", str(stranger), "a digit")
    assert "would run code or call servers" in " ".join(done.stderr.split())
    assert not (stranger.parent / "ran.txt").exists()


def test_a_report_of_it_needs_no_trust(stranger: Path) -> None:
    assert call("report", str(stranger)).exit_code == 0
    assert "planted_module" in (stranger / "report.html").read_text()
    assert not (stranger.parent / "ran.txt").exists()


def test_with_trust_it_runs(stranger: Path) -> None:
    call("evaluate", str(stranger), "--trust")
    assert (stranger.parent / "ran.txt").exists()


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "policy": ({"policy": {"name": "python:os:abort"}}, "policy.name: 'python:os:abort'"),
    "model": ({"policy": {"name": "denoising", "model": "python:os:abort"}}, "policy.model"),
    "prompts": ({"prompts": {"source": "python:os:abort"}}, "prompts.source"),
    "more prompts": ({"prompts": {"sources": [{"source": "python:os:abort"}]}}, "prompts.sources[0].source"),
    "a part of mmgrpo": ({"prompts": {"source": "python:mmgrpo.cli:app"}}, "prompts.source"),
    "the objective": ({"objective": {"surrogate": {"name": "python:os:abort"}}}, "objective.surrogate.name"),
    "by a bare name": ({"objective": {"surrogate": "python:os:abort"}}, "objective.surrogate"),
    "tools": ({"rollout": {"environment": {"name": "tools", "functions": ["os:system"]}}}, "environment.functions"),
    "code of a hub": ({"policy": {"name": "masked", "trust_remote_code": True}}, "policy.trust_remote_code"),
    "as an argument": (
        {"policy": {"name": "language", "processor": {"trust_remote_code": True}}},
        "policy.processor.trust_remote_code",
    ),
    "a command": ({"rewards": [{"name": "command", "command": ["id"]}]}, "rewards[0].name: 'command'"),
    "programs": ({"evaluation": {"rewards": [{"name": "code_tests"}]}}, "evaluation.rewards[0].name: 'code_tests'"),
    "a server": ({"rewards": [{"name": "remote", "url": "http://x"}]}, "rewards[0].url: 'http://x'"),
    "a key": (
        {"rewards": [{"name": "api_judge", "key_variable": "AWS_SECRET_ACCESS_KEY"}]},
        "rewards[0].key_variable: 'AWS_SECRET_ACCESS_KEY'",
    ),
    "addresses in data": (
        {"prompts": {"source": "x.jsonl", "outside_media": ["urls"]}},
        "prompts.outside_media: ['urls']",
    ),
    "files anywhere": ({"evaluation": {"prompts": {"outside_media": ["paths"]}}}, "outside_media: ['paths']"),
    "prompts on a server": (
        {"evaluation": {"prompts": {"source": "http://10.0.0.1/rows.jsonl"}}},
        "evaluation.prompts.source: 'http://10.0.0.1/rows.jsonl'",
    ),
    "a template on a server": (
        {"rewards": [{"name": "video_align", "template": "https://x.org/template.py"}]},
        "rewards[0].template: 'https://x.org/template.py'",
    ),
    "prompts of a run of a series": ({"tasks": [{"set": {"prompts.source": "https://x.org/a.txt"}}]}, "x.org/a.txt"),
    "a task": ({"tasks": {"a": {"rewards": [{"name": "python:os:abort"}]}}}, "tasks.a.rewards[0].name"),
    "a run of a series": ({"tasks": [{"name": "a", "set": {"prompts.source": "python:os:abort"}}]}, "tasks[0].set."),
}


@pytest.mark.parametrize("case", CASES)
def test_keys_that_name_code_or_a_server_are_listed(case: str) -> None:
    values, where = CASES[case]
    assert [setting for setting in untrusted_settings(values) if where in setting]


def test_code_in_included_files_is_listed(stranger: Path) -> None:
    (stranger / "below.yaml").write_text("rewards: [{name: 'python:planted_module:reward'}]")
    (stranger / "config.yaml").write_text("include: below.yaml\n")
    assert "python:planted_module" in call("evaluate", str(stranger)).stderr
    assert not (stranger.parent / "ran.txt").exists()


def test_ordinary_configurations_are_not_suspect() -> None:
    """Whoever shares a run of rewards, models and examples of ours is read without a word."""
    for name in (DIGITS, "quickstart/arithmetic-text", "quickstart/digits-vlm", "recipes/sd3.5-flow-grpo-pick-score"):
        from mmgrpo.config.loading import find_config

        assert list(untrusted_settings(read_layers(find_config(name)))) == []


@pytest.mark.nightly
def test_own_runs_are_trusted_in_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_scores.py").write_text("def one(samples):\n    return [0.5] * len(samples)\n")
    monkeypatch.chdir(tmp_path)
    evaluation = f"evaluation={{prompts: {{source: '{PROMPTS}', limit: 2}}}}"
    done = call("train", DIGITS, *TINY, "rewards=[{name: 'python:my_scores:one', label: one}]", evaluation)
    assert done.exit_code == 0, done.output
    run = tmp_path / "runs" / "digits-image"
    evaluated = call("evaluate", str(run), "--json")
    assert evaluated.exit_code == 0, evaluated.output
    assert json.loads(evaluated.stdout.strip().splitlines()[-1])["eval/one/mean"] == 0.5
    shutil.copytree(run, tmp_path / "copy")  # as a third person receives it
    assert "would run code" in " ".join(call("evaluate", str(tmp_path / "copy")).stderr.split())
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("my_scores", "planted"))
    assert "'python:planted:one'" in " ".join(call("evaluate", str(run)).stderr.split())


def test_shipped_files_are_trusted_by_path_and_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    config, other = tmp_path / "a" / "config.yaml", tmp_path / "b" / "config.yaml"
    for file in (config, other):
        file.parent.mkdir()
        file.write_text("name: x\n")
    assert not is_trusted_config(config)
    record_trusted_config(config)
    record_trusted_config(config)
    assert (is_trusted_config(config), is_trusted_config(other)) == (True, False)
    assert len((tmp_path / "state/mmgrpo/runs").read_text().splitlines()) == 1
    config.write_text("name: y\n")
    assert not is_trusted_config(config)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    record_trusted_config(config)  # without a home, nothing is known, and nothing fails
    assert not is_trusted_config(config)
