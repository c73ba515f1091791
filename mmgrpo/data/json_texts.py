"""Files and lines of JSON, and what is wrong with those that are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmgrpo.errors import DataError


def row_of(line: bytes, where: str) -> Any:
    """What a line holds. Raises DataError, with the line, where it is no UTF-8 or no JSON."""
    try:
        return json_of(line.decode("utf-8-sig"), where)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error


def json_of(text: str, where: str) -> Any:
    """The value of a JSON text; JSONDecodeError where it is none, DataError where it is one that Python cannot hold."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise DataError(f"{where} is nested too deeply; at most a few hundred levels can be read") from error
    except ValueError as error:
        raise DataError(f"{where} cannot be read: {error}") from error


def text_of(path: Path) -> str:
    """What a file says. Raises DataError where it is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
