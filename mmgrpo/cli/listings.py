"""Commands that list recipes, policies, rewards, methods and papers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from rich.padding import Padding
from rich.table import Table

from mmgrpo.cli.plain_errors import console, plain_errors
from mmgrpo.errors import ConfigError, MmgrpoError
from mmgrpo.system.console import markdown_page, styled


def recipes(
    text: Annotated[
        str,
        typer.Argument(help="Part of the names to list: quickstart, recipes, one-gpu, papers, flux, vl."),
    ] = "",
) -> None:
    """List the complete configurations: model, method, rewards, data; with TEXT also their requirements."""
    with plain_errors():
        from mmgrpo.cli.recipe_list import recipes_named

        for recipe in recipes_named(text):
            console.print(styled(recipe.name, "bold"))
            console.print(Padding(recipe.summary, (0, 0, 0, 2), expand=False))
            if text:
                console.print(Padding(recipe.note, (0, 0, 1, 2), expand=False))
        if not text:
            console.print_line("mmgrpo recipes TEXT also shows the requirements of those with TEXT in their names.")


def policies() -> None:
    """List the policy adapters."""
    _list_names("policies")


def rewards(name: Annotated[str | None, typer.Argument(help="Show the page of a reward.")] = None) -> None:
    """List the rewards by kind, or show the page of one."""
    from mmgrpo.docgen.reward_pages import by_kind, page_of, summary_of

    with plain_errors():
        if name is not None:
            console.print(markdown_page(page_of(name)))
            return
        width = max(len(member) for members in by_kind().values() for member in members)
        for kind, members in by_kind().items():
            table = Table(title=kind, title_justify="left", title_style="bold", box=None, show_header=False)
            table.add_column(no_wrap=True, min_width=width)
            table.add_column()
            for member in members:
                table.add_row(member, markdown_page(summary_of(member)))
            console.print(table, "")
        console.print("mmgrpo rewards NAME shows a reward's settings, range, source and traps.")


def methods(
    words: Annotated[
        list[str] | None, typer.Argument(help="Show the section of a method by its NAME, or search: entropy collapse.")
    ] = None,
    papers: Annotated[bool, typer.Option("--papers", help="List the surveyed papers and their state.")] = False,
    paper: Annotated[str | None, typer.Option(help="Show one paper, by its id or arXiv number.")] = None,
    policy: Annotated[
        Literal["tokens", "denoising", "masked"] | None, typer.Option(help="Only those for this kind of policy.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Only those of this kind; with --papers, of this group.")] = None,
    use: Annotated[
        str | None, typer.Option("--for", help="Only those for this problem: length, diversity, agents; ? lists all.")
    ] = None,
) -> None:
    """List the published methods by kind, by problem or by search, or the papers, or show one."""
    from mmgrpo.cli.method_lists import method_lines, method_text, paper_lines

    query = " ".join(words) if words else None
    with plain_errors():
        if papers and use is not None:
            raise ConfigError("--for lists methods; remove --papers")
        has_page = (query or paper) is not None and use is None
        if has_page and (page := method_text(query, paper)) is not None:
            console.print(markdown_page(page))
            return
        lines = method_lines(policy, kind, use, query, width=console.width if console.is_terminal else None)
        for line in paper_lines(policy, kind) if papers else lines:
            console.print(line, soft_wrap=not papers)


def _list_names(kind: str) -> None:
    from mmgrpo.config.registry import names, resolve
    from mmgrpo.docgen.signatures import summary_line

    table = Table("name", "summary", "module", box=None, header_style="bold")
    for name, target in sorted(names(kind).items()):
        line = summary_line(target)  # reads the source: a list loads no library
        table.add_row(name, _first_line(lambda n=name: resolve(kind, n)) if line is None else line, target)
    console.print(table)


def _first_line(load: Callable[[], Any]) -> str:
    try:
        return (load().__doc__ or "").strip().split("\n")[0]
    except MmgrpoError as error:
        return f"({error})"
