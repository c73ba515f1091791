"""The site's reference: the pages that are read from the code and the YAML files when the site is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer

from mmgrpo.config.loading import CONFIGS
from mmgrpo.config.registry import REWARDS
from mmgrpo.docgen.api import PAGES, api_pages
from mmgrpo.docgen.commands import commands_page
from mmgrpo.docgen.configuration import configuration_page
from mmgrpo.docgen.methods import MethodRow, method_index, method_pages
from mmgrpo.docgen.methods import by_kind as methods_by_kind
from mmgrpo.docgen.papers import paper_index, papers_page
from mmgrpo.docgen.reward_pages import by_kind as rewards_by_kind
from mmgrpo.docgen.reward_pages import reward_pages

FOLDER = "reference"
"""Folder of the pages below ``docs/``; nothing in it is committed."""


def reference_pages(app: typer.Typer, exports: Mapping[str, str]) -> dict[str, str]:
    """The pages of the reference.

    Args:
        app: the program ``mmgrpo``.
        exports: ``mmgrpo.HOMES``.

    Returns:
        Path below ``docs/`` -> Markdown: configuration keys, commands, API, methods, recipes,
        papers and rewards.
    """
    methods = _methods()
    pages = {
        "configuration.md": configuration_page(),
        "commands.md": commands_page(app),
        "papers.md": papers_page(paper_index(methods)),
        **{f"methods/{name}": page for name, page in method_pages(methods).items()},
        **{f"rewards/{name}": page for name, page in reward_pages().items()},
        **{f"api/{name}": page for name, page in api_pages(exports).items()},
        **{f"recipes/{name}.md": page for name, page in recipe_pages().items()},
    }
    return {f"{FOLDER}/{path}": page for path, page in pages.items()}


def recipe_pages() -> dict[str, str]:
    """Task -> the page of its recipes: ``README.md`` of their folder, with links from the site."""
    pages = {path.parent.name: path.read_text(encoding="utf-8") for path in CONFIGS.glob("recipes/*/README.md")}
    return {task: pages[task].replace("](../../../docs/", "](../../") for task in sorted(pages)}


def reference_nav() -> list[Any]:
    """The navigation of the reference, as ``nav:`` of ``mkdocs.yml`` has it: paths, and title -> path or list."""
    methods = [{heading.partition(":")[0]: rows[0].page} for heading, rows in methods_by_kind(_methods()).items()]
    rewards = [
        {kind: [f"{name}.md" for name in names if name in REWARDS]}
        for kind, names in rewards_by_kind().items()
        if any(name in REWARDS for name in names)
    ]
    return [
        {"Configuration": f"{FOLDER}/configuration.md"},
        {"Commands": f"{FOLDER}/commands.md"},
        {"Methods": _below("methods", ["index.md", *methods])},
        {"Recipes": [f"{FOLDER}/recipes/{task}.md" for task in recipe_pages()]},
        {"Papers": f"{FOLDER}/papers.md"},
        {"Rewards": _below("rewards", ["index.md", *rewards])},
        {"Python API": _below("api", ["index.md", *({page.title: f"{name}.md"} for name, page in PAGES.items())])},
    ]


def _methods() -> list[MethodRow]:
    """The methods of this project, without those of other packages."""
    return [row for row in method_index() if row.include.startswith("methods/") and row.method.kind]


def _below(folder: str, entry: Any) -> Any:
    if isinstance(entry, str):
        return f"{FOLDER}/{folder}/{entry}"
    if isinstance(entry, list):
        return [_below(folder, part) for part in entry]
    return {title: _below(folder, part) for title, part in entry.items()}
