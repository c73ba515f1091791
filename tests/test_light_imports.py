"""Lists and pages are read without the libraries that compute; what loads them says so first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmgrpo.cli.launch import launch
from mmgrpo.cli.run_inputs import print_importing
from mmgrpo.config.registry import POLICIES, resolve
from mmgrpo.data.arrow_values import require_limit
from mmgrpo.docgen.reward_signatures import summary_line

CODE = """
import sys
from typer.testing import CliRunner
from mmgrpo.cli import app
result = CliRunner().invoke(app, sys.argv[1:])
assert result.exit_code == 0, result.output
print(result.output)
heavy = {"torch", "transformers", "diffusers", "accelerate"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.mark.parametrize(
    ("command", "shown"),
    [(["policies"], "A causal language model"), (["rewards", "exact_match"], "# exact_match")],
    ids=["policies", "rewards NAME"],
)
def test_a_page_is_printed_without_compute_libraries(command: list[str], shown: str) -> None:
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", CODE, *command], capture_output=True, text=True, cwd=root, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert shown.removeprefix("# ") in done.stdout


def test_a_command_that_loads_libraries_prints_a_line_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", torch)
    print_importing()
    assert capsys.readouterr().err == ""  # loaded already
    monkeypatch.delitem(sys.modules, "torch")
    print_importing()
    assert capsys.readouterr().err == "loading the libraries ...\n"
    monkeypatch.setenv("RANK", "1")
    print_importing()
    assert capsys.readouterr().err == ""  # the first process says it for all
    monkeypatch.delenv("RANK")
    monkeypatch.setattr(os, "execv", lambda path, command: print("started", file=sys.stderr))
    monkeypatch.setenv("MMGRPO_LAUNCHED", "")
    launch("gpus", ["quickstart/digits-image"], processes=2)
    assert capsys.readouterr().err == "starting 2 processes with accelerate launch (gpus) ...\nstarted\n"


def test_the_list_of_policies_has_the_first_lines_of_their_docstrings() -> None:
    for name, target in POLICIES.items():
        assert summary_line(target) == (resolve("policies", name).__doc__ or "").strip().split("\n")[0]
    assert summary_line("no_such_module:Thing") is None
    assert summary_line("mmgrpo.errors:Nothing") is None


def test_rows_of_a_file_are_limited_without_importing_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "datasets", raising=False)
    require_limit("rows.jsonl", None)
    assert "datasets" not in sys.modules
