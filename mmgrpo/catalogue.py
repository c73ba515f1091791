"""The rewards there are, from their docstrings: ``python -m mmgrpo.catalogue docs/rewards.md`` renews its tail."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mmgrpo.registry import REWARDS, resolve

MARK = "<!-- From here on generated from the docstrings: python -m mmgrpo.catalogue docs/rewards.md -->"

_LABELS = ("Settings", "Judges", "Needs", "Range", "Units", "Source", "Traps", "Raises")
_LABEL = re.compile(rf"^({'|'.join(_LABELS)}):? ")


def page_with_catalogue(page: str) -> str:
    """A page whose part after the mark is the catalogue of now: a section per reward, in the registry's order.

    Args:
        page: the page as it is; without a mark the catalogue is put at its end.

    Returns:
        The page to write.
    """
    head = page.partition(MARK)[0].rstrip()
    return "\n".join([head, "", MARK, "", *_catalogue()]) + "\n"


def _catalogue() -> Iterator[str]:
    yield from ("## The rewards there are", "", "| name | what it is |", "| --- | --- |")
    for name in REWARDS:
        summary = (inspect.getdoc(resolve("rewards", name)) or "").splitlines()[0]
        yield f"| [`{name}`](#{name}) | {_marked(summary).replace('|', chr(92) + '|')} |"
    for name in REWARDS:
        yield from _section(name, resolve("rewards", name))


def _section(name: str, reward: Any) -> Iterator[str]:
    """Heading, settings with their defaults, and the docstring, its labelled lines as a list."""
    summary, _, body = (inspect.getdoc(reward) or "").partition("\n")
    yield from ("", f"### {name}", "", _marked(summary), "")
    yield f"`{{{', '.join([f'name: {name}', *_settings(reward)])}}}`"
    for paragraph in body.strip().split("\n\n"):
        yield from ("", *_lines(paragraph))


def _settings(reward: Any) -> Iterator[str]:
    for parameter in inspect.signature(reward).parameters.values():
        yield f"{parameter.name}: {'..' if parameter.default is parameter.empty else _shown(parameter.default)}"


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _lines(paragraph: str) -> Iterator[str]:
    """A paragraph as Markdown: running text on one line, each labelled passage as an entry of a list."""
    entries: list[str] = []
    for line in paragraph.splitlines():
        if _LABEL.match(line) or not entries:
            entries.append(line.strip())
        else:
            entries[-1] += f" {line.strip()}"
    for entry in entries:
        yield f"* {_marked(entry)}" if _LABEL.match(entry) else _marked(entry)


def _marked(text: str) -> str:
    """Single for double back ticks, and stars outside of them as themselves."""
    pieces = re.split(r"``(.*?)``", text)
    return "".join(f"`{piece}`" if i % 2 else piece.replace("*", r"\*") for i, piece in enumerate(pieces))


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page_with_catalogue(path.read_text()))
