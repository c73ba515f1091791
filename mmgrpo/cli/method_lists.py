"""What ``mmgrpo methods`` prints: the methods by kind, the papers by group, or one of either."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table

from mmgrpo.config import POLICIES
from mmgrpo.docgen.methods import KINDS, MethodRow, by_kind, method_index, method_section
from mmgrpo.docgen.papers import (
    GROUPS,
    HEAD,
    Paper,
    by_group,
    counts,
    paper_index,
    paper_section,
    place_text,
    state_text,
    summary,
)
from mmgrpo.errors import ConfigError


def method_text(name: str | None, paper: str | None) -> str:
    """The section of a method, of a paper, or of both.

    Args:
        name: of a method, or what a configuration includes.
        paper: id or arXiv number, in any case.

    Returns:
        Markdown.

    Raises:
        UnknownNameError: there is no such method, or no such paper.
    """
    sections = [] if name is None else [method_section(name)]
    return "\n".join([*sections, *([] if paper is None else [paper_section(paper)])])


def method_lines(applies_to: str | None, kind: str | None) -> Iterator[Table | str]:
    """The methods under the headings of what they change.

    Args:
        applies_to: tokens, denoising or masked; None: all.
        kind: of what they change; None: all.

    Yields:
        Table | str: what a console prints.

    Raises:
        ConfigError: there is no such kind.
    """
    heading = (
        None if kind is None else {str(one): said for one, said in KINDS.items()}[_require_kind(kind, tuple(KINDS))]
    )
    rows = [
        row
        for row in method_index()
        if _is_for(POLICIES[row.method.applies_to], applies_to) and heading in (None, row.heading)
    ]
    width = max((len(row.include) for row in rows if row.include.startswith("methods/")), default=0)  # others are paths
    for title, members in by_kind(rows).items():
        yield from _table(title, ((row.include, _method(row)) for row in members), width)
    yield "mmgrpo methods NAME shows a method's formulas, values, sources, evidence and published scale."


def paper_lines(applies_to: str | None, group: str | None) -> Iterator[Table | str]:
    """How many papers are how far in, then each under the group of what it adds first of all.

    Args:
        applies_to: tokens, denoising or masked; None: all.
        group: of the papers; None: all.

    Yields:
        Table | str: what a console prints.

    Raises:
        ConfigError: there is no such group.
    """
    if group is not None:
        _require_kind(group, tuple(GROUPS))
    papers = [p for p in paper_index() if _is_for(p.applies_to, applies_to) and group in (None, p.row.group)]
    yield _counted(papers)
    yield f"\n{summary(papers)}\n"
    for name, members in by_group(papers).items():
        yield from _table(f"{name}: {place_text(name)}", ((p.row.id, _paper(p)) for p in members), 0)
    yield "mmgrpo methods --paper ID says what a paper is and what it needs."


def _require_kind(kind: str, valid_kinds: tuple[str, ...]) -> str:
    if kind not in valid_kinds:
        raise ConfigError(f"--kind {kind!r} is none of {', '.join(valid_kinds)}")
    return kind


def _is_for(policies: str, applies_to: str | None) -> bool:
    """Whether what is for these policies, in words, is for the one that is asked for."""
    return applies_to is None or policies in (POLICIES[applies_to], POLICIES["both"])


def _method(row: MethodRow) -> str:
    return f"{row.method.title}, {row.method.paper or 'not published'}\n{row.composition}"


def _paper(paper: Paper) -> str:
    return f"{paper.row.tier}, {state_text(paper)}"


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
