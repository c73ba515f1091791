"""The rooms of the code and what may pass between them, read off the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

TOP_FOLDERS = ("policies", "rewards", "examples")
"""Folders beside the engine, each linked into the package."""

ROOMS = (
    ("errors", "values"),
    ("system",),
    ("tool_calls",),
    ("samples", "scores", "splits"),
    ("types",),
    ("memory",),
    ("maths",),
    ("layouts",),
    ("policy", "reward", "environment", "differentiating", "outline", "shards"),
    ("config", "testing"),
    ("data",),
    ("tools",),
    ("algorithm", "environments"),
    ("scoring",),
    ("distributed", "explain", "serving"),
    ("runs",),
    ("report",),
    ("training", "trials"),
    ("trl",),
    ("docgen",),
    ("methods", "check_data"),
    ("doctor", "__init__"),
    ("cli",),
    ("__main__",),
)
"""The engine. A room imports from the rows before its own and from itself, from nothing beside or after it."""

KINDS = (
    ("parsing",),
    ("models",),
    ("text", "grounding", "images", "audio", "judges", "groups", "code"),
    ("video",),
)
"""The rewards, in the same manner."""

CONTRACTS = (
    "errors",
    "values",
    "scores",
    "splits",
    "types",
    "maths",
    "policy",
    "reward",
    "environment",
    "samples",
    "tool_calls",
    "differentiating",
    "layouts",
    "shards",
    "outline",
    "data.image_loading",
    "data.audio_loading",
)
CONTRACTS += ("data.audio_loading", "serving.wire", "system.lazy", "system.extras", "system.hub", "system.targets")
CONTRACTS += (
    "system.bounded_http",
    "system.out_of_memory",
    "data.videos",
    "data.media_options",
    "system.process_settings",
)
CONTRACTS += ("config.validating", "system.folders", "system.json_requests", "system.sandbox")
"""What adapters may import of the engine."""

MAX_LINES = 600
MAX_ABSTRACT_METHODS = 6

EXTENSIBLE = {
    "mmgrpo.config.kl.KLConfig",
    "mmgrpo.config.prompts.ReadingConfig",
    "mmgrpo.config.rewards.EvaluationRewardConfig",
    "mmgrpo.config.sections.Named",
    "mmgrpo.config.sections.Section",
}
"""Data, not behaviour: a section of the configuration adds its keys. Exceptions are the other hierarchy there is."""


def module_name(path: Path) -> str:
    """``policies/x.py`` is ``mmgrpo.policies.x``; a package goes by its own name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "mmgrpo" else ("mmgrpo", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Two million objects, for which the garbage collector would look in every test after these."""
    yield
    for function in (modules, imported, classes, names_in):
        function.cache_clear()


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the engine and of what is beside it, by the name it is imported under."""
    paths = [path for room in ("mmgrpo", *TOP_FOLDERS) for path in sorted((ROOT / room).rglob("*.py"))]
    return {module_name(path): parsed(path) for path in paths}


def parsed(path: Path) -> ast.Module:
    """A module in which relative imports are written in full."""
    tree = ast.parse(path.read_text())
    package = (module_name(path) + (".__init__" if path.name == "__init__.py" else "")).split(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            parts = [*package[: -node.level], *([node.module] if node.module else [])]
            node.module, node.level = ".".join(parts), 0
    return tree


@cache
def imported(tree: ast.AST) -> tuple[str, ...]:
    """Dotted names of everything imported anywhere in a module, under ``TYPE_CHECKING`` and in functions as well."""
    return tuple(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of ours that a module imports, whether named themselves or by something in them."""
    return {result for name in imported(tree) if (result := nearest_module(name)) is not None}


def nearest_module(name: str) -> str | None:
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


def room(module: str) -> str:
    """``mmgrpo.maths.ratios`` lies in ``maths``, ``mmgrpo`` itself in ``__init__``."""
    name = module.partition(".")[2].partition(".")[0] or "__init__"
    return "training" if name == "loop" else name  # the step, at the top where readers begin


def test_every_room_of_the_engine_has_its_row() -> None:
    listed = [name for row in ROOMS for name in row]
    assert sorted(listed) == sorted({room(module) for module in modules()} - set(TOP_FOLDERS))


def test_adapters_and_rewards_import_their_siblings_relatively() -> None:
    """So that editors and type checkers follow them in a checkout, where no folder ``mmgrpo/policies`` exists."""
    absolute = [
        f"{path.relative_to(ROOT)} imports {node.module}"
        for folder in ("policies", "rewards")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"mmgrpo.{folder}.")
    ]
    assert not absolute


def against_the_order(rows: tuple[tuple[str, ...], ...], place: Callable[[str], str]) -> list[str]:
    """Imports from one of these places to another that is not in a row before its own."""
    row_of = {name: number for number, row in enumerate(rows) for name in row}
    pairs = [(module, other) for module, tree in modules().items() for other in imported_modules(tree)]
    return [
        f"{module} imports {other}"
        for module, other in pairs
        if {place(module), place(other)} <= set(row_of)
        and place(module) != place(other)
        and row_of[place(other)] >= row_of[place(module)]
    ]


def test_imports_of_the_engine_go_one_way() -> None:
    assert not against_the_order(ROOMS, room)


def test_imports_of_the_rewards_go_one_way() -> None:
    assert not against_the_order(KINDS, kind)
    assert {kind(module) for module in modules()} - {""} == {name for row in KINDS for name in row}


def kind(module: str) -> str:
    """``mmgrpo.rewards.text.answers`` is of the kind ``text``; what is no reward is of none."""
    return module.removeprefix("mmgrpo.rewards.").partition(".")[0] if module.startswith("mmgrpo.rewards.") else ""


def test_the_engine_does_not_import_adapters() -> None:
    engine = {module: tree for module, tree in modules().items() if room(module) not in TOP_FOLDERS}
    wrong = [
        f"{module} imports {name}"
        for module, tree in engine.items()
        for name in imported(tree)
        if name.removeprefix("mmgrpo.").split(".")[0] in TOP_FOLDERS
    ]
    assert not wrong


def test_adapters_import_contracts_and_never_each_other() -> None:
    wrong = [
        f"{module} imports {other}"
        for module, tree in modules().items()
        if room(module) in ("policies", "rewards")
        for other in imported_modules(tree)
        if room(other) != room(module) and not is_contract(other)
    ]
    assert not wrong


def is_contract(module: str) -> bool:
    return any(f"{module}.".startswith(f"mmgrpo.{contract}.") for contract in CONTRACTS)


def test_adapters_are_imported_by_one_name() -> None:
    """``policies.x`` beside ``mmgrpo.policies.x`` would be a second copy of every class."""
    statement = re.compile(rf"^\s*(?:from|import)\b.*(?<![.\w])(?:{'|'.join(TOP_FOLDERS)})\b", re.MULTILINE)
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in python_files()
        if statement.search(path.read_text())  # parsing takes long
        for name in imported(parsed(path))
        if name.split(".")[0] in TOP_FOLDERS
    ]
    assert not wrong


def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module: imported_modules(tree) - {module} for module, tree in modules().items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the cycle


def test_no_module_is_long() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in python_files()}
    assert not {name: length for name, length in lengths.items() if length > MAX_LINES}


def python_files() -> list[Path]:
    folders = ("mmgrpo", *TOP_FOLDERS, "tests", "benchmarks")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def classes() -> dict[str, ast.ClassDef]:
    """Our classes by dotted name."""
    return {
        f"{module}.{node.name}": node
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }


@cache
def names_in(module: str) -> dict[str, str]:
    """What the imported names of a module stand for, by the name they have there."""
    result = {}
    for node in ast.walk(modules()[module]):
        if isinstance(node, ast.Import):
            result |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            result |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return result


def our_bases(module: str, node: ast.ClassDef) -> Iterator[str]:
    """Dotted names of the bases that are classes of ours."""
    for base in node.bases:
        head, dot, rest = ast.unparse(base).partition("[")[0].partition(".")
        written = names_in(module).get(head, head if dot else f"{module}.{head}") + dot + rest
        result = defined_at(written)
        if result is not None:
            yield result


def defined_at(name: str) -> str | None:
    """Where a class of ours is defined, followed from where it is imported; None if it is not ours."""
    module, _, attribute = name.rpartition(".")
    if name in classes() or module not in modules():
        return name if name in classes() else None
    passed_on = names_in(module).get(attribute)
    return None if passed_on is None else defined_at(passed_on)


def is_abstract(node: ast.ClassDef) -> bool:
    return any(ast.unparse(base).partition("[")[0] in ("ABC", "Protocol") for base in node.bases)


def methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef)]


def test_no_class_inherits_from_a_concrete_class() -> None:
    wrong = [
        f"{name} inherits from {base}"
        for name, node in classes().items()
        for base in our_bases(name.rpartition(".")[0], node)
        if not is_abstract(classes()[base]) and base not in EXTENSIBLE and not base.startswith("mmgrpo.errors.")
    ]
    assert not wrong


def test_bases_are_found_where_they_are_defined() -> None:
    name = "mmgrpo.policies.diffusion.policy"
    bases = list(our_bases(name, classes()[f"{name}.DenoisingPolicy"]))
    contracts = (
        "SupportsNamedWeights",
        "SupportsSupervisedLoss",
        "SupportsWindows",
        "SupportsResolvedSettings",
        "SupportsUnbatchedRows",
        "SupportsOffPolicyScoring",
        "SupportsPromptOverride",
        "SupportsSharding",
    )
    contracts += ("SupportsContextParallel", "SupportsExport")
    assert bases == [f"mmgrpo.policy.{contract}" for contract in contracts]
    assert defined_at("mmgrpo.policies.diffusion.DenoisingPolicy") == f"{name}.DenoisingPolicy"


def test_abstract_classes_are_small_and_purely_abstract() -> None:
    abstract = {name: methods(node) for name, node in classes().items() if is_abstract(node)}
    assert "mmgrpo.policy.Policy" in abstract
    assert not {name: len(result) for name, result in abstract.items() if len(result) > MAX_ABSTRACT_METHODS}
    concrete = [f"{name}.{m.name}" for name, result in abstract.items() for m in result if not is_declaration(m)]
    assert not concrete


def is_declaration(method: ast.FunctionDef) -> bool:
    """Whether the body of a method is a docstring, dots, or a single use of ``self.weights``."""
    code = [line for line in method.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))]
    return not code or (len(code) == 1 and "self.weights." in ast.unparse(code[0]))


def test_only_the_console_opens_a_console() -> None:
    """What others print on is markup to rich; ours shows every string as text."""
    console_imports = ("rich.console", "rich.markup", "rich.markdown", "rich.print")
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        for name in imported(tree)
        if name.startswith(console_imports) and module != "mmgrpo.system.console"
    ]
    assert not wrong


def calls_of(function: str) -> list[str]:
    """The modules in which a function of ours is called by its imported name."""
    return [
        module
        for module, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and names_in(module).get(node.func.id) == function
    ]


def test_functions_of_a_configuration_are_bound_in_the_algorithm_alone() -> None:
    assert set(calls_of("mmgrpo.config.numbers.bound")) == {"mmgrpo.algorithm"}


def test_components_of_a_run_are_built_in_one_module() -> None:
    builders = [
        f"{module}.{node.name}"
        for module, tree in modules().items()
        if module.startswith("mmgrpo.") and room(module) not in TOP_FOLDERS
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("build_")
    ]
    assert sorted(builders) == [
        f"mmgrpo.training.build.build_{name}" for name in ("critic", "optimizer", "policy", "rewards", "views")
    ]
