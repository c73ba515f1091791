"""The output of ``mmgrpo methods``: the methods by kind, by problem or by search, the papers by group, or one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from mmgrpo.config import POLICIES
from mmgrpo.config.methods import USES
from mmgrpo.docgen.method_search import Entry, method_entries, search, use_of
from mmgrpo.docgen.methods import KINDS, method_index, method_section
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
from mmgrpo.errors import ConfigError, UnknownNameError
from mmgrpo.system.console import styled

MAX_NAME_WIDTH = 24
"""Width of the column of names; longer names move the rest of their line."""


def method_text(name: str | None, paper: str | None) -> str | None:
    """The section of a method, of a paper, or of both.

    Args:
        name: name of a method, or the name that a configuration includes; or words of a search.
        paper: id or arXiv number, in any case.

    Returns:
        Markdown; None: there is no such method, but methods that match the words.

    Raises:
        UnknownNameError: there is no such method and no match, or no such paper.
    """
    try:
        sections = [] if name is None else [method_section(name)]
    except UnknownNameError:
        if paper is None and name is not None and search(method_entries(), name):
            return None
        raise
    return "\n".join([*sections, *([] if paper is None else [paper_section(paper)])])


def method_lines(
    policy: str | None, kind: str | None, use: str | None = None, query: str | None = None, *, width: int | None = 80
) -> Iterator[Text | str]:
    """The methods by kind, or those for a problem or that match a search, with their difference from GRPO.

    Args:
        policy: tokens, denoising or masked; None: all.
        kind: kind of the methods; None: all.
        use: a word of ``USES``, or another one for the same problem; None: all.
        query: words to search for; None: no search.
        width: maximum length of a line; None: no maximum.

    Yields:
        Text | str: a line of the output.

    Raises:
        ConfigError: the kind or the use is unknown, or no method remains.
    """
    if kind is not None:
        _require_kind(kind, tuple(KINDS))
    wanted = use
    if wanted is not None and (use := use_of(wanted)) is None:
        raise ConfigError(
            f"--for {wanted!r} is unknown; use one of {', '.join(USES)}, or search all texts: mmgrpo methods {wanted}"
        )
    headings = {row.include: row.heading for row in method_index() if kind in (None, row.method.kind)}
    entries = [
        entry
        for entry in method_entries()
        if _is_for(POLICIES[entry.applies_to], policy)
        and (entry.include in headings or kind is None)
        and (use is None or use in entry.use_for)
    ]
    if query is not None:
        entries = search(entries, query)
    if not entries:
        raise ConfigError("no method remains; leave out --for, --policy, --kind or words")
    if use is None and query is None:
        for heading in dict.fromkeys([*KINDS.values(), *headings.values()]):
            members = [entry for entry in entries if headings.get(entry.include) == heading]
            yield from _entry_lines(heading, members, width) if members else ()
    else:
        title = f"{use}: {USES[use]}" if use is not None else f"Methods for {query!r}"
        yield from _entry_lines(title, entries, width)
    yield "mmgrpo methods NAME shows a method's formulas, values and sources; include it as methods/NAME."


def paper_lines(policy: str | None, group: str | None) -> Iterator[Table | str]:
    """The counts of papers by state, then the papers by the group of their main contribution.

    Args:
        policy: tokens, denoising or masked; None: all.
        group: group of the papers; None: all.

    Yields:
        Table | str: parts of the output.

    Raises:
        ConfigError: the group is unknown.
    """
    papers = paper_index()
    if group is not None:
        _require_kind(group, tuple(by_group(papers)))
    papers = [p for p in papers if _is_for(p.applies_to, policy) and group in (None, p.group)]
    yield _counted(papers)
    yield f"\n{summary(papers)}\n"
    for name, members in by_group(papers).items():
        yield from _table(f"{name}: {group_text(name)}", ((p.id, _paper(p)) for p in members), 0)
    yield "mmgrpo methods --paper ID describes a paper and its requirements."


def _require_kind(kind: str, valid_kinds: tuple[str, ...]) -> str:
    if kind not in valid_kinds:
        raise ConfigError(f"--kind {kind!r} is unknown; use one of {', '.join(valid_kinds)}")
    return kind


def _is_for(policies: str, policy: str | None) -> bool:
    """Whether a method or paper for these policies, in words, is for the requested kind of policy."""
    return policy is None or policies in (POLICIES[policy], POLICIES["both"])


def _entry_lines(heading: str, entries: Iterable[Entry], width: int | None) -> Iterator[Text | str]:
    """Name and difference from GRPO, a line each, truncated to ``width`` characters if there is a limit."""
    entries = list(entries)
    name_width = max((len(entry.name) for entry in entries if len(entry.name) <= MAX_NAME_WIDTH), default=0)
    yield styled(heading, "bold")
    for entry in entries:
        line = f" {entry.name:<{name_width}}  {entry.against}"
        yield line if width is None or len(line) <= width else f"{line[: width - 1]}…"
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
