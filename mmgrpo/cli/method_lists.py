"""The output of ``mmgrpo methods``: the methods by kind, those that match a search, the papers by group, or one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from mmgrpo.config import POLICIES
from mmgrpo.docgen.methods import KINDS, MethodRow, by_kind, method_index, method_section, search_methods
from mmgrpo.docgen.papers import (
    HEAD,
    Paper,
    by_group,
    counts,
    group_text,
    paper_index,
    paper_section,
    state_text,
    summary,
)
from mmgrpo.errors import ConfigError
from mmgrpo.system.console import styled

MAX_NAME_WIDTH = 24
"""Width of the column of names; longer names move the rest of their line."""


def method_text(name: str | None, paper: str | None) -> str:
    """The section of a method, of a paper, or of both.

    Args:
        name: name of a method, or the name that a configuration includes.
        paper: id or arXiv number, in any case.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is no such method, or no such paper.
    """
    sections = [] if name is None else [method_section(name)]
    return "\n".join([*sections, *([] if paper is None else [paper_section(paper)])])


def method_lines(
    applies_to: str | None, kind: str | None, query: str | None = None, *, width: int = 80
) -> Iterator[Table | Text | str]:
    """The methods by kind, a line each, or those that match a search with the sentence on when to use them.

    Args:
        applies_to: tokens, denoising or masked; None: all.
        kind: kind of the methods; None: all.
        query: words to search for; None: no search.
        width: maximum length of a line of the list.

    Yields:
        Table | Text | str: parts of the output.

    Raises:
        ConfigError: the kind is unknown, or no method matches.
    """
    if kind is not None:
        _require_kind(kind, tuple(KINDS))
    rows = [
        row
        for row in method_index()
        if _is_for(POLICIES[row.method.applies_to], applies_to) and kind in (None, row.method.kind)
    ]
    if query is not None:
        matches = search_methods(rows, query)
        if not matches:
            raise ConfigError(f"--for {query!r} matches no method; use other words, or list all: mmgrpo methods")
        yield from _table(
            f"Methods for {query!r}", ((_name(row), row.method.use_when or row.method.title) for row in matches), 0
        )
    else:
        for title, members in by_kind(rows).items():
            yield from _method_table(title, members, width)
    yield "mmgrpo methods NAME shows a method's formulas, values and sources; include it as methods/NAME."


def paper_lines(applies_to: str | None, group: str | None) -> Iterator[Table | str]:
    """The counts of papers by state, then the papers by the group of their main contribution.

    Args:
        applies_to: tokens, denoising or masked; None: all.
        group: group of the papers; None: all.

    Yields:
        Table | str: parts of the output.

    Raises:
        ConfigError: the group is unknown.
    """
    papers = paper_index()
    if group is not None:
        _require_kind(group, tuple(by_group(papers)))
    papers = [p for p in papers if _is_for(p.applies_to, applies_to) and group in (None, p.group)]
    yield _counted(papers)
    yield f"\n{summary(papers)}\n"
    for name, members in by_group(papers).items():
        yield from _table(f"{name}: {group_text(name)}", ((p.id, _paper(p)) for p in members), 0)
    yield "mmgrpo methods --paper ID describes a paper and its requirements."


def _require_kind(kind: str, valid_kinds: tuple[str, ...]) -> str:
    if kind not in valid_kinds:
        raise ConfigError(f"--kind {kind!r} is unknown; use one of {', '.join(valid_kinds)}")
    return kind


def _is_for(policies: str, applies_to: str | None) -> bool:
    """Whether a method or paper for these policies, in words, is for the requested kind of policy."""
    return applies_to is None or policies in (POLICIES[applies_to], POLICIES["both"])


def _name(row: MethodRow) -> str:
    return row.include.removeprefix("methods/")


def _method_table(heading: str, rows: Iterable[MethodRow], width: int) -> Iterator[Text | str]:
    """Name, paper and title of each method on a line of at most ``width`` characters; longer titles are truncated."""
    rows = list(rows)
    name_width = max((len(_name(row)) for row in rows if len(_name(row)) <= MAX_NAME_WIDTH), default=0)
    yield styled(heading, "bold")
    for row in rows:
        line = f" {_name(row):<{name_width}}  {row.method.paper or '-':<10}  {row.method.title}"
        yield line if len(line) <= width else f"{line[: width - 1]}…"
    yield ""


def _paper(paper: Paper) -> str:
    return state_text(paper) if paper.row else f"{paper.title}: {state_text(paper)}"


def _table(title: str, rows: Iterable[tuple[str, str]], width: int) -> Iterator[Table | str]:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, show_header=False)
    table.add_column(overflow="fold", min_width=width)
    table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    yield table
    yield ""


def _counted(papers: Iterable[Paper]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in HEAD:
        table.add_column(column, justify="left" if column == "group" else "right")
    for row in counts(papers):
        table.add_row(*row)
    return table
