"""Reads the files of an untrusted run folder: only regular files inside the folder, up to a size limit."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, final

MAX_TEXT = 2**20
MAX_LINE = 2**22
MAX_LOG = 2**28
MAX_PARTS = 2**17
"""Commas and opening brackets of a line of JSON, which bound the memory of the parsed value."""
MAX_ALL_PARTS = 2**23
"""Of all lines together."""
MAX_FILE_BYTES = 2**26


@final
class RunFiles:
    """Opens files of a run folder.

    Attributes:
        root: the resolved folder.
        refused: names of files outside of the folder or not regular; they are not opened.
        cut: names of files above the size limit, whose rest is not read.
    """

    def __init__(self, run: Path) -> None:
        """Opens nothing yet.

        Args:
            run: the folder.
        """
        self.root = run.resolve()
        self.refused: dict[str, None] = {}
        self.cut: dict[str, None] = {}
        self._parts_left = MAX_ALL_PARTS

    def regular_file(self, path: Path) -> Path | None:
        """The regular file of a path within the folder; None if it does not exist or is not allowed."""
        try:
            real = path.resolve()
            mode = real.stat().st_mode
        except FileNotFoundError:
            return None
        except (OSError, RuntimeError, ValueError):  # a name that is too long or holds a zero byte, links in a circle
            return self._refuse(path)
        return real if real.is_relative_to(self.root) and stat.S_ISREG(mode) else self._refuse(path)

    def folders(self, parent: str, prefix: str) -> list[str]:
        """Names of the folders in a folder that start with a prefix; links out of the run folder are not followed."""
        try:
            names = [entry.name for entry in os.scandir(self.root / parent) if entry.name.startswith(prefix)]
        except OSError:
            return []
        return sorted(name for name in names if self._is_within(self.root / parent / name))

    def text(self, name: str) -> str | None:
        """The text of a file, with replacement characters for invalid bytes; None if there is no such file."""
        file = self._opened(self.root / name)
        if file is None:
            return None
        with file:
            data = file.read(MAX_TEXT + 1)
        if len(data) > MAX_TEXT:
            self.cut[name] = None
        return data[:MAX_TEXT].decode(errors="replace")

    def lines(self, name: str) -> Iterator[str | None]:
        """The lines of a file that are not blank; None in place of a line above the limits."""
        file = self._opened(self.root / name)
        if file is None:
            return
        with file:
            is_rest = False
            while line := file.readline(MAX_LINE):
                was_rest, is_rest = is_rest, not line.endswith(b"\n")
                if file.tell() > MAX_LOG:
                    self.cut[name] = None
                    return
                if was_rest or (is_rest and len(line) == MAX_LINE):
                    yield from () if was_rest else (None,)
                elif (parts := sum(line.count(mark) for mark in (b",", b"[", b"{"))) > MAX_PARTS:
                    yield None
                elif parts > self._parts_left:
                    self.cut[name] = None
                    return
                elif text := line.decode(errors="replace").strip():
                    self._parts_left -= parts
                    yield text

    def bytes_of(self, path: Path) -> bytes | None:
        """The content of a media file; None if it does not exist or is above the size limit."""
        file = self._opened(path)
        if file is None:
            return None
        with file:
            data = file.read(
                min(os.fstat(file.fileno()).st_size, MAX_FILE_BYTES) + 1
            )  # memory is taken for all of that
        return data if len(data) <= MAX_FILE_BYTES else None

    def _is_within(self, folder: Path) -> bool:
        try:
            real = folder.resolve()
        except (OSError, RuntimeError):
            return False
        if not real.is_relative_to(self.root):
            self._refuse(folder)
            return False
        return real.is_dir()

    def _opened(self, path: Path) -> BinaryIO | None:
        real = self.regular_file(path)
        if real is None:
            return None
        # O_NONBLOCK: without waiting if the file has become a pipe meanwhile; Windows has O_BINARY alone
        flags = (getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY"))
        try:
            return os.fdopen(os.open(real, os.O_RDONLY | sum(flags)), "rb")
        except OSError:
            return self._refuse(path)

    def _refuse(self, path: Path) -> None:
        name = os.path.relpath(path, self.root) if path.is_absolute() else str(path)
        self.refused[name[:200]] = None
