"""Scripts that train when they are imported, detected without executing them."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence


def training_line(text: str) -> int | None:
    """The line of a module that calls ``train`` of a trainer when the module is imported, also in a function of it.

    Args:
        text: the source of the module.

    Returns:
        The line; None: there is no such call, or all are under ``if __name__ == "__main__":``.
    """
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None  # its import raises the error
    functions = {node.name: node.body for node in body if isinstance(node, ast.FunctionDef)}
    training = {name for name, statements in functions.items() if any(map(_trains, _executed(statements)))}
    for node in _executed(body):
        if _trains(node) or (isinstance(node, ast.Call) and getattr(node.func, "id", None) in training):
            return node.lineno
    return None


def _trains(node: ast.AST) -> bool:
    """Whether a node is a call such as ``trainer.train()``; the method ``train`` of a model selects a mode."""
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="train")):
            return "trainer" in ast.unparse(owner).lower()
    return False


def _executed(statements: Sequence[ast.AST]) -> Iterator[ast.expr | ast.stmt]:
    """The parts of statements that are executed with them: no functions and classes, nothing for the main module."""
    for node in statements:
        is_main = isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
        if is_main or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield node
        yield from _executed(list(ast.iter_child_nodes(node)))
