"""The engine does not grow with the methods: none is named in it but in ``methods/`` and by functions of ``maths/``.

What counts is code: identifiers, and texts that are names or keys. Sentences, docstrings and comments may speak of it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmgrpo.config.loading import CONFIGS, shipped

ENGINE = CONFIGS.resolve().parent / "mmgrpo"
LINKED = ("configs", "examples", "policies", "rewards")
NAMES = sorted(name.removeprefix("methods/") for name in shipped("methods"))
WORDS = {"cure", "real", "repo"}
"""Methods whose name is a word that says something else of runs, samples and findings."""


def words(name: str) -> list[str]:
    """The words of an identifier: f_grpo_advantage -> f, grpo, advantage."""
    spaced = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name)
    return [word for word in re.split(r"[^A-Za-z0-9]+", spaced.lower()) if word]


def names_in(path: Path) -> Iterator[str]:
    """Identifiers of a module, and texts without a space in them that are no docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not re.search(r"\s", node.value):
            yield node.value
        for attribute in ("id", "attr", "name", "arg"):
            if isinstance(found := getattr(node, attribute, None), str):
                yield found


def modules() -> list[Path]:
    """Those of the engine."""
    found = [path for path in ENGINE.rglob("*.py") if path.relative_to(ENGINE).parts[0] not in LINKED]
    assert len(found) > 100
    return sorted(found)


@pytest.fixture(scope="module")
def found() -> dict[str, str]:
    """For each module its names, one a line: their words, with a space before and after each."""
    return {
        path.relative_to(ENGINE).as_posix(): "\n".join(f" {' '.join(words(name))} " for name in {*names_in(path)})
        for path in modules()
    }


def test_methods_are_named_in_their_modules_and_in_maths_alone(found: dict[str, str]) -> None:
    """No ``train_dapo``, ``is_gspo`` or ``use_nft`` in the rest of the engine; the package's own name is one word."""
    homes = ("maths/", "methods/")
    wrong = [
        f"{path} names {name}"
        for name in NAMES
        if name not in WORDS
        for path, names in found.items()
        if not path.startswith(homes) and f" {' '.join(words(name))} " in names
    ]
    assert not wrong


def test_functions_of_one_method_are_in_its_module() -> None:
    """``mmgrpo/methods/selection/gfpo.py`` belongs to ``configs/methods/selection/gfpo.yaml``."""
    files = {path.relative_to(CONFIGS / "methods").with_suffix("") for path in (CONFIGS / "methods").rglob("*.yaml")}
    expected = {str(path.with_name(re.sub(r"-+", "_", path.name))) for path in files}
    modules = {
        path.relative_to(ENGINE / "methods").with_suffix("").as_posix()
        for path in (ENGINE / "methods").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert modules <= expected
