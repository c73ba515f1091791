"""Renders the HTML templates."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from mmgrpo.report.number_format import abridged, clip, duration, number, signed, within
from mmgrpo.system.files import replace_text


def write_page(path: Path, template: str, values: Mapping[str, Any]) -> Path:
    """Renders a template of this folder and writes the page; an earlier page is replaced."""
    html = _environment().get_template(template).render(values)
    replace_text(path, html.encode(errors="replace").decode())
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
