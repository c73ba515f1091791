"""The package of docs/learn/own-policy.md, installed and used from another folder, as the page says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from mmgrpo.config.loading import CONFIGS
from tests.policy_package import PROJECT, page_blocks

OFFLINE = ("--offline", "--no-build-isolation", "--no-deps")
"""What an installation needs is here already."""

TIMEOUT_S = 3600.0
"""Per command. The test takes 90 s of processor time; other nightly tests share the machine."""


class Place:
    """An environment with the package, and a folder to work in, neither of them in the repository."""

    def __init__(self, folder: Path) -> None:
        self.python, self.work = folder / "venv" / "bin" / "python", folder / "work"
        self.work.mkdir()
        shutil.copytree(PROJECT, self.work / "own_policy", ignore=shutil.ignore_patterns("__pycache__"))
        self.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")])
        (site,) = (folder / "venv").glob("lib/python*/site-packages")
        paths = [sysconfig.get_path("purelib"), str(CONFIGS.resolve().parent)]  # what mmgrpo needs, and mmgrpo
        (site / "beside.pth").write_text("\n".join(paths) + "\n")
        self.site = site

    def run(self, command: list[str]) -> str:
        """What a command says; it has to succeed."""
        surroundings = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        surroundings |= {"OMP_NUM_THREADS": "1", "COLUMNS": "200"}
        done = subprocess.run(
            command, cwd=self.work, env=surroundings, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def typed(self, line: str) -> str:
        """What a line of the page says, in the environment."""
        command = shlex.split(line)
        if command[:3] == ["uv", "pip", "install"]:
            command[3:3] = [*OFFLINE, "--python", str(self.python)]
        elif command[0] == "mmgrpo":
            command[:1] = [str(self.python), "-m", "mmgrpo"]
        else:
            command[:1] = [str(self.python), "-m", command[0]]
        return self.run(command)


@pytest.mark.nightly
def test_it_is_installed_and_trained_by_the_commands_of_the_page(tmp_path: Path) -> None:
    place = Place(tmp_path)
    printed = {line: place.typed(line) for line in "".join(page_blocks("bash")).splitlines()}
    assert "action_chunks" in printed["mmgrpo policies"]
    assert f"{place.site}" in place.run([str(place.python), "-c", "import diffusion_policy as p; print(p.__file__)"])
    run = place.work / "runs" / "push"
    rows = [json.loads(line) for line in (run / "evaluation.jsonl").read_text().splitlines()]
    first, *_, last = (row["eval/held_out_success/mean"] for row in rows)
    assert first < 0.65
    assert last > 0.93
    evaluation = json.loads(printed["mmgrpo evaluate runs/push --json"].splitlines()[-1])
    assert evaluation["eval/held_out_success/mean"] == pytest.approx(last)
    assert "data:image/png" in (run / "report.html").read_text()
    assert (place.work / "samples" / "sheet.png").is_file()
