"""The console of the commands, and errors as one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mmgrpo.errors import MmgrpoError
from mmgrpo.system.console import PlainConsole, shorten, styled

console = PlainConsole()


MAX_LINE = 600  # characters

KEY_START = re.compile(r"; (?=unknown key '|[\w-]+'s [\w.]+ is )")
"""Before the sentences of a message that are about another key."""


@contextmanager
def plain_errors() -> Iterator[None]:
    """Prints an MmgrpoError and exits with code 2; other exceptions are bugs and keep their traceback.

    It is one line, or of many wrong keys one line for each.
    """
    try:
        yield
    except MmgrpoError as error:
        message, stderr = shorten(error), PlainConsole(stderr=True)
        first, *others = KEY_START.split(message) if len(message) > MAX_LINE else [message]
        stderr.print_line(styled("error:", "bold red"), first)
        for other in others:
            stderr.print_line(f"  {other}")
        raise typer.Exit(2) from None
    except SystemExit as error:  # from code that the run called: click raises another class
        message = f"code that the run called ended the program with sys.exit({error.code!r})"
        PlainConsole(stderr=True).print_line(styled("error:", "bold red"), message)
        raise typer.Exit(1) from None
