"""Terminal output: strings are printed literally, wherever they come from.

Messages contain names, labels, values and errors from data, rewards and files. A ``PlainConsole`` prints a string
literally, without interpreting markup, emoji codes or colors, and escapes control characters, which a terminal would
execute. ``styled`` adds styles to mmgrpo's own texts.
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

MAX_MESSAGE_CHARS = 10_000
"""Maximal length of an error or a warning, such as one about each key of another library's file; the middle of a longer
one is omitted."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 but tab and newline: escape sequences, the bell, a return to overwrite
    "\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"  # change the direction of text, or break lines
    "\ud800-\udfff]"  # surrogates, which cannot be encoded
)


def escape_controls(text: object) -> str:
    r"""Returns a text with control characters replaced by their codes, such as ``\x1b``."""
    return _CONTROL.sub(lambda match: _code(ord(match[0])), str(text))


def shorten(text: object) -> str:
    """Returns ``escape_controls`` of a text, without the middle of a long one."""
    escaped = escape_controls(text)
    if len(escaped) <= MAX_MESSAGE_CHARS:
        return escaped
    half = MAX_MESSAGE_CHARS // 2
    return f"{escaped[:half]} ... ({len(escaped) - 2 * half} characters left out) ... {escaped[-half:]}"


def styled(text: object, style: str) -> Text:
    """Returns a literal text in a style of rich."""
    return Text(escape_controls(text), style)


def markdown_page(markdown: str) -> Markdown:
    """Renders a page of Markdown; folds wide table cells, and writes out the addresses of links."""
    from rich.markdown import Markdown, TableElement
    from rich.table import Table

    class FoldedTable(TableElement):
        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for table in super().__rich_console__(console, options):
                for column in table.columns if isinstance(table, Table) else ():
                    column.overflow = "fold"
                yield table

    page = Markdown(escape_controls(markdown), hyperlinks=False)
    page.elements = {**Markdown.elements, "table_open": FoldedTable}  # type: ignore[misc]
    return page


def make_encodable(*streams: Any) -> None:
    r"""Makes text streams write characters that their encoding lacks as codes, such as ``\xb1``, instead of raising.

    Args:
        *streams: such as ``sys.stdout``; closed streams, and those without this option, are unchanged.
    """
    for stream in streams:
        if getattr(stream, "errors", None) == "strict" and callable(getattr(stream, "reconfigure", None)):
            stream.reconfigure(errors="backslashreplace")


@final
class EncodableStream:
    """Wrapper of a custom stream class that writes characters which cannot be encoded as codes."""

    def __init__(self, stream: Any) -> None:
        """Wraps a stream.

        Args:
            stream: an object with ``write`` and ``flush``.
        """
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        """Delegates every other attribute to the stream."""
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes a text; returns the number of characters written."""
        try:
            return self._stream.write(text)
        except UnicodeEncodeError:
            return self._stream.write(text.encode("ascii", "backslashreplace").decode("ascii"))


PIPED_WIDTH = 160
"""Columns of tables that no terminal shows: names of keys and modules fit."""


@final
class PlainConsole(Console):
    """A console that prints strings literally, also in tables and titles, and never raises an encoding error."""

    def __init__(self, *, stderr: bool = False, quiet: bool = False) -> None:
        """Opens the console.

        Args:
            stderr: whether to write to stderr instead of stdout.
            quiet: whether to write nothing.
        """
        super().__init__(stderr=stderr, quiet=quiet, markup=False, emoji=False, highlight=False)
        if not self.is_terminal and "COLUMNS" not in os.environ:
            self.width = PIPED_WIDTH

    @property
    def file(self) -> Any:
        """The stream to write to; looked up again for each text."""
        stream = super().file
        make_encodable(stream)
        return stream if hasattr(stream, "reconfigure") else EncodableStream(stream)

    @file.setter
    def file(self, new_file: Any) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """Converts a string to literal text without control characters; rich calls it for every printed string."""
        return super().render_str(escape_controls(text), **options)

    def on_broken_pipe(self) -> None:
        """Stops writing after the reader has closed the pipe, as ``head`` does; the command continues."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())

    def print_line(self, *parts: str | Text) -> None:
        """Prints a line without wrapping it, so that paths in it can be copied."""
        self.print(*parts, soft_wrap=True)

    def wrap(self, parts: Sequence[str], separator: str, *, indent: int) -> str:
        """Joins parts to one line in a file, and to lines of at most its width on a terminal.

        Args:
            parts: texts that are not broken.
            separator: separator of the parts on a line.
            indent: columns before the first line, and indentation of the others.

        Returns:
            The lines.
        """
        if not self.file.isatty():
            return separator.join(parts)
        lines = [""]
        for part in parts:
            line = f"{lines[-1]}{separator}{part}" if lines[-1] else part
            if lines[-1] and indent + cell_len(line) > self.width:
                lines.append(part)
            else:
                lines[-1] = line
        return f"\n{' ' * indent}".join(lines)


@final
class PlainFormatter(logging.Formatter):
    """Formats log records as literal text: they contain errors of rewards and servers."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns the record's text without control characters."""
        return shorten(super().format(record))


def use_plain_logging() -> None:
    """Prints warnings that no other handler takes as literal text, in any terminal encoding."""
    make_encodable(sys.stdout, sys.stderr)
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PlainFormatter())


def plain_excepthook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A ``sys.excepthook`` that prints the traceback literally: the message may come from data."""
    sys.stderr.write(escape_controls("".join(traceback.format_exception(kind, error, trace))))


def _code(point: int) -> str:
    return f"\\x{point:02x}" if point < 256 else f"\\u{point:04x}"
