"""Values of an arrow table as the author of the data wrote them."""

from __future__ import annotations

from typing import Any


def without_null_keys(value: Any) -> Any:
    """A value of a dataset without the keys of nested objects that hold null.

    Arrow gives every object of a column the keys of all of them: ``{"x": 1}`` beside ``{"city": "Paris"}`` becomes
    ``{"x": 1, "city": None}``. A null that the data's author wrote is removed too, for arrow does not tell them apart.

    Args:
        value: anything; only dicts and lists are looked through.

    Returns:
        The value.
    """
    if isinstance(value, dict):
        return {key: without_null_keys(inner) for key, inner in value.items() if inner is not None}
    return [without_null_keys(inner) for inner in value] if isinstance(value, list) else value
