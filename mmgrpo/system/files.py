"""Files that are whole or not there: written aside, synced, and put in place in one move; lines appended whole."""

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
class Lines:
    """What could be read of a ``.jsonl`` file.

    Attributes:
        rows: its objects, in order.
        num_dropped: lines that hold none: blank, torn off, or something else.
    """

    rows: tuple[dict[str, Any], ...] = ()
    num_dropped: int = 0


FULL_BYTES = 16 * 2**20
"""A disk with less than this is full: what could not be written was more."""


def full_disk(path: Path) -> str:
    """What to add to an error of writing a path: that its disk is full and what to do; empty where it is not.

    torch and safetensors do not say so themselves ("file write failed").
    """
    folder = next(parent for parent in (path, *path.parents) if parent.is_dir())
    free = shutil.disk_usage(folder).free
    if free >= FULL_BYTES:
        return ""
    return f" (the disk of {folder} is full, {free / 2**20:.1f} MiB free: make room, or set output=FOLDER on another)"


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system refuses within is an OutputError that names the path and a cure."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        raise OutputError(
            f"{path} cannot be written: {error.strerror or error}; make room or give leave to write there, or name "
            f"another folder (output=FOLDER)"
        ) from error


def replace_text(path: Path, text: str) -> None:
    """Puts a text in the place of a file, which at every moment is the old one or the new one."""
    aside = path.with_name(f".{path.name}.new")
    with writing(path):
        try:
            aside.unlink(missing_ok=True)  # a link of that name would lead elsewhere
            with aside.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            with suppress(OSError):
                aside.unlink(missing_ok=True)
            raise
        sync(path.parent)


def append_line(path: Path, text: str) -> None:
    """Appends a line, or nothing: what a full disk took of it is taken back."""
    with writing(path), path.open("ab", buffering=0) as file:
        before = file.seek(0, os.SEEK_END)
        try:
            rest = memoryview(f"{text}\n".encode())
            while rest:
                rest = rest[file.write(rest) :]
        except OSError:
            with suppress(OSError):
                file.truncate(before)
            raise


def read_lines(path: Path) -> Lines:
    """The objects of a ``.jsonl`` file, as far as it can be read; none if there is no file."""
    if not path.is_file():
        return Lines()
    texts = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = [_object(text) for text in (texts[:-1] if texts[-1] == "" else texts)]
    rows = tuple(row for row in found if row is not None)
    return Lines(rows, len(found) - len(rows))


def replace_folder(aside: Path, path: Path) -> None:
    """Puts a finished folder in the place of another, which goes out of sight before it is deleted."""
    if path.exists():
        remove_folder(path)
    os.rename(aside, path)


def remove_folder(path: Path) -> None:
    """Deletes a folder; one that is deleted by half is never seen under its name."""
    gone = path.with_name(f".{path.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    os.rename(path, gone)
    shutil.rmtree(gone)


def sync_tree(folder: Path, wanted: Callable[[Path], bool] = lambda _: True) -> None:
    """Waits until everything that is wanted in a folder is on the disk."""
    for parent, _, names in os.walk(folder):
        for path in (*(Path(parent) / name for name in names), Path(parent)):
            if wanted(path):
                sync(path)


def sync(path: Path) -> None:
    """Waits until a file, or the entries of a folder, are on the disk, where the file system can say so."""
    if path.is_dir():
        with suppress(OSError):  # Windows opens no folder, and some file systems sync none
            _sync(path, os.O_RDONLY)
    else:
        _sync(path, os.O_RDWR if hasattr(os, "O_BINARY") else os.O_RDONLY)  # Windows syncs what it may write


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
