"""Maps columns of a row to the columns that prompts and rewards read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from mmgrpo.data.prompt_media import COLUMNS
from mmgrpo.errors import DataError

MEDIA_COLUMNS = tuple(name for names in COLUMNS.values() for name in names)

_PART = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_STEP = re.compile(r"\.?([^.\[\]]+)|\[(-?\d+)\]")


def is_column_name(source: Any) -> bool:
    """Whether a source is the name of a column: a text that is neither a template nor a path into a value."""
    return isinstance(source, str) and re.search(r"[{}.\[\]]", source) is None


def prompt_column(columns: Mapping[str, Any]) -> str:
    """The column of the prompt in rows to which ``map_columns`` was applied."""
    source = columns.get("prompt", "prompt")
    return source if is_column_name(source) else "prompt"


def require_column_map(columns: Mapping[str, Any]) -> None:
    """Raises DataError if a map of columns has a source that is none."""
    for name, source in columns.items():
        for text in source.values() if isinstance(source, Mapping) else (source,):
            if not isinstance(text, str) or not text:
                raise DataError(
                    f"columns.{name} must be the name of a column, a path such as reward_model.ground_truth, a text "
                    f"with columns in braces, or an object of these, got {source!r:.80}"
                )
            for part in _PART.finditer(text):
                if part[0] in ("{", "}") or part[1] == "":
                    raise DataError(
                        f"columns.{name}: write braces that hold no column as {{{{ and }}}}, got {text!r:.80}"
                    )


def renamed_media(columns: Mapping[str, Any]) -> dict[str, str]:
    """Columns of a dataset that hold the media of the prompt under another name -> that of the prompt's column."""
    return {source: name for name, source in columns.items() if name in MEDIA_COLUMNS and is_column_name(source)}


def map_columns(row: Any, columns: Mapping[str, Any], where: str) -> Any:
    """A row with further columns, made from its own.

    A source is the name of a column; a path into nested objects and lists (``reward_model.ground_truth``,
    ``answer[0]``); a text with names and paths in braces (``Use the numbers {nums}.``); or an object of these. The
    prompt's column keeps its name (``prompt_column``), and media are moved, so that rewards do not receive them.

    Args:
        row: the row.
        columns: target column -> source.
        where: name of the row in errors.

    Returns:
        The mapped row; the row itself if it is no object.

    Raises:
        DataError: the row has no such column, or a text needs a value that is null.
    """
    if not columns or not isinstance(row, Mapping):
        return row
    mapped = {
        name: _value_of(source, row, where)
        for name, source in columns.items()
        if not (name == "prompt" and is_column_name(source))
    }
    moved = {name: source for source, name in renamed_media(columns).items() if source != name}
    rest = {name: value for name, value in row.items() if name not in moved.values()}
    return {**rest, **mapped}


def _value_of(source: Any, row: Mapping[str, Any], where: str) -> Any:
    if isinstance(source, Mapping):
        values = {name: _value_of(inner, row, where) for name, inner in source.items()}
        return {name: value for name, value in values.items() if value is not None}
    if _PART.search(source) is None:
        return _value_at(source, row, where)
    return _PART.sub(_filled(source, row, where), source)


def _filled(template: str, row: Mapping[str, Any], where: str) -> Callable[[re.Match[str]], str]:
    def text_of(part: re.Match[str]) -> str:
        if part[1] is None:
            return part[0][0]
        value = _value_at(part[1], row, where)
        if value is None:
            raise DataError(f"{where}: '{part[1]}' of the template {template!r:.80} has no value in this row")
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)

    return text_of


def _value_at(path: str, row: Mapping[str, Any], where: str) -> Any:
    """The value at a path; None where a nested value is missing."""
    if path in row:
        return row[path]
    steps = list(_steps(path, where))
    if steps[0] not in row:
        raise DataError(
            f"{where} has no column '{steps[0]}', which prompts.columns names; it has {', '.join(map(str, row))}"
        )
    value: Any = row
    for step in steps:
        if isinstance(step, int):
            value = value[step] if isinstance(value, list | tuple) and -len(value) <= step < len(value) else None
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _steps(path: str, where: str) -> Iterator[str | int]:
    end = 0
    while end < len(path):
        step = _STEP.match(path, end)
        if step is None or (step[1] is None and end == 0):
            raise DataError(f"{where}: {path!r:.80} is no path of a column; write it as column.key or column[0]")
        yield step[1] if step[2] is None else int(step[2])
        end = step.end()
