"""What commands print on, and how they say that something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from mmgrpo.errors import MmgrpoError
from mmgrpo.system.console import PlainConsole, brief, styled

console = PlainConsole()


@contextmanager
def plain_errors() -> Iterator[None]:
    """Errors made on purpose are shown as one line; anything else is a bug and keeps its traceback."""
    try:
        yield
    except MmgrpoError as error:
        PlainConsole(stderr=True).say(styled("error:", "bold red"), brief(error))
        raise typer.Exit(2) from None
    except SystemExit as error:  # of foreign code: click's own Exit is another class
        said = f"something that the run called ended the program with sys.exit({error.code!r})"
        PlainConsole(stderr=True).say(styled("error:", "bold red"), said)
        raise typer.Exit(1) from None
