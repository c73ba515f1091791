"""The one way to the terminal: what is printed is text, whoever wrote it.

Messages carry names, labels, values and errors of others: of data, of rewards, of files. On a ``PlainConsole`` a string
is shown as it stands, without markup, emoji codes or colours of its own, and control characters, which a terminal would
obey, are written out. Our own words are styled by ``styled``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderResult
    from rich.markdown import Markdown

MAX_SHOWN = 4000
"""Characters of an error or a warning; of a longer one the middle is left out."""

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but tab and newline: escape sequences, the bell, a return to overwrite
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # what turns or breaks lines of text
    "\ud800-\udfff]"  # halves of characters, which no terminal can be sent
)


def shown(text: object) -> str:
    r"""A text as it may go to a terminal: control characters as their codes, such as ``\x1b``."""
    return _OBEYED.sub(lambda found: _code(ord(found[0])), str(text))


def brief(text: object) -> str:
    """A text as ``shown``, without its middle where it is longer than a person reads."""
    whole = shown(text)
    if len(whole) <= MAX_SHOWN:
        return whole
    half = MAX_SHOWN // 2
    return f"{whole[:half]} ... ({len(whole) - 2 * half} characters left out) ... {whole[-half:]}"


def styled(text: object, style: str) -> Text:
    """A text in a style of rich, itself no markup."""
    return Text(shown(text), style)


def page(markdown: str) -> Markdown:
    """A page of Markdown, whole however narrow it is; links are written out, so that they lead nowhere unseen."""
    from rich.markdown import Markdown, TableElement
    from rich.table import Table

    class Folded(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for table in super().__rich_console__(console, options):
                for column in table.columns if isinstance(table, Table) else ():
                    column.overflow = "fold"
                yield table

    found = Markdown(shown(markdown), hyperlinks=False)
    found.elements = {**Markdown.elements, "table_open": Folded}  # type: ignore[misc]
    return found


def make_encodable(*streams: Any) -> None:
    r"""Lets a text stream write a character that its encoding lacks as its code, such as ``\xb1``, not raise.

    Args:
        *streams: such as ``sys.stdout``; those that are not open, or do not let that be set, stay as they are.
    """
    for stream in streams:
        if getattr(stream, "errors", None) == "strict" and callable(getattr(stream, "reconfigure", None)):
            stream.reconfigure(errors="backslashreplace")


@final
class EncodableStream:
    """A stream of another class than Python's own, whose characters that cannot be encoded are written as codes."""

    def __init__(self, stream: Any) -> None:
        """Wraps it.

        Args:
            stream: has ``write`` and ``flush``.
        """
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Anything else is the stream's."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text; returns the number of characters that the stream took."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self._stream.write(text.encode("ascii", "backslashreplace").decode("ascii"))


@final
class PlainConsole(Console):
    """A console to which a string is text, in tables and titles too; no encoding of its stream raises an error."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        """Opens it.

        Args:
            stderr: writes there, not to stdout.
            quiet: writes nothing.
        """
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)

    @property
    def file(self) -> Any:
        """The stream to write to, which is looked up anew for each text."""
        stream = super().file
        make_encodable(stream)
        return stream if hasattr(stream, "reconfigure") else EncodableStream(stream)

    @file.setter
    def file(self, new_file: Any) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """The string as text without control characters; rich asks for it wherever a string is printed."""
        return super().render_str(shown(text), **options)

    def on_broken_pipe(self) -> None:
        """Whoever read has gone, as ``head`` does: nothing more is written, and what was asked for goes on."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def say(self, *parts: str | Text) -> None:
        """Prints a line, or several, that are never wrapped, so that paths in them can be copied."""
        self.print(*parts, soft_wrap=True)

    def folded(self, parts: Sequence[str], between: str, *, indent: int) -> str:
        """What no terminal is to break within: one line in a file, on a terminal as many as its width asks.

        Args:
            parts: what stays whole.
            between: them, on a line.
            indent: columns that stand before the first line and are left free before the others.

        Returns:
            The lines.
        """
        if not self.file.isatty():
            return between.join(parts)
        lines = [""]
        for part in parts:
            longer = f"{lines[-1]}{between}{part}" if lines[-1] else part
            if lines[-1] and indent + cell_len(longer) > self.width:
                lines.append(part)
            else:
                lines[-1] = longer
        return f"\n{' ' * indent}".join(lines)


@final
class PlainFormatter(logging.Formatter):
    """Warnings as text: they carry errors of rewards and of servers."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, without control characters."""
        return brief(super().format(record))


def log_plainly() -> None:
    """Makes warnings that no other handler takes go to the terminal as text, in whatever encoding it has."""
    make_encodable(sys.stdout, sys.stderr)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())


def raised_plainly(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A ``sys.excepthook`` whose traceback is text: the error's message may be of others."""
    sys.stderr.write(shown("".join(traceback.format_exception(kind, error, trace))))


def _code(point: int) -> str:
    return f"\\x{point:02x}" if point < 256 else f"\\u{point:04x}"
