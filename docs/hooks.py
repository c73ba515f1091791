"""Hooks of ``mkdocs build``: the reference is generated, and links to files outside of docs/ lead to the repository."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import mmgrpo
from mmgrpo.cli import app
from mmgrpo.config.peers import PEERS
from mmgrpo.docgen.peers import peer_table
from mmgrpo.docgen.site import FOLDER, reference_nav, reference_pages

ROOT = Path(__file__).parents[1]
BOOST = "---\nsearch: {boost: 8}\n---\n\n"
"""Front matter of the page of configuration keys: a search for a key finds it first."""

GUIDES = ("learn/", "how-to/", "coming-from/")
"""Folders of pages that a search lists before the reference."""

FIRST_RESULTS = {"how-to/own-reward.md": 8}
"""Pages that a search lists before other guides; "own" is a stop word, so "own reward" is a search for rewards."""

SOURCES = Path(tempfile.mkdtemp(prefix="mmgrpo-site-"))
"""A copy of the package as it is installed, with ``policies`` in it: mkdocstrings reads files and imports nothing."""


@event_priority(100)  # before mkdocstrings reads its paths
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fills the reference of the navigation in, and copies the sources for mkdocstrings."""
    assert config.nav is not None
    config.nav = [{"Reference": reference_nav()} if entry == {"Reference": FOLDER} else entry for entry in config.nav]
    shutil.rmtree(SOURCES, ignore_errors=True)
    for source, target in (("mmgrpo", "mmgrpo"), ("policies", "mmgrpo/policies"), ("rewards", "mmgrpo/rewards")):
        shutil.copytree(ROOT / source, SOURCES / target, ignore=shutil.ignore_patterns("__pycache__"))
    config.plugins["mkdocstrings"].config.handlers["python"]["paths"] = [str(SOURCES)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages of the reference."""
    for path, text in reference_pages(app, mmgrpo.HOMES).items():
        files.append(File.generated(config, path, content=BOOST + text if path.endswith("/configuration.md") else text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Adds the tables of pages "coming from"; links to files that are not part of the site lead to the repository."""
    source = PurePosixPath("docs", page.file.src_uri)
    folder = source.parent
    if page.file.src_uri.startswith(GUIDES):
        page.meta.setdefault("search", {"boost": FIRST_RESULTS.get(page.file.src_uri, 2)})
    if folder.name == "coming-from" and source.stem in PEERS:
        markdown += "\n" + peer_table(source.stem)

    def link(match: re.Match[str]) -> str:
        path = normpath(str(folder / match[1]))
        if path.startswith("docs/") or not (ROOT / path).exists():
            return match[0]  # mkdocs checks it
        return f"]({config.repo_url}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}{match[2] or ''})"

    def site_link(match: re.Match[str]) -> str:
        return f"[{match[1]}]({relpath(match[1], folder)})" if (ROOT / match[1]).exists() else match[0]

    if page.file.src_uri.startswith(FOLDER):  # docstrings name pages of docs/ by their path
        markdown = re.sub(r"`(docs/[\w/-]+\.md)`", site_link, markdown)
    return re.sub(r"\]\((\.\.?/[^)\s#]+)(#[^)\s]*)?\)", link, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Removes the copy of the sources."""
    shutil.rmtree(SOURCES, ignore_errors=True)
