"""Atomic file operations: files are written under another name, synced and renamed; lines are appended completely."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.errors import OutputError


@dataclass(frozen=True, slots=True)
class JsonLines:
    """The readable lines of a ``.jsonl`` file.

    Attributes:
        rows: the objects, in order.
        num_dropped: number of lines without an object: blank, truncated or of another type.
    """

    rows: tuple[dict[str, Any], ...] = ()
    num_dropped: int = 0


FULL_BYTES = 16 * 2**20
"""A disk with less free space counts as full."""


def full_disk(path: Path) -> str:
    """Returns a text that adds to a write error that the disk is full, with a fix; empty if the disk is not full.

    The errors of torch and safetensors do not mention it ("file write failed").
    """
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if free >= FULL_BYTES:
        return ""
    return f" (the disk of {folder} is full, {free / 2**20:.1f} MiB free: make room, or set output=FOLDER on another)"


@contextmanager
def output_errors(path: Path) -> Iterator[None]:
    """Context that converts an OSError to an OutputError with the path and a fix."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}; free disk space, grant write permission, or set "
            f"another folder (output=FOLDER)"
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Replaces a file atomically: it always has the old or the new text."""
    replace_bytes(path, text.encode())


def replace_bytes(path: Path, data: bytes) -> None:
    """Replaces a file atomically: it always has the old or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    with output_errors(path):
        try:
            temporary.unlink(missing_ok=True)  # a link of that name would lead elsewhere
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def append_line(path: Path, text: str) -> None:
    """Appends a complete line, or nothing: truncates a partial line if the disk is full."""
    with output_errors(path), path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(f"{text}\n".encode())
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def read_lines(path: Path) -> JsonLines:
    """Reads the objects of a ``.jsonl`` file; skips unreadable lines; empty without a file."""
    if not path.is_file():
        return JsonLines()
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    objects = [_object(text) for text in (texts[:-1] if texts[-1] == "" else texts)]
    rows = tuple(row for row in objects if row is not None)
    return JsonLines(rows, len(objects) - len(rows))


def replace_folder(source: Path, path: Path) -> None:
    """Renames a complete folder to a path; removes an existing folder there first (``remove_folder``)."""
    if path.exists():
        remove_folder(path)
    os.rename(source, path)


def remove_folder(path: Path) -> None:
    """Renames a folder, then deletes it, so that a partly deleted folder never has its name."""
    renamed = path.with_name(f".{path.name}.gone")
    shutil.rmtree(renamed, ignore_errors=True)
    os.rename(path, renamed)
    shutil.rmtree(renamed)


def sync_tree(folder: Path, include: Callable[[Path], bool] = lambda _: True) -> None:
    """Syncs the matching files and folders of a folder to disk."""
    for parent, _, names in os.walk(folder):
        for path in (*(Path(parent) / name for name in names), Path(parent)):
            if include(path):
                sync(path)


def sync(path: Path) -> None:
    """Syncs a file, or the entries of a folder, to disk, if the file system supports it."""
    if path.is_dir():
        with suppress(OSError):  # Windows opens no folder, and some file systems sync none
            _sync(path, os.O_RDONLY)
    else:
        _sync(path, os.O_RDWR if hasattr(os, "O_BINARY") else os.O_RDONLY)  # Windows syncs only writable files


def _sync(path: Path, flags: int) -> None:
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
