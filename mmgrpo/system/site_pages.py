"""Addresses of the pages of the documentation, for messages."""

from __future__ import annotations

SITE = "https://mmgrpo.github.io/mmgrpo/"
"""Address of the documentation, ``site_url`` of mkdocs.yml."""


def page_url(page: str) -> str:
    """Returns the address of a page by its path in ``docs/`` without ``.md``: ``how-to/several-gpus``."""
    return f"{SITE}{page}/"
