"""The console of the commands, and errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mmgrpo.errors import MmgrpoError
from mmgrpo.system.console import PlainConsole, shorten, styled

console = PlainConsole()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Prints an MmgrpoError as one line and exits with code 2; other exceptions are bugs and keep their traceback."""
    try:
        yield
    except MmgrpoError as error:
        PlainConsole(stderr=True).print_line(styled("error:", "bold red"), shorten(error))
        raise typer.Exit(2) from None
    except SystemExit as error:  # from code that the run called: click raises another class
        message = f"code that the run called ended the program with sys.exit({error.code!r})"
        PlainConsole(stderr=True).print_line(styled("error:", "bold red"), message)
        raise typer.Exit(1) from None
