"""Functions from the files of a clone, without the imports of those files."""

from __future__ import annotations
import __future__ as future

import ast
import math
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmgrpo.errors import ConfigError


def masked_mean(
    values: Tensor, mask: Tensor, axis: int | None = None, *, dim: int | None = None, eps: float = 0.0
) -> Tensor:
    """As verl's helper of this name, and that of EasyR1, whose argument is ``dim``."""
    along = axis if dim is None else dim
    return (values * mask).sum(along) / (mask.sum(along) + eps)


def masked_sum(values: Tensor, mask: Tensor, axis: int | None = None) -> Tensor:
    """As verl's helper of this name."""
    return (values * mask).sum(axis)


class Settings(dict[str, Any]):
    """The configuration of an author's function: keys that are attributes too."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


def _silent(*_: Any, **__: Any) -> None:
    """In place of print."""


SURROUNDINGS: Mapping[str, Any] = {
    "ActorConfig": Settings,
    "AlgoConfig": type("AlgoConfig", (), {}),
    "F": torch.nn.functional,
    "VF": SimpleNamespace(masked_mean=masked_mean, masked_sum=masked_sum),
    "dataclass": dataclass,
    "deepcopy": deepcopy,
    "defaultdict": defaultdict,
    "math": math,
    "np": np,
    "print": _silent,
    "torch": torch,
    "verl_F": SimpleNamespace(masked_mean=masked_mean, masked_sum=masked_sum),
}
"""Names that an author's file imports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The place of an author's functions.

    Attributes:
        repo: ``OWNER/NAME``.
        path: the file in it.
        names: of functions, classes and constants of the file; ``Class.function`` names a method.
        needs: values of further names that these use, by name.
    """

    repo: str
    path: str
    names: Sequence[str]
    needs: Mapping[str, Any] = field(default_factory=dict)


def commit_of(folder: Path, repo: str) -> str | None:
    """The checked-out commit of the clone, abbreviated; None without a clone."""
    git = _git_of(folder, repo)
    return None if git is None else _git_output(git, "rev-parse", "--short=7", "HEAD").strip()


def taken(folder: Path, source: Source) -> SimpleNamespace:
    """The named functions in a separate namespace, without annotations and without decorators except ``dataclass``.

    Raises: ConfigError if there is no clone, or its file lacks a name.
    """
    git = _git_of(folder, source.repo)
    if git is None:
        raise ConfigError(f"no clone of {source.repo} in {folder}: clone it to {folder}/{_folder_of(source.repo)}/repo")
    result = dict(_definitions(ast.parse(_git_output(git, "show", f"HEAD:{source.path}"))))
    missing = [name for name in source.names if name not in result]
    if missing:
        raise ConfigError(f"{source.repo}, {source.path} has no {', '.join(missing)}: correct the names of the case")
    body = [_bare(result[name]) for name in source.names]
    code = compile(ast.Module(body=body, type_ignores=[]), source.path, "exec", flags=future.annotations.compiler_flag)
    surroundings = {**SURROUNDINGS, **source.needs, "__name__": __name__}
    exec(code, surroundings)
    return SimpleNamespace(**{name: surroundings[name] for name in (name.rpartition(".")[2] for name in source.names)})


def _definitions(tree: ast.Module) -> list[tuple[str, ast.stmt]]:
    result: list[tuple[str, ast.stmt]] = []
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            result += [
                (f"{node.name}.{method.name}", method) for method in node.body if isinstance(method, ast.FunctionDef)
            ]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            result.append((node.name, node))
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            result.append((node.targets[0].id, node))
    return result


def _bare(node: ast.stmt) -> ast.stmt:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        node.decorator_list = [decorator for decorator in node.decorator_list if ast.unparse(decorator) == "dataclass"]
    return node


def _folder_of(repo: str) -> str:
    return repo.replace("/", "+")


def _git_of(folder: Path, repo: str) -> Path | None:
    clone = folder / _folder_of(repo) / "repo"
    result = [git for git in (clone / ".git", clone) if (git / "HEAD").is_file()]
    return result[0] if result else None


def _git_output(git: Path, *words: str) -> str:
    return subprocess.run(
        ["git", f"--git-dir={git}", *words], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout
