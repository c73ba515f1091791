"""Conversion of data values of numpy, torch, pandas, pyarrow and decimal to built-in Python types."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

MAX_ELEMENTS = 1_000_000
"""Larger arrays stay arrays."""

_MISSING = frozenset(("NAType", "NaTType"))


def plain_value(value: Any) -> Any:
    """Convert a value of a data row to built-in types.

    Scalars of numpy, torch and pyarrow, and zero-dimensional arrays, become numbers, strings and bools; arrays and
    series become lists; Decimal and Fraction become numbers, integral ones ints. float32 and float16 keep their
    shortest decimal (np.float32(0.1) is 0.1). Missing values (NaN, pandas' NA and NaT) are None. Lists, tuples and
    mappings are converted item by item; anything else is unchanged.
    """
    if value is None or (isinstance(value, str | bool | int) and type(value) in (str, bool, int)):
        return value
    if isinstance(value, Mapping):
        return {key: plain_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_value(item) for item in value]
    return _plain_scalar(_as_numpy(value))


def _as_numpy(value: Any) -> Any:
    """A tensor as an array, a scalar of arrow as its Python value, a series as a list; else the value."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        detached = value.detach().cpu()
        return (detached.float() if detached.dtype == torch.bfloat16 else detached).numpy()
    module = type(value).__module__.partition(".")[0]
    if module == "pyarrow" and callable(getattr(value, "as_py", None)):
        return value.as_py()
    if module in ("pandas", "polars") and (tolist := getattr(value, "tolist", None) or getattr(value, "to_list", None)):
        return tolist()
    return value


def _plain_scalar(value: Any) -> Any:
    if isinstance(value, list | tuple | Mapping):
        return plain_value(value)
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            return _plain_scalar(value[()])
        return value if value.size > MAX_ELEMENTS else [plain_value(item) for item in value]
    if isinstance(value, np.floating) and value.dtype.itemsize < 8:
        return _number_or_none(float(str(value)))
    if isinstance(value, np.generic) and not isinstance(value, (np.datetime64, np.timedelta64)):
        return plain_value(value.item()) if not isinstance(value.item(), np.generic) else value
    if isinstance(value, (Decimal, Fraction)):
        return _exact(value)
    if isinstance(value, (bool, int, str)):
        return value
    if type(value).__name__ in _MISSING:
        return None
    return _number_or_none(value) if isinstance(value, float) else value


def _number_or_none(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _exact(value: Decimal | Fraction) -> int | float | None:
    if isinstance(value, Decimal) and not value.is_finite():
        return _number_or_none(float(value))
    return (
        int(value) if value == int(value) and not (isinstance(value, Decimal) and "." in str(value)) else float(value)
    )
