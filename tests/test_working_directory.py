"""Modules in the working directory are not imported, except those that ``python:`` names."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLANTED = ("peft", "torch", "yaml", "typer", "rich", "pydantic", "jinja2", "PIL", "json", "accelerate", "trackio")

CONFIG = """
policy: {name: "python:my_policy:Policy"}
prompts: {source: "python:my_policy:prompts"}
rewards: [{name: jpeg_size}]
"""
POLICY = """
import sys
assert "jinja2" not in sys.modules
import jinja2  # the one that is installed
import my_helper
from pathlib import Path

here = Path(__file__).parent
(here / "seen.txt").write_text(f"{sys.path.index(str(here)) == len(sys.path) - 1} {jinja2.__file__}")

class Policy:
    settings_type = dict

    @classmethod
    def from_config(cls, settings, *, device="cpu"):
        return cls()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with modules of famous names, each of which leaves a mark when it runs, and an empty run."""
    for name in PLANTED:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran.txt')!r}, 'a').write({name!r} + ' ')\n")
    (tmp_path / "my_policy.py").write_text(POLICY)
    (tmp_path / "my_helper.py").write_text("")
    (tmp_path / "own.yaml").write_text(CONFIG)
    (tmp_path / "run").mkdir()
    planted = tmp_path / "planted-1.0.dist-info"
    planted.mkdir()
    (planted / "METADATA").write_text("Name: planted\nVersion: 1.0\n")
    (planted / "entry_points.txt").write_text("[mmgrpo.rewards]\nplanted = my_policy:Policy\n")
    return tmp_path


def starts(folder: Path) -> dict[str, list[str]]:
    """How the commands are started: as pip's script does, and as a module."""
    script = folder / "bin" / "mmgrpo"
    script.parent.mkdir()
    script.write_text("from mmgrpo.cli import app\napp()\n")
    launch = [sys.executable, "-P", "-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1"]
    return {
        "script": [sys.executable, str(script)],
        "module": [sys.executable, "-m", "mmgrpo.cli"],
        "package": [sys.executable, "-m", "mmgrpo"],
        "launched script": [*launch, str(script)],
        "launched module": [*launch, "-m", "mmgrpo.cli"],
    }


def run(start: Sequence[str], folder: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment = {**variables, "PYTHONPATH": str(ROOT)}
    call = [*start, *arguments]
    done = subprocess.run(call, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize(
    "start",
    ["script", pytest.param("module", marks=pytest.mark.nightly), pytest.param("package", marks=pytest.mark.nightly)],
)
def test_modules_of_the_working_directory_do_not_run(start: str, folder: Path) -> None:
    how = starts(folder)[start]
    assert "10 prompts x 16 members" in run(how, folder, "explain", "quickstart/digits-image")
    assert " flow-grpo " in run(how, folder, "methods")
    assert run(how, folder, "report", "run").split() == ["run/report.html"]
    listed = run(how, folder, "rewards")
    assert "digit_verifier" in listed
    assert "planted" not in listed
    assert not (folder / "ran.txt").exists()
    assert not (folder / "seen.txt").exists()


@pytest.mark.nightly
@pytest.mark.parametrize(
    "start",
    [
        "script",
        pytest.param("module", marks=pytest.mark.nightly),
        pytest.param("launched script", marks=pytest.mark.nightly),
        pytest.param("launched module", marks=pytest.mark.nightly),
    ],
)
def test_python_targets_are_found_there_after_installed_packages(start: str, folder: Path) -> None:
    assert "python:my_policy:Policy" in run(starts(folder)[start], folder, "explain", "own.yaml")
    is_last, result = (folder / "seen.txt").read_text().split(maxsplit=1)
    assert is_last == "True"
    assert "site-packages" in result
    assert not (folder / "ran.txt").exists()
