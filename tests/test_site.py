"""The site: its generated reference, its navigation, and that git has no generated page."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import mmgrpo
from mmgrpo.cli import app
from mmgrpo.config.registry import REWARDS
from mmgrpo.docgen.methods import KINDS
from mmgrpo.docgen.peers import peer_table
from mmgrpo.docgen.site import FOLDER, recipe_pages, reference_nav, reference_pages
from mmgrpo.system.site_pages import SITE
from tests.test_docs import anchor_of

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return reference_pages(app, mmgrpo.HOMES)


def paths_in(nav: Any) -> Iterator[str]:
    """The paths of a navigation, in order."""
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav:
            yield from paths_in(entry)


def row_of(page: str, first_cell: str) -> str:
    """The row of a table that starts with a cell."""
    (row,) = [line for line in page.splitlines() if line.startswith(f"| {first_cell} |")]
    return row


def test_addresses_in_messages_are_links_of_the_site() -> None:
    assert f"site_url: {SITE}" in (ROOT / "mkdocs.yml").read_text().splitlines()
    assert "[how-to/several-gpus](../how-to/several-gpus.md)" in peer_table("easyr1")
    assert "[how-to/extending](../how-to/extending.md)" in peer_table("trl")
    files = [path for folder in ("mmgrpo", "policies", "rewards") for path in (ROOT / folder).rglob("*.py")]
    named = {page for path in files for page in re.findall(r"page_url\([\"']([\w/-]+)[\"']\)", path.read_text())}
    assert len(named) >= 7
    assert not [page for page in named if not (ROOT / "docs" / f"{page}.md").is_file()]


def test_reference_has_the_keys_commands_methods_papers_rewards_and_the_api(pages: dict[str, str]) -> None:
    assert row_of(pages["reference/configuration.md"], "`rollout.group_size`").startswith(
        "| `rollout.group_size` | int, >= 1 | `8` |"
    )
    assert "\n## GSPO {#gspo}\n" in pages["reference/methods/ratios.md"]
    assert row_of(pages["reference/papers.md"], "`dr-grpo`").endswith(
        "| [methods/dr-grpo](methods/advantages.md#dr-grpo); all; deviations: 1 |"
    )
    assert "| `column` | text | `tests` |" in pages["reference/rewards/code_tests.md"]
    assert "\n::: mmgrpo.training.trainer.Trainer\n" in pages["reference/api/training.md"]
    assert len(pages) == 3 + len(KINDS) + 1 + len(REWARDS) + 1 + 7 + len(recipe_pages())


def test_page_of_the_commands_has_the_help_of_each(pages: dict[str, str]) -> None:
    sections = dict(re.findall(r"^## ([\w-]+)\n\n```text\n(.*?)\n```", pages["reference/commands.md"], re.M | re.S))
    assert list(sections)[:2] == ["train", "sample"]
    assert {"serve-rewards", "doctor", "methods"} <= set(sections)
    assert sections["train"].startswith("Usage: mmgrpo train [OPTIONS]")
    assert re.search(r"^  --resume (?:<path>|PATH) .*run folder or checkpoint to resume", sections["train"], re.M)


def test_api_pages_name_everything_that_the_package_exports(pages: dict[str, str]) -> None:
    documented = set(re.findall(r"^::: (\S+)$", "\n".join(pages.values()), re.MULTILINE))
    exported = {f"{module}.{name}" for name, module in mmgrpo.HOMES.items()}
    assert {name for name in exported if name not in documented and name.rpartition(".")[0] not in documented} == set()
    assert {"mmgrpo.policies.diffusion.DenoisingPolicy", "mmgrpo.testing", "mmgrpo.errors"} <= documented


def test_tags_in_methods_are_escaped_and_rows_are_one_line(pages: dict[str, str]) -> None:
    page = pages["reference/methods/sampling.md"]
    assert "that is enough" not in page  # the text of S-GRPO starts a sentence
    assert r"\n\nThat is enough; the answer follows.\n&lt;/think>" in page
    methods = [text for path, text in pages.items() if path.startswith("reference/methods/")]
    assert [line for text in methods for line in text.splitlines() if re.match(r"\s*</?\w+>", line)] == []


def test_navigation_has_every_page_once(pages: dict[str, str]) -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    reference = list(paths_in(reference_nav()))
    assert sorted(reference) == sorted(pages)
    assert {"Reference": FOLDER} in nav
    written = [path for path in paths_in(nav) if path != FOLDER]
    assert sorted(written) == sorted(str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md"))


def test_links_of_generated_pages_lead_to_files_and_headings(pages: dict[str, str]) -> None:
    links = [
        (path, os.path.normpath(Path(path).parent / target) if target else path, anchor)
        for path, text in pages.items()
        for target, anchor in re.findall(
            r"\]\((?!https?:)([^):#\s]*)#?([^)\s]*)\)", re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.S)
        )
    ]
    assert len(links) > 300
    missing = [link for link in links if link[1] not in pages and not (ROOT / "docs" / link[1]).exists()]
    assert missing == []
    anchors = {path: {anchor_of(line) for line in re.findall(r"^#+ (.*)$", text, re.M)} for path, text in pages.items()}
    assert [link for link in links if link[2] and link[1] in pages and link[2] not in anchors[link[1]]] == []


def test_git_tracks_no_generated_page() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "docs"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "docs/index.md" in listed.split()
    assert [path for path in listed.split() if path.startswith(f"docs/{FOLDER}/")] == []
    assert [path for path in listed.split() if path.endswith(".md") and (ROOT / path).stat().st_size > 40_000] == []
