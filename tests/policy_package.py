"""The package of docs/learn/own-policy.md as an installation leaves it, without one."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from mmgrpo.config.loading import CONFIGS

ROOT = CONFIGS.resolve().parent
PROJECT = ROOT / "examples" / "own_policy"
PAGE = ROOT / "docs" / "learn/own-policy.md"
PACKAGE = "diffusion_policy"


def page_blocks(language: str) -> list[str]:
    """The blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


def put_on_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project on ``sys.path``, with the metadata that its pyproject.toml makes."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    info = folder / f"{PACKAGE}-{project['version']}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
            for group, points in project["entry-points"].items()
        )
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        monkeypatch.delitem(sys.modules, name)
    for path in (folder, PROJECT):
        monkeypatch.syspath_prepend(str(path))
