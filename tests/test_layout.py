"""The checkout has no symbolic links, and every source of the package builds the same wheel."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import mmgrpo
from mmgrpo.system.folders import TOP

ROOT = Path(__file__).parents[1]
FOLDERS = ("policies", "rewards", "configs", "examples")


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True, check=True).stdout


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    return [name for name in git("ls-files").splitlines() if (ROOT / name).is_file()]


def wheel_entries(source: Path, folder: Path) -> set[str]:
    (wheel,) = WheelBuilder(str(source)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_no_file_is_a_symbolic_link() -> None:
    tracked_files()
    assert not [line for line in git("ls-files", "-s").splitlines() if line.startswith("120000")]


@pytest.mark.nightly
def test_checkout_sdist_and_zip_build_the_same_wheel(tmp_path: Path) -> None:
    zipped = tmp_path / "zipped"
    for name in tracked_files():
        (zipped / name).parent.mkdir(parents=True, exist_ok=True)
        (zipped / name).write_bytes((ROOT / name).read_bytes())
    (sdist,) = SdistBuilder(str(zipped)).build(directory=str(tmp_path / "sdist"), versions=["standard"])
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    entries = wheel_entries(zipped, tmp_path / "of_zip")
    assert wheel_entries(unpacked, tmp_path / "of_sdist") == entries
    modules = {
        f"mmgrpo/{name.removeprefix('mmgrpo/')}"
        for name in tracked_files()
        if name.split("/")[0] in ("mmgrpo", *FOLDERS) and not name.startswith("examples/own_policy")
    }
    assert {entry for entry in entries if ".dist-info/" not in entry} == modules


def test_folders_are_those_of_the_checkout() -> None:
    assert TOP == ROOT
    assert mmgrpo.__path__ == [str(ROOT / "mmgrpo"), str(ROOT)]


def test_unpacked_wheel_imports_policies_and_finds_configurations(tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    code = (
        "import mmgrpo.policies.language, mmgrpo.examples.arithmetic; from mmgrpo.config.loading import load_config;"
        "print(mmgrpo.policies.__file__, load_config('quickstart/arithmetic-text').steps)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(tmp_path / "site"), "PATH": "/usr/bin:/bin"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert result.stdout.startswith(str(tmp_path / "site/mmgrpo/policies/__init__.py")), result.stderr
