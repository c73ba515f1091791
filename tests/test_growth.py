"""The engine does not grow with the methods: only ``methods/`` and functions of ``maths/`` name one.

Code counts: identifiers, and strings that are names or keys. Sentences, docstrings and comments may name a method.
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
            if isinstance(name := getattr(node, attribute, None), str):
                yield name


def modules() -> list[Path]:
    """The modules of the engine."""
    paths = [path for path in ENGINE.rglob("*.py") if path.relative_to(ENGINE).parts[0] not in LINKED]
    assert len(paths) > 100
    return sorted(paths)


@pytest.fixture(scope="module")
def names_of_modules() -> dict[str, str]:
    """For each module its names, one a line: their words, with a space before and after each."""
    return {
        path.relative_to(ENGINE).as_posix(): "\n".join(f" {' '.join(words(name))} " for name in {*names_in(path)})
        for path in modules()
    }


def test_methods_are_named_in_their_modules_and_in_maths_alone(names_of_modules: dict[str, str]) -> None:
    """No ``train_dapo``, ``is_gspo`` or ``use_nft`` in the rest of the engine; the package's own name is one word.

    ``trl/`` and ``config/peers/`` have the names of other libraries' settings.
    """
    homes = ("maths/", "methods/", "trl/", "config/peers/")
    wrong = [
        f"{path} names {name}"
        for name in NAMES
        if name not in WORDS
        for path, names in names_of_modules.items()
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


def registered_functions(module: ast.Module) -> Iterator[tuple[str, str]]:
    """The registered functions of a module: the name that a configuration uses, and that of the function."""
    for node in module.body:
        for decorator in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if re.match(r"[A-Z_]+\.register\b", text := ast.unparse(decorator)):
                yield (re.findall(r"'(.+)'", text) or [node.name])[0], node.name  # pyrefly: ignore[missing-attribute]


def test_functions_of_maths_serve_more_than_one_method() -> None:
    """A registered function that a single file names, one of a method, and that no function calls, is that method's."""
    texts = {path: re.sub(r"(?m)(^|\s)#.*$", "", path.read_text()) for path in CONFIGS.rglob("*.yaml")}
    trees = [ast.parse(path.read_text()) for path in modules()]
    called = (node.func for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    calls = {function.id for function in called if isinstance(function, ast.Name)}
    functions = [
        pair for path in (ENGINE / "maths").rglob("*.py") for pair in registered_functions(ast.parse(path.read_text()))
    ]
    assert len(functions) > 80
    wrong = []
    for name, function in functions:
        files = [path for path, text in texts.items() if re.search(rf"[:,\[] {name}\b|\[{name}\b", text)]
        if len(files) == 1 and files[0].is_relative_to(CONFIGS / "methods") and function not in calls:
            wrong.append(name)
    assert not wrong


def repeated_numbers(module: ast.Module) -> Iterator[str]:
    """Registered functions that bind their own numbers, by the same names, to another function of the module."""
    functions = {node.name: node for node in module.body if isinstance(node, ast.FunctionDef)}
    for name, function in functions.items():
        numbers = {argument.arg for argument in function.args.kwonlyargs}
        is_registered = any(".register" in ast.unparse(decorator) for decorator in function.decorator_list)
        for call in ast.walk(function):
            if not is_registered or not isinstance(call, ast.Call) or ast.unparse(call.func) != "partial":
                continue
            target = functions.get(ast.unparse(call.args[0]))
            repeated = {keyword.arg for keyword in call.keywords if ast.unparse(keyword.value) == keyword.arg}
            if target is not None and repeated & numbers:
                yield f"{name} binds {', '.join(sorted(repeated & numbers))} to {target.name}"  # pyrefly: ignore[bad-specialization, no-matching-overload]


def test_functions_do_not_bind_their_numbers_to_another_function() -> None:
    """A decorator turns the function that does the work into a factory: see ``mmgrpo/maths/factories.py``."""
    pair = (
        "@TERMS.register\ndef a(*, x: float): return Term(partial(_a, x=x))\ndef _a(decisions, *, x: float): return x"
    )
    assert list(repeated_numbers(ast.parse(pair))) == ["a binds x to _a"]
    repeated = {
        path.relative_to(ENGINE).as_posix(): pairs
        for path in modules()
        if (pairs := list(repeated_numbers(ast.parse(path.read_text()))))
    }
    assert not repeated


@pytest.mark.parametrize(("path", "most"), [("mmgrpo/loop.py", 150), ("examples/loop.py", 40), ("README.md", 150)])
def test_files_that_are_read_first_stay_short(path: str, most: int) -> None:
    assert len((ENGINE.parent / path).read_text().splitlines()) <= most
