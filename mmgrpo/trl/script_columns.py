"""The columns that a script of TRL gives to the rows of its dataset, read without executing it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, Never, final

from mmgrpo.data.column_maps import is_column_name
from mmgrpo.trl.expressions import NO_LITERAL, shortened

WITHOUT_EFFECT = ("num_proc", "desc", "load_from_cache_file", "keep_in_memory", "writer_batch_size")
"""Arguments of ``map`` that change no row."""

CHANGES = ("map", "rename_column", "rename_columns")
"""Methods of a dataset that are read."""

CHOICES = ("filter", "remove_columns", "select", "select_columns", "shuffle", "skip", "take", "train_test_split")
"""Methods of a dataset that choose rows or columns, and change no value."""


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptColumns:
    """The columns of a dataset after methods that were called on it.

    Attributes:
        sources: column -> source, as ``prompts.columns`` has them.
        chat: True: prompts are messages; False: texts; None: as they are stored.
        system: content of the system message.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    chat: bool | None = None
    system: str | None = None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnReader:
    """Reads calls of ``rename_column``, ``rename_columns`` and ``map``.

    Attributes:
        functions: the functions of the script, by name.
        literal: the value of a literal; raises one of ``NO_LITERAL`` for another expression.
    """

    functions: Mapping[str, ast.FunctionDef]
    literal: Callable[[ast.expr], Any]

    def read(self, operations: Sequence[tuple[str, ast.Call]]) -> tuple[ScriptColumns, list[str]]:
        """The columns after calls of methods of a dataset.

        Args:
            operations: the expression and the node of each call, in the order of the calls.

        Returns:
            The columns, and the expressions that they do not hold: those of ``CHOICES``, and from the first one whose
            effect on columns cannot be read all.
        """
        columns, unread = ScriptColumns(), []
        for number, (expression, call) in enumerate(operations):
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if method in CHOICES:
                unread.append(expression)
                continue
            try:
                columns = self._mapped(call, columns) if method == "map" else self._renamed(method, call, columns)
            except NO_LITERAL:
                return columns, unread + [later for later, _ in operations[number:]]
            removed = [part.value for part in call.keywords if part.arg == "remove_columns"]
            unread += [f"remove_columns={shortened(ast.unparse(node))}" for node in removed]
        return columns, unread

    def _renamed(self, method: str, call: ast.Call, columns: ScriptColumns) -> ScriptColumns:
        """The columns after a call of ``rename_column(s)``. Raises one of ``NO_LITERAL`` for another method."""
        match method, [self.literal(node) for node in [*call.args, *(part.value for part in call.keywords)]]:
            case "rename_column", [str() as name, str() as new_name]:
                names = {name: new_name}
            case "rename_columns", [dict() as names]:
                pass
            case _:
                _refuse("another method")
        kept = {name: source for name, source in columns.sources.items() if name not in names}
        return replace(columns, sources={**kept, **{new: _column(name, columns) for name, new in names.items()}})

    def _mapped(self, call: ast.Call, columns: ScriptColumns) -> ScriptColumns:
        """The columns after a call of ``map``. Raises one of ``NO_LITERAL`` if it cannot be read."""
        functions = [
            *call.args,
            *(part for part in call.keywords if part.arg not in (*WITHOUT_EFFECT, "remove_columns")),
        ]
        match functions:
            case [ast.keyword(arg="function", value=function)] | [ast.expr() as function]:
                row, values = self._returned(function)
            case _:
                _refuse("arguments with an effect")
        reader, sources = _RowReader(row=row, columns=columns, literal=self.literal), dict(columns.sources)
        for name, node in values.items():
            if name == "prompt" and isinstance(node, ast.List):
                system, content = reader.messages(node)
                columns, sources[name] = replace(columns, chat=True, system=system), reader.source(content)
                continue
            if name == "prompt" and not isinstance(node, ast.Subscript):
                columns = replace(columns, chat=False, system=None)
            sources[name] = reader.source(node)
        return replace(columns, sources=sources)

    def _returned(self, function: ast.expr) -> tuple[str, Mapping[str, ast.expr]]:
        """The name of a function's argument, and the columns that it returns as expressions of it."""
        match self.functions.get(function.id) if isinstance(function, ast.Name) else function:
            case ast.Lambda(args=ast.arguments(args=[argument]), body=returned):
                return argument.arg, _entries(returned, argument.arg)
            case ast.FunctionDef(
                args=ast.arguments(args=[argument]), body=[*statements, ast.Return(value=ast.expr() as end)]
            ):
                assigned = _Assigned(argument.arg)
                for statement in statements:
                    assigned.read(statement)
                if isinstance(end, ast.Name) and end.id == argument.arg:
                    return argument.arg, assigned.columns
                if not assigned.columns:
                    return argument.arg, _entries(assigned.visit(deepcopy(end)), argument.arg)
        _refuse("another function")


@final
class _Assigned(ast.NodeTransformer):
    """The names and columns that a function assigns, which replace those in later expressions."""

    def __init__(self, row: str) -> None:
        self.row = row
        self.values: dict[str, ast.expr] = {}
        self.columns: dict[str, ast.expr] = {}

    def read(self, statement: ast.stmt) -> None:
        """Takes a statement of the function. Raises ValueError for one that is neither assignment nor docstring."""
        match statement:
            case ast.Expr(value=ast.Constant()):
                return
            case ast.Assign(targets=[ast.Name() as target], value=value):
                self.values[ast.unparse(target)] = self.visit(deepcopy(value))
            case ast.Assign(
                targets=[ast.Subscript(value=ast.Name(id=row), slice=ast.Constant(value=str() as name)) as target],
                value=value,
            ) if row == self.row:
                self.values[ast.unparse(target)] = self.columns[name] = self.visit(deepcopy(value))
            case _:
                _refuse("another statement")

    def visit(self, node: ast.AST) -> Any:
        """The assigned expression of a name or a column; another node with those within it replaced."""
        assigned = self.values.get(ast.unparse(node)) if isinstance(node, ast.Name | ast.Subscript) else None
        return self.generic_visit(node) if assigned is None else assigned


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class _RowReader:
    """Reads expressions of a row. Every method raises one of ``NO_LITERAL`` for those without a source.

    Attributes:
        row: name of the row.
        columns: its columns.
        literal: as in ``ColumnReader``.
    """

    row: str
    columns: ScriptColumns
    literal: Callable[[ast.expr], Any]

    def messages(self, node: ast.List) -> tuple[str | None, ast.expr]:
        """The text of the system turn, and the content of the only other message, which is the user's."""
        match [self._message(part) for part in node.elts]:
            case [("user", content)]:
                return None, _text_part(content)
            case [("system", system), ("user", content)]:
                return str(self.literal(_text_part(system))), _text_part(content)
        _refuse("other messages")

    def _message(self, node: ast.expr) -> tuple[str, ast.expr]:
        match node:
            case ast.Dict(keys=[ast.Constant(value="role"), ast.Constant(value="content")], values=[role, content]):
                return self.literal(role), content
        _refuse("no message")

    def source(self, node: ast.expr) -> str:
        """The source of an expression: a column, a path into it, or a text with these in braces."""
        if isinstance(node, ast.Subscript):
            return self._path(node)
        template = self._template(node)
        if "{" not in template.replace("{{", ""):
            _refuse("a text without columns")
        return template

    def _path(self, node: ast.Subscript) -> str:
        key = self.literal(node.slice)
        match node.value, key:
            case ast.Name(id=row), str() if row == self.row:
                return _column(key, self.columns)
            case ast.Subscript() as inner, int() | str() if (path := self._path(inner)).find("{") < 0:
                return f"{path}[{key}]" if isinstance(key, int) else f"{path}.{_plain(key)}"
        _refuse("no path")

    def _template(self, node: ast.expr) -> str:
        match node:
            case ast.Subscript():
                source = self._path(node)
                return source if "{" in source else f"{{{source}}}"
            case ast.JoinedStr(values=parts):
                return "".join(self._template(part) for part in parts)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self._template(value)
            case ast.BinOp(left=ast.Subscript(), op=ast.Add(), right=ast.Subscript()):
                _refuse("a sum that may be one of numbers")
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._template(left) + self._template(right)
        text = self.literal(node)
        return text.replace("{", "{{").replace("}", "}}") if isinstance(text, str) else _refuse("no text")


def _refuse(expression: str) -> Never:
    """Raises ValueError, as ``ast.literal_eval`` does."""
    raise ValueError(expression)


def _plain(name: Any) -> str:
    """The name of a column. Raises ValueError for one that ``prompts.columns`` reads as a path or a template."""
    return name if is_column_name(name) else _refuse("a name with points or braces")


def _column(name: Any, columns: ScriptColumns) -> str:
    return columns.sources.get(name, _plain(name))


def _entries(returned: ast.expr, row: str) -> dict[str, ast.expr]:
    """The entries of a dictionary but ``**row``. Raises one of ``NO_LITERAL`` for other expressions."""
    match returned:
        case ast.Dict(keys=keys, values=values):
            pairs = [(key and ast.literal_eval(key), value) for key, value in zip(keys, values, strict=True)]
        case ast.Call(func=ast.Name(id="dict"), args=[], keywords=keywords):
            pairs = [(keyword.arg, keyword.value) for keyword in keywords]
        case _:
            _refuse("no dictionary")
    return {_plain(name): value for name, value in pairs if name is not None or ast.unparse(value) != row}


def _text_part(content: ast.expr) -> ast.expr:
    """The text of a message. Its images are those of the row. Raises ValueError for other parts."""
    match content:
        case ast.List(elts=[*images, ast.Dict(keys=[_, _], values=[ast.Constant(value="text"), text])]):
            is_plain = all(ast.unparse(image) == "{'type': 'image'}" for image in images)
            return text if is_plain else _refuse("other parts")
    return content
