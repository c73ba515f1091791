"""Renders the HTML templates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from mmgrpo.report.number_format import abridged, clip, duration, number, signed, within
from mmgrpo.system.files import replace_text


def render_page(template: str, values: Mapping[str, Any]) -> str:
    """Renders a template of this folder; ``live`` is the version of a page that reloads itself, None for a file."""
    html = _environment().get_template(template).render({"live": None, **values})
    return html.encode(errors="replace").decode()


def write_page(path: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Renders a template of this folder and writes the page; an earlier page is replaced."""
    replace_text(path, render_page(template, values))
    return path


@cache
def _environment() -> jinja2.Environment:
    """The template environment, which caches compiled templates."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        number=number,
        duration=duration,
        clip=clip,
        abridged=abridged,
        signed=signed,
        within=within,
        plain="{:.3g}".format,
    )
    return environment
