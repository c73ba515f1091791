"""Commands that list what there is: recipes, policies, rewards, methods and their papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.table import Table

from mmgrpo.cli.plain_errors import console, plain_errors
from mmgrpo.errors import MmgrpoError
from mmgrpo.system.console import page, styled


def recipes(
    named: Annotated[
        str, typer.Argument(help="Part of the names to list: quickstart, recipes, one-gpu, papers, flux, vl.")
    ] = "",
) -> None:
    """Lists the configurations that come to be run, with what each wants."""
    with plain_errors():
        from mmgrpo.cli.init import recipes as notes

        for name, note in notes(named).items():
            console.print(styled(name, "bold"))
            console.print(Padding(note, (0, 0, 1, 2)))


def policies() -> None:
    """Lists the policy adapters."""
    _list_names("policies")


def rewards(name: Annotated[str | None, typer.Argument(help="a reward, whose page is shown")] = None) -> None:
    """Lists the rewards by kind, or shows the page of one."""
    from mmgrpo.docgen.catalogue import by_kind, page_of, summary_of

    with plain_errors():
        if name is not None:
            console.print(page(page_of(name)))
            return
        width = max(len(member) for members in by_kind().values() for member in members)
        for kind, members in by_kind().items():
            table = Table(title=kind, title_justify="left", title_style="bold", box=None, show_header=False)
            table.add_column(no_wrap=True, min_width=width)
            table.add_column()
            for member in members:
                table.add_row(member, page(summary_of(member)))
            console.print(table, "")
        console.print("mmgrpo rewards NAME shows a reward's settings, range, source and traps.")


def methods(
    name: Annotated[str | None, typer.Argument(help="a method, whose section is shown")] = None,
    papers: Annotated[
        bool, typer.Option("--papers", help="the papers that were looked at, and how far each is in")
    ] = False,
    paper: Annotated[str | None, typer.Option(help="one of them, by its id or arXiv number")] = None,
    applies_to: Annotated[
        Literal["tokens", "denoising", "masked"] | None, typer.Option(help="those that are for it")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="those of a kind; with --papers of a group")] = None,
) -> None:
    """Lists the published methods that come as YAML by kind, or the papers, or shows the values and sources of one."""
    from mmgrpo.cli.method_lists import method_lines, method_text, paper_lines

    with plain_errors():
        if name is not None or paper is not None:
            console.print(page(method_text(name, paper)))
            return
        for line in (paper_lines if papers else method_lines)(applies_to, kind):
            console.print(line)


def _list_names(kind: str) -> None:
    from mmgrpo.config.registry import names, resolve
    from mmgrpo.docgen.reward_signatures import summary_line

    table = Table("name", "what it is", "where", box=None, header_style="bold")
    for name, target in sorted(names(kind).items()):
        line = summary_line(target)  # from the source, so that no library is loaded for a list
        table.add_row(name, _first_line(lambda n=name: resolve(kind, n)) if line is None else line, target)
    console.print(table)


def _first_line(load: Callable[[], Any]) -> str:
    try:
        return (load().__doc__ or "").strip().split("\n")[0]
    except MmgrpoError as error:
        return f"({error})"
