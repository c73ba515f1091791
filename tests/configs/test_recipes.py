"""The README of each folder of recipes: its files, its commands, its length."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from mmgrpo.cli import app
from mmgrpo.config.loading import CONFIGS, load_config

FOLDERS = sorted(path for path in (CONFIGS / "recipes").iterdir() if path.is_dir())
NAMES = [folder.name for folder in FOLDERS]
FETCHING = ("hf", "unzip", "head", "tail", "git", "ln")
"""Programs besides mmgrpo that a page calls to fetch its data."""


def commands_of(page: str) -> list[list[str]]:
    """The words of every command of a page, in blocks and in sentences, without "mmgrpo"."""
    lines = [line for block in re.findall(r"```bash\n(.*?)```", page, re.DOTALL) for line in block.splitlines()]
    assert {line.split()[0] for line in lines} <= {"mmgrpo", *FETCHING}
    lines = [line for line in lines if line.startswith("mmgrpo ")]
    sentences = re.findall(r"`(mmgrpo [^`]*recipes/[^`]*)`", page)
    return [shlex.split(line)[1:] for line in [*lines, *sentences]]


def test_every_task_has_a_folder_with_a_page() -> None:
    assert {"composition", "counting", "editing", "grounding", "preferences", "screens", "text_rendering"} <= {*NAMES}
    assert [path for path in (CONFIGS / "recipes").iterdir() if path.is_file()] == []


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_page_names_every_recipe_of_its_folder(folder: Path) -> None:
    page = (folder / "README.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) <= 40
    named = re.findall(r"^\| `([\w.-]+\.yaml)` \|", page, re.MULTILINE)
    assert sorted(named) == sorted(path.name for path in folder.glob("*.yaml"))
    assert [part for part in ("**Data.**", "**Memory", "**Expected curve.**") if part not in page] == []
    assert "@" not in page


@pytest.mark.parametrize("folder", FOLDERS, ids=NAMES)
def test_commands_of_a_page_are_valid(folder: Path) -> None:
    commands = commands_of((folder / "README.md").read_text(encoding="utf-8"))
    trained = [words for words in commands if words[0] == "train"]
    assert trained
    for name, *arguments in commands:
        if "recipes/NAME" in arguments:
            continue
        context = typer.main.get_command(app).commands[name].make_context(name, [*arguments])  # pyrefly: ignore[missing-attribute]
        config = load_config(context.params["config"], context.params["overrides"] or ())
        (file,) = [path for path in folder.glob("*.yaml") if path.stem == config.about.name]
        assert context.params["config"] == f"recipes/{file.stem}"
        if name == "train":
            sources = [
                word.partition("=")[2] for word in arguments if ".source=" in word or word.startswith("prompts.")
            ]
            assert config.prompts is not None
            assert config.evaluation is not None
            assert config.evaluation.prompts is not None
            assert not sources or {config.prompts.source, config.evaluation.prompts.source} <= set(sources)
