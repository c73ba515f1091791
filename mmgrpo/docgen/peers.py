"""The tables of the pages "coming from": the settings of other libraries with those of a run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from mmgrpo.config.peers import peer
from mmgrpo.docgen.methods import method_index
from mmgrpo.system.site_pages import SITE

OTHER_TRAINERS = (
    ("`beta` of RLOO", "`advantage.kl.beta` with `advantage.kl.divergence: k1`"),
    ("`top_entropy_quantile` of GMPO", "`objective.selections: [{name: ratio_top_entropy, share: }]`"),
)
"""The keys of mmgrpo for options of TRL's other trainers."""


def peer_table(name: str) -> str:
    """The settings of another library as Markdown: those with a key, then those without one.

    Args:
        name: key of ``PEERS``.

    Returns:
        Sections of the second level; TRL's end with its losses.
    """
    library = peer(name)
    lines = [f"## Settings of {library.name} and their keys", "", *_table(library.name, library.keys, "`{}`")]
    lines += ["", "## Settings without a key", "", *_table(library.name, library.replacements, "{}")]
    if library.rewards:
        lines += ["", "## Rewards", "", *_table(library.name, library.rewards, "`{}`")]
    if name == "trl":
        lines += ["", "## Losses", "", *_losses()]
    return linked_pages("\n".join(lines))


def linked_pages(text: str) -> str:
    """The text with links to the pages of the site whose addresses it has, relative to ``docs/coming-from``."""
    return re.sub(rf"{re.escape(SITE)}([\w/-]+)/", r"[\1](../\1.md)", text)


def _table(name: str, texts: Mapping[str, str], form: str) -> Iterator[str]:
    yield from ('<div class="keys" markdown>', "", f"| {name} | mmgrpo |", "| --- | --- |")
    yield from (f"| `{setting}` | {form.format(text)} |" for setting, text in texts.items())
    yield from ("", "</div>")


def _losses() -> Iterator[str]:
    """The losses of TRL with the methods that have them, by ``about.method.trl``."""
    yield from ("Losses of TRL 1.16.0 by the file that has them; a test compares the two.", "")
    yield from ("| TRL | include |", "| --- | --- |")
    for row in method_index():
        if row.method.trl:
            options = ", ".join(f"{key}={value!r}" for key, value in row.method.trl.items())
            page = f"../reference/methods/{row.page}#{row.method.name}"
            yield f"| `{options}` | [`{row.include}`]({page}) |"
    yield from (f"| {theirs} | {ours} |" for theirs, ours in OTHER_TRAINERS)
