"""The machine and the code in run.json."""

from __future__ import annotations

import subprocess
from pathlib import Path

import torch

from mmgrpo.system.machine import commit, machine

GIT = ("git", "-c", "user.name=n", "-c", "user.email=e@x", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run([*GIT, "-C", folder, *arguments], check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_that_of_the_checkout_itself(tmp_path: Path) -> None:
    package, within = tmp_path / "mmgrpo", tmp_path / "venv" / "lib" / "mmgrpo"
    for folder in (package, within):
        folder.mkdir(parents=True)
        (folder / "a.py").write_text("1")
    assert commit(package) is None  # no repository
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "one")
    head = git(tmp_path, "rev-parse", "HEAD")
    assert commit(package) == head
    assert commit(within) is None  # in another repository, not at the top of a checkout of mmgrpo
    (package / "a.py").write_text("2")
    assert commit(package) == f"{head}, with changes"


def test_description_of_a_cpu_run() -> None:
    description = machine(torch.device("cpu"), 3)
    assert description["threads"] == torch.get_num_threads()
    assert (description["device"], description["gpus"], description["processes"]) == ("cpu", [], 3)
    assert description["processor"]
