"""Parses JSON lines and text files, with errors that name the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mmgrpo.errors import DataError


def row_of(line: bytes, where: str) -> Any:
    """The parsed value of a line. Raises DataError, with the line, if it is not UTF-8 or not JSON."""
    try:
        return json_of(line.decode("utf-8-sig"), where)
    except UnicodeDecodeError as error:
        raise DataError(f"{where} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except json.JSONDecodeError as error:
        raise DataError(f"{where} is not JSON: {error.msg} at column {error.colno}") from error


def json_of(text: str, where: str) -> Any:
    """The value of a JSON text. Raises JSONDecodeError if it is invalid, DataError if Python cannot represent it."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise DataError(f"{where} is nested too deeply; at most a few hundred levels can be read") from error
    except ValueError as error:
        raise DataError(f"{where} cannot be read: {error}") from error


def text_of(path: Path) -> str:
    """The text of a file. Raises DataError if it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
