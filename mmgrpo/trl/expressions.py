"""Expressions of a script that is not executed."""

from __future__ import annotations

import ast

NO_LITERAL = (ValueError, TypeError, RecursionError, MemoryError)
"""Errors for an expression that is no literal."""

LENGTH = 60
"""Characters of an expression in a comment."""


def name_of(node: ast.expr) -> str | None:
    """The last name of a function: ``GRPOConfig`` of ``trl.GRPOConfig``.

    Args:
        node: the expression.

    Returns:
        The name; None: it is another expression.
    """
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else None


def shortened(text: str) -> str:
    """A text on one line, with an ellipsis in place of its end if it is long.

    Args:
        text: the text.

    Returns:
        At most ``LENGTH`` characters.
    """
    line = " ".join(text.split())
    return line if len(line) <= LENGTH else f"{line[: LENGTH - 3]}..."
