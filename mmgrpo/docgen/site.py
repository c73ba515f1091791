"""The pages of the site's reference that are read from the code and the YAML files.

``mkdocs build`` adds them to the pages of ``docs/``; ``python -m mmgrpo.docgen.site FOLDER`` writes them to a folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

from mmgrpo.docgen.catalogue import reward_pages
from mmgrpo.docgen.configuration import configuration_page
from mmgrpo.docgen.methods import method_index, method_pages
from mmgrpo.docgen.papers import paper_index, papers_page, unlisted


def reference_pages() -> dict[str, str]:
    """Path below ``docs/`` -> Markdown: configuration keys, methods, papers and rewards of the project."""
    methods = [row for row in method_index() if row.include.startswith("methods/")]
    papers = paper_index(methods)
    pages = {
        "configuration.md": configuration_page(),
        "papers.md": papers_page(papers, unlisted(papers, methods)),
        **{f"methods/{name}": page for name, page in method_pages(methods).items()},
        **{f"rewards/{name}": page for name, page in reward_pages().items()},
    }
    return {f"reference/{path}": page for path, page in pages.items()}


if __name__ == "__main__":
    for path, page in reference_pages().items():
        target = Path(sys.argv[1]) / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page, encoding="utf-8")
