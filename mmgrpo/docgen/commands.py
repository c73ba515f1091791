"""The page of the commands: the text of their ``--help``."""

from __future__ import annotations

import typer
from typer.testing import CliRunner

WIDTH = 100

PREAMBLE = """# Commands

The text of `mmgrpo COMMAND --help`, for each command. [Commands and files](../learn/commands.md) shows examples and the
files of a run. `python -m mmgrpo` is the same program."""


def commands_page(app: typer.Typer) -> str:
    """The commands as a Markdown page.

    Args:
        app: the program.

    Returns:
        A section per command, in the order of ``mmgrpo --help``.
    """
    names = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
    sections = [f"## {name}\n\n```text\n{_help_text(app, name)}\n```" for name in map(_dashed, names)]
    return "\n\n".join([PREAMBLE, *sections]) + "\n"


def _dashed(name: str) -> str:
    """The name of a command, from that of its function."""
    return name.rstrip("_").replace("_", "-")


def _help_text(app: typer.Typer, name: str) -> str:
    result = CliRunner().invoke(app, [name, "--help"], prog_name="mmgrpo", terminal_width=WIDTH)
    if result.exit_code:
        raise RuntimeError(f"mmgrpo {name} --help exits with {result.exit_code}: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines())
