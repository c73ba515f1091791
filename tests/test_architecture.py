"""The packages of the code and the imports between them, read from the source."""

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
"""Folders at the top of a checkout that are imported as modules of ``mmgrpo``."""

PACKAGES = (
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
    ("tool_results",),
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
"""The engine. A package imports from itself and from earlier rows, from no other of its row or of later rows."""

KINDS = (
    ("parsing",),
    ("models",),
    ("text", "grounding", "images", "audio", "judges", "groups", "code"),
    ("video",),
)
"""The packages of rewards, in the same way."""

CONTRACTS = (
    *("errors", "values", "scores", "splits", "types", "maths", "policy", "reward", "environment", "samples"),
    *("tool_calls", "differentiating", "layouts", "shards", "outline", "serving.wire", "config.sections"),
    "config.validating",
    *("data.image_loading", "data.audio_loading", "data.videos", "data.media_options"),
    "data.turn_media",
    *("system.lazy", "system.extras", "system.hub", "system.targets", "system.folders", "system.bounded_http"),
    *(
        "system.out_of_memory",
        "system.process_settings",
        "system.json_requests",
        "system.sandbox",
        "system.embedding_weights",
    ),
    *("system.process_guard", "system.model_residence", "system.launch_environment", "system.remote_files"),
    "system.site_pages",
)
"""Modules of the engine that adapters may import."""

MAX_FUNCTION_LINES = 70  # without the docstring
MAX_ABSTRACT_METHODS = 6

EXTENSIBLE = {
    "mmgrpo.config.kl.KLConfig",
    "mmgrpo.config.losses.AddedLossConfig",
    "mmgrpo.config.prompts.ReadingConfig",
    "mmgrpo.config.rewards.EvaluationRewardConfig",
    "mmgrpo.config.sections.Named",
    "mmgrpo.config.sections.Section",
}
"""Sections of the configuration that others extend by keys. The other hierarchy of classes is that of errors."""


def module_name(path: Path) -> str:
    """``policies/x.py`` is ``mmgrpo.policies.x``; ``__init__.py`` has the name of its package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "mmgrpo" else ("mmgrpo", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """Frees two million objects, which the garbage collector would visit in every later test."""
    yield
    for function in (modules, nodes, imported, classes, names_in):
        function.cache_clear()


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the engine, the adapters, the rewards and the examples, by its imported name."""
    return {module_name(path): parsed(path) for path in source_files()}


def source_files() -> list[Path]:
    """The files of these modules."""
    return [path for folder in ("mmgrpo", *TOP_FOLDERS) for path in sorted((ROOT / folder).rglob("*.py"))]


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
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Every node of a module."""
    return tuple(ast.walk(tree))


@cache
def imported(tree: ast.AST) -> tuple[str, ...]:
    """Dotted names of everything imported anywhere in a module, under ``TYPE_CHECKING`` and in functions as well."""
    return tuple(_imported(tree))


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_modules(tree: ast.AST) -> set[str]:
    """The modules of mmgrpo that a module imports, or from which it imports a name."""
    return {result for name in imported(tree) if (result := nearest_module(name)) is not None}


def nearest_module(name: str) -> str | None:
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name or None


def package_of(module: str) -> str:
    """``mmgrpo.maths.ratios`` is in ``maths``, ``mmgrpo`` itself in ``__init__``."""
    name = module.partition(".")[2].partition(".")[0] or "__init__"
    return "training" if name == "loop" else name  # the step of training, where readers begin


def test_every_package_of_the_engine_has_its_row() -> None:
    listed = [name for row in PACKAGES for name in row]
    assert sorted(listed) == sorted({package_of(module) for module in modules()} - set(TOP_FOLDERS))


@pytest.mark.nightly
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
    """Imports from a package of these rows to one that is not in an earlier row."""
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
    assert not against_the_order(PACKAGES, package_of)


def test_imports_of_the_rewards_go_one_way() -> None:
    assert not against_the_order(KINDS, kind)
    assert {kind(module) for module in modules()} - {""} == {name for row in KINDS for name in row}


def kind(module: str) -> str:
    """``mmgrpo.rewards.text.answers`` is of the kind ``text``; other modules have none."""
    return module.removeprefix("mmgrpo.rewards.").partition(".")[0] if module.startswith("mmgrpo.rewards.") else ""


def test_the_engine_does_not_import_adapters() -> None:
    engine = {module: tree for module, tree in modules().items() if package_of(module) not in TOP_FOLDERS}
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
        if package_of(module) in ("policies", "rewards")
        for other in imported_modules(tree)
        if package_of(other) != package_of(module) and not is_contract(other)
    ]
    assert not wrong


def is_contract(module: str) -> bool:
    return any(f"{module}.".startswith(f"mmgrpo.{contract}.") for contract in CONTRACTS)


def test_adapters_are_imported_by_one_name() -> None:
    """``policies.x`` in addition to ``mmgrpo.policies.x`` would be a second copy of every class."""
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


def test_functions_fit_on_a_screen() -> None:
    functions = {
        f"{module}.{node.name}": node
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef)
    }
    lengths = {name: num_lines(node) for name, node in functions.items()}
    assert not {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES}


def num_lines(node: ast.FunctionDef) -> int:
    """Lines of a function without its decorators and its docstring."""
    first = node.body[0]
    is_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    documented = first.end_lineno - first.lineno + 1 if is_docstring and first.end_lineno else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - documented


def python_files() -> list[Path]:
    folders = ("mmgrpo", *TOP_FOLDERS, "tests", "benchmarks")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@cache
def classes() -> dict[str, ast.ClassDef]:
    """The classes of mmgrpo by dotted name."""
    return {
        f"{module}.{node.name}": node
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.ClassDef)
    }


@cache
def names_in(module: str) -> dict[str, str]:
    """The full names of the imported names of a module, by their name in it."""
    result = {}
    for node in nodes(modules()[module]):
        if isinstance(node, ast.Import):
            result |= {alias.asname: alias.name for alias in node.names if alias.asname}
        if isinstance(node, ast.ImportFrom):
            result |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return result


def our_bases(module: str, node: ast.ClassDef) -> Iterator[str]:
    """Dotted names of the bases that are classes of mmgrpo."""
    for base in node.bases:
        head, dot, rest = ast.unparse(base).partition("[")[0].partition(".")
        written = names_in(module).get(head, head if dot else f"{module}.{head}") + dot + rest
        result = defined_at(written)
        if result is not None:
            yield result


def defined_at(name: str) -> str | None:
    """The full name of a class of mmgrpo by the name under which it is imported; None for other classes."""
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
    contracts += ("SupportsContextParallel", "SupportsExport", "SupportsFloat16", "SupportsPreviews")
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
    """Other consoles of rich read markup in strings; that of mmgrpo prints every string as text."""
    console_imports = ("rich.console", "rich.markup", "rich.markdown", "rich.print")
    wrong = [
        f"{module} imports {name}"
        for module, tree in modules().items()
        for name in imported(tree)
        if name.startswith(console_imports) and module != "mmgrpo.system.console"
    ]
    assert not wrong


def calls_of(function: str) -> list[str]:
    """The modules in which a function of mmgrpo is called by its imported name."""
    return [
        module
        for module, tree in modules().items()
        for node in nodes(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and names_in(module).get(node.func.id) == function
    ]


def test_functions_of_a_configuration_are_bound_in_the_algorithm_alone() -> None:
    assert set(calls_of("mmgrpo.config.binding.bound")) == {"mmgrpo.algorithm"}


def test_components_of_a_run_are_built_in_one_module() -> None:
    builders = [
        f"{module}.{node.name}"
        for module, tree in modules().items()
        if module.startswith("mmgrpo.") and package_of(module) not in TOP_FOLDERS
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("build_")
    ]
    assert sorted(builders) == [
        f"mmgrpo.training.build.build_{name}" for name in ("critic", "optimizer", "policy", "rewards", "views")
    ]
