"""Text from data, rewards, files and settings is printed literally, without markup and escape sequences."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from rich.table import Table
from typer.testing import CliRunner, Result

from mmgrpo import Sample
from mmgrpo.cli import app
from mmgrpo.config.loading import validated
from mmgrpo.runs.alerts import Alert
from mmgrpo.runs.progress import RunProgress
from mmgrpo.system.console import (
    MAX_MESSAGE_CHARS,
    PlainConsole,
    PlainFormatter,
    escape_controls,
    markdown_page,
    shorten,
    styled,
)
from mmgrpo.types import Prompt
from tests.policies.letters import letters

MARKUP = "boom [/x] acc[/easy] clip: [2,1] [bold]b[/bold] [link=http://x]l[/link] :warning: <b>"
ESCAPES = "\x1b[2J \x1b]0;title\x07 \x9b31m back\rover \x08 \u202egnp"
HOSTILE = f"{MARKUP} {ESCAPES}"
HOSTILE_TEXT = MARKUP + r" \x1b[2J \x1b]0;title\x07 \x9b31m back\x0dover \x08 \u202egnp"


class Settings(BaseModel):
    """Of a policy without settings."""


class Letters(type(letters())):
    """The policy of docs/learn/smallest-policy.md, which writes what a terminal would obey."""

    settings_type = Settings

    @classmethod
    def from_config(cls, settings: Any, *, device: Any) -> Letters:
        return cls()

    def rollout(self, *arguments: Any, **options: Any) -> Any:
        rollout = super().rollout(*arguments, **options)
        return replace(
            rollout, samples=[replace(sample, text=f"{sample.text} {HOSTILE}") for sample in rollout.samples]
        )


def boom(samples: Sequence[Sample]) -> list[float]:
    raise RuntimeError(HOSTILE)


def first_letter(samples: Sequence[Sample]) -> list[float]:
    return [float(ord((sample.text or " ")[0])) for sample in samples]


def prompts() -> list[Prompt]:
    return [Prompt(HOSTILE), Prompt("another")]


def wrong_prompts() -> Any:
    return [type(HOSTILE, (), {})()]


def config(folder: Path, **sections: Any) -> str:
    here = f"python:{__name__}"
    values: dict[str, Any] = {
        "about": {"name": "hostile"},
        "output": str(folder / "runs"),
        "steps": 1,
        "policy": {"name": f"{here}:Letters"},
        "prompts": {"source": f"{here}:prompts"},
        "rewards": [{"name": f"{here}:first_letter", "label": HOSTILE.replace("/", "|")}],
        "rollout": {"prompts_per_step": 2, "group_size": 2},
        "evaluation": {"prompts": {"source": f"{here}:prompts"}, "samples_per_prompt": 1},
        "runtime": {"device": "cpu"},
    }
    path = folder / "hostile.yaml"
    path.write_text(json.dumps(values | sections))
    return str(path)


def call(*arguments: str, code: int = 0) -> str:
    """What a command prints, in one line; that no control character is in it is checked here."""
    result: Result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    printed = result.stdout + result.stderr
    assert escape_controls(printed) == printed
    return " ".join(printed.split())


class TestConsole:
    def test_controls_are_written_out_and_other_characters_stay(self) -> None:
        assert escape_controls(HOSTILE) == HOSTILE_TEXT
        assert escape_controls("tab\tline\nümlaut 漢字 🙂 \ud800") == "tab\tline\nümlaut 漢字 🙂 \\ud800"

    def test_a_long_text_loses_its_middle(self) -> None:
        text = "a" * MAX_MESSAGE_CHARS + "b"
        half = MAX_MESSAGE_CHARS // 2
        assert shorten(text) == f"{'a' * half} ... (1 characters left out) ... {'a' * (half - 1)}b"
        assert shorten("a" * MAX_MESSAGE_CHARS) == "a" * MAX_MESSAGE_CHARS

    def test_strings_are_printed_as_text(self, capsys: pytest.CaptureFixture[str]) -> None:
        console = PlainConsole()
        console.print_line(HOSTILE, styled(HOSTILE, "bold red"))
        assert capsys.readouterr().out == f"{HOSTILE_TEXT} {HOSTILE_TEXT}\n"
        table = Table(HOSTILE, title=HOSTILE, width=400, box=None)
        table.add_row(HOSTILE)
        console.width = 400
        console.print(table)
        assert [line.strip() for line in capsys.readouterr().out.splitlines()] == [HOSTILE_TEXT] * 3
        console.print(markdown_page("a [link](http://x) " + ESCAPES))
        assert capsys.readouterr().out.strip() == "a link (http://x) " + escape_controls(ESCAPES)

    def test_warnings_are_text(self) -> None:
        record = logging.LogRecord("mmgrpo.x", logging.WARNING, __file__, 1, "said %s", (HOSTILE,), None)
        assert PlainFormatter().format(record) == f"said {HOSTILE_TEXT}"


def test_progress_shows_labels_and_alerts_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RunProgress(validated({}), quiet=False)
    progress.log_evaluation({"step": 3, f"eval/{HOSTILE.replace('/', '|')}/mean": 0.5})
    progress.log_alert(Alert(step=4, kind="length", measured=HOSTILE, suggested_fix="lower it [/bold]"))
    printed = " ".join(capsys.readouterr().out.split())
    assert (
        printed
        == f"step 3 {HOSTILE_TEXT.replace('/', '|')} 0.500 alert step 4 length: {HOSTILE_TEXT}; lower it [/bold]"
    )


class TestCommands:
    def test_train_evaluate_and_report(self, tmp_path: Path) -> None:
        path = config(tmp_path, about={"name": "run[bold]x[bold]"})
        output = call("train", path)
        assert f"run folder: {tmp_path}/runs/run[bold]x[bold]" in output
        assert f"{HOSTILE_TEXT.replace('/', '|')} 1" in output  # the mean of the codes of small letters is above 96
        assert f"report: {tmp_path}/runs/run[bold]x[bold]/report.html" in output
        assert "boom [|x] acc[|easy] clip: [2,1] [bold]b[|bold]" in call("evaluate", path)
        output, _, _ = call("evaluate", path, "--json").partition("} loading ")
        assert json.loads(output + "}")[f"eval/{HOSTILE.replace('/', '|')}/mean"] > 96
        assert call("report", str(tmp_path / "runs/run[bold]x[bold]")).endswith("run[bold]x[bold]/report.html")

    def test_a_reward_that_raises(self, tmp_path: Path) -> None:
        path = config(tmp_path, rewards=[{"name": f"python:{__name__}:boom", "label": "acc[/easy]"}])
        output = call("train", path, code=2)
        assert "error: reward 'acc[/easy]' failed on 4 of 4 samples" in output
        assert f"it raised RuntimeError: {HOSTILE_TEXT}" in output
        result = call("doctor", path, code=1)
        assert "reward acc[/easy]" in result
        assert "failed on 4 of 4 samples" in result

    def test_sample(self, tmp_path: Path) -> None:
        output = call("sample", config(tmp_path), HOSTILE, "--out", str(tmp_path / "out[/x]"))
        assert HOSTILE_TEXT in output
        assert f"4 samples in {tmp_path}/out[/x]" in output

    def test_explain_and_errors_of_configurations(self, tmp_path: Path) -> None:
        wrapped = HOSTILE_TEXT.replace(r"\x0d", " ")  # white space is where lines are wrapped
        assert f"run {wrapped}, seed 0" in call("explain", config(tmp_path, about={"name": HOSTILE}))
        assert f"error: unknown key {HOSTILE!r}" in call("explain", config(tmp_path, **{HOSTILE: 1}), code=2)
        assert "clip of reward 'acc[/easy]' must be [low, high], low below high, got (2.0, 1.0)" in call(
            "explain", config(tmp_path, rewards=[{"name": "jpeg_size", "label": "acc[/easy]", "clip": [2, 1]}]), code=2
        )
        assert "error: no configuration '[bold]boom [/x]" in call("explain", "[bold]boom [/x]", code=2)
        source = config(tmp_path, prompts={"source": f"python:{__name__}:wrong_prompts"})
        assert f"its item 0 is a {HOSTILE_TEXT}" in call("train", source, code=2)

    def test_lists_and_pages(self) -> None:
        assert " flow-grpo " in call("methods")
        assert "denoising" in call("policies")
        assert "digit_verifier" in call("rewards")
        assert "remote" in call("rewards", "remote")
        assert "error: unknown name 'acc[/easy]' among rewards" in call("rewards", "acc[/easy]", code=2)


FOREIGN = '''
def score(samples, level: str = "[bold] [/x]"):
    """Reward: boom [/x] acc[/easy] \x1b[2J here.

    Settings: ``level``, [bold] or [/x].
    """
'''


COMMANDS = """
import json, sys
from typer.testing import CliRunner
sys.path.append(sys.argv[1])
from mmgrpo.cli import app
ended = [CliRunner().invoke(app, command) for command in json.loads(sys.argv[2])]
print(json.dumps([(one.exit_code, one.stdout if one.exit_code == 0 else one.output) for one in ended]))
"""


@pytest.mark.nightly
def test_descriptions_of_other_packages_are_escaped(tmp_path: Path) -> None:
    """Names and docstrings of a distribution's rewards, policies and methods."""
    folder = tmp_path / "others-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Name: others\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(
        "[mmgrpo.rewards]\nacc[/easy] = foreign:score\ngone[/x] = no_such[/y]:score\n"
        "[mmgrpo.policies]\nboom[/x] = foreign:score\n"
        "[mmgrpo.methods]\nx = foreign:METHOD\n"
    )
    method = tmp_path / "method.yaml"
    method.write_text("about: {method: {name: m, title: \"acc[/easy] \\e[2J\", paper: '[/x]'}}\n")
    (tmp_path / "foreign.py").write_text(textwrap.dedent(FOREIGN) + f"\nMETHOD = {str(method)!r}\n")
    commands = (("rewards",), ("rewards", "acc[/easy]"), ("policies",), ("methods",), ("methods", "m"))
    call = [sys.executable, "-c", COMMANDS, str(tmp_path), json.dumps(commands)]
    done = subprocess.run(call, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    printed = {}
    for command, (code, text) in zip(commands, json.loads(done.stdout), strict=True):
        assert code == 0, text
        assert escape_controls(text) == text
        printed[command[-1]] = " ".join(text.split())
    assert r"boom [/x] acc[/easy] \x1b[2J here." in printed["rewards"]
    assert "'no_such[/y]:score' cannot be imported" in printed["rewards"]
    assert "[bold] or [/x]" in printed["acc[/easy]"]
    assert "boom[/x]" in printed["policies"]
    assert r"acc[/easy] \x1b[2J" in printed["methods"]
    assert r"acc[/easy] \x1b[2J" in printed["m"]


@pytest.mark.nightly
def test_a_bug_keeps_its_traceback_as_text(tmp_path: Path) -> None:
    (tmp_path / "buggy.py").write_text(f"def prompts():\n    raise KeyError({'boom [/x] ' + chr(27) + '[2J'!r})\n")
    (tmp_path / "buggy.yaml").write_text(
        "{policy: {name: language}, prompts: {source: 'python:buggy:prompts'}, rewards: [{name: jpeg_size}]}"
    )
    call = [sys.executable, "-m", "mmgrpo.cli", "train", "buggy.yaml"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert escape_controls(done.stderr) == done.stderr
    assert "Traceback" in done.stderr
    assert r"KeyError: 'boom [/x] \x1b[2J'" in done.stderr
