"""The page of claims: its commands exist and are accepted."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest
import typer

from mmgrpo.cli import app
from mmgrpo.config.loading import load_config

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (?P<claim>[A-Z].*) \| `(?P<command>.+)` \|$", re.MULTILINE)
COMMANDS = [row["command"] for row in ROW.finditer((ROOT / "docs/design/claims.md").read_text())]
OMITTED = ("mark.nightly", "mark.slow", "mark.first_case", "mark.each_value")


@cache
def names_in(path: Path) -> set[str]:
    """The functions and classes of a file."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def omits_tests(test: str) -> bool:
    """Whether the daily selection leaves tests of a file, a folder, or a name in a file out."""
    path, _, name = test.partition("::")
    files = [ROOT / path] if path.endswith(".py") else sorted((ROOT / path).rglob("test_*.py"))
    for file in files:
        nodes = ast.parse(file.read_text()).body
        chosen = [node for node in nodes if not name or getattr(node, "name", None) == name or is_mark(node)]
        if any(mark in ast.unparse(node) for node in chosen for mark in OMITTED):
            return True
    return False


def is_mark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"


def test_the_page_has_at_least_forty_claims() -> None:
    assert len(COMMANDS) == len(set(COMMANDS)) >= 40


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command: str) -> None:
    match shlex.split(command):
        case ["mmgrpo", name, *arguments]:
            commands = typer.main.get_command(app).commands  # pyrefly: ignore[missing-attribute]
            values = commands[name].make_context(name, arguments).params
            if "config" in values:
                load_config(values["config"], values["overrides"] or ())
        case ["pytest", *arguments]:
            tests = [argument for argument in arguments if argument.startswith("tests/")]
            assert tests
            for test in tests:
                path, _, name = test.partition("::")
                assert (ROOT / path).exists()
                assert not name or name in names_in(ROOT / path)
            assert arguments[:2] == ["-m", ""] or not any(map(omits_tests, tests)), 'add -m ""'
        case ["python", "-m", module]:
            assert (ROOT / module.replace(".", "/")).with_suffix(".py").exists()
        case [program]:
            assert (ROOT / program).exists()
        case _:
            pytest.fail(f"{command} is no known command")
