"""The datasets of a script of TRL, read without executing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from mmgrpo.trl.expressions import NO_LITERAL, name_of, shortened
from mmgrpo.trl.script_columns import ColumnReader, ScriptColumns

FILE_READERS = ("json", "parquet", "text")
"""Names of ``load_dataset`` that read ``data_files``."""

CONSTRUCTORS = ("from_json", "from_parquet", "from_text")
"""Methods of ``Dataset`` that read a file."""

ENDINGS = (".jsonl", ".json", ".parquet", ".txt")
"""Ends of the names of files that ``prompts.source`` reads."""

SOURCES = ("load_dataset", "load_from_disk", *CONSTRUCTORS)
READ = ("path", "name", "split", "data_files")
"""Arguments of ``load_dataset`` that are read."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptDataset:
    """A dataset of a script.

    Attributes:
        source: the file, folder or name, as ``prompts.source`` has it.
        split: its split; None: the expression selects none.
        is_local: whether the source is a file or a folder, which may have no splits.
        columns: the columns that the script gives to its rows.
        operations: expressions that choose or change its rows, and are not read.
        unread: argument of ``load_dataset`` that is not read -> its expression.
    """

    source: str
    split: str | None
    is_local: bool
    columns: ScriptColumns
    operations: Sequence[str]
    unread: Mapping[str, str]

    def comments(self, argument: str, key: str) -> list[str]:
        """What a configuration with the source lacks.

        Args:
            argument: argument of the trainer.
            key: section of the configuration.

        Returns:
            A sentence for each part of the expression that is not read.
        """
        comments = [f"{argument}: {name}={text} of load_dataset is not read" for name, text in self.unread.items()]
        if self.operations:
            comments.append(
                f"{argument}: {', '.join(self.operations)} is not executed, {key}.source has the rows as they are "
                f"stored: {key}.columns maps columns, {key}.split takes parts (train[:-100]), and {key}.source: "
                "python:MODULE:FUNCTION is a function that returns the dataset"
            )
        if self.is_local and len(Path(self.source).parts) > 1 and "://" not in self.source:
            comments.append(f"{argument}: paths of media count from the folder of {self.source}")
        return comments


def script_dataset(
    node: ast.expr,
    assignments: Mapping[str, Sequence[ast.Assign]],
    columns: ColumnReader,
    *,
    default_split: str,
) -> ScriptDataset | None:
    """The dataset of an expression: ``load_dataset(...)`` and others of ``SOURCES``, with methods that follow.

    Args:
        node: the expression, or a name that such expressions are assigned to one after the other.
        assignments: the assignments of each name, in the order of their lines.
        columns: reads literals, and the methods that give the rows other columns.
        default_split: the split of a dataset of the hub that the expression does not select.

    Returns:
        The dataset; None: it is another expression, or depends on branches.
    """
    operations: list[tuple[str, ast.Call]] = []
    remaining: dict[str, Sequence[ast.Assign]] = {}
    split: str | None = None
    while True:
        match node:
            case ast.Name(id=name):
                values = remaining.get(name, assignments.get(name, ()))
                values = [assignment for assignment in values if _place(assignment) < _place(node)]
                if not values:
                    return None
                node, remaining[name] = values[-1].value, values[:-1]
            case ast.IfExp(body=body, orelse=ast.Constant(value=None)):
                node = body
            case ast.Subscript(value=inner, slice=part):
                try:
                    node, split = inner, split or columns.literal(part)
                except NO_LITERAL:
                    return None
            case ast.Call(func=function) as call if name_of(function) in SOURCES:
                is_ambiguous = any(remaining.values())
                dataset = None if is_ambiguous else _loaded(call, split, operations[::-1], columns)
                has_splits = dataset is not None and dataset.split is None and not dataset.is_local
                return replace(dataset, split=default_split) if dataset and has_splits else dataset
            case ast.Call(func=ast.Attribute(value=inner, attr=method), args=args, keywords=keywords) as call:
                parts = [ast.unparse(part) for part in args] + [ast.unparse(part) for part in keywords]
                operation = f".{method}({', '.join(parts)})"
                if method == "train_test_split" and split is not None:
                    operation, split = f"{operation}[{split!r}]", None
                operations.append((shortened(operation), call))
                node = inner
            case _:
                return None


def _loaded(
    call: ast.Call, split: str | None, operations: Sequence[tuple[str, ast.Call]], columns: ColumnReader
) -> ScriptDataset | None:
    """The dataset of a call of ``SOURCES``; None: arguments that select it are no literals, or name several files."""
    kind = name_of(call.func)
    names = ("path", "name") if kind == "load_dataset" else ("path",)
    if len(call.args) > len(names) or any(keyword.arg is None for keyword in call.keywords):
        return None
    nodes = dict(zip(names, call.args, strict=False)) | {str(part.arg): part.value for part in call.keywords}
    for other in ("path_or_paths", "dataset_path"):
        if other in nodes:
            nodes["path"] = nodes.pop(other)
    try:
        values = {name: columns.literal(node) for name, node in nodes.items() if name in READ}
    except NO_LITERAL:
        return None
    unread = {name: shortened(ast.unparse(node)) for name, node in nodes.items() if name not in READ}
    is_hub, is_file = kind == "load_dataset", kind in CONSTRUCTORS
    located = _located(values, values.get("split") or split, is_file=is_file, is_folder=not is_hub)
    if located is None:
        return None
    source, split = located
    is_local = not is_hub or values["path"] in FILE_READERS
    read, left = columns.read(operations)
    return ScriptDataset(source=source, split=split, is_local=is_local, columns=read, operations=left, unread=unread)


def _place(node: ast.stmt | ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _located(values: Mapping[str, Any], split: Any, *, is_file: bool, is_folder: bool) -> tuple[str, str | None] | None:
    """The source and the split; None: several files, or a value of another type."""
    path, part, files = values.get("path"), values.get("name"), values.get("data_files")
    if not isinstance(path, str) or not isinstance(split, str | None) or not isinstance(part, str | None):
        return None
    if is_folder:
        return path, None if is_file else split
    if isinstance(files, dict):
        files = files.get(split or "train")
    if isinstance(files, list) and len(files) == 1:
        files = files[0]
    if path in FILE_READERS:
        has_part = split is not None and "[" in split
        return (files, None) if isinstance(files, str) and "*" not in files and not has_part else None
    if "data_files" in values:
        is_read = isinstance(files, str) and files.endswith(ENDINGS) and "/" in path and part is None
        return (f"{path}:{files}", split) if is_read else None
    return (path if part is None else f"{path}:{part}"), split
