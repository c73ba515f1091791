"""The page as a reader takes it in."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path

from PIL import Image

from mmgrpo.report import write_report

VOID = {"img", "meta", "link", "br", "path", "wbr"}


class Page(HTMLParser):
    """Elements with their attributes and their text, in document order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str], list[str]]] = []
        self.open: list[tuple[str, list[str]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        text: list[str] = []
        self.elements.append((tag, {key: value or "" for key, value in attrs}, text))
        if tag not in VOID:
            self.open.append((tag, text))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            opened, _ = self.open.pop()
            assert opened == tag, f"<{opened}> closed by </{tag}>"

    def handle_data(self, data: str) -> None:
        for _, text in self.open:
            text.append(data)

    def attributes(self, tag: str, css: str | None = None) -> list[dict[str, str]]:
        """Of the elements of a class; without one, of all but the strip in the head of the page."""
        elements = [attrs for name, attrs, _ in self.elements if name == tag]
        classes = [attrs.get("class", "") for attrs in elements]
        return [a for a, name in zip(elements, classes, strict=True) if (name == css if css else name != "strip")]

    def texts(self, tag: str, css: str = "") -> list[str]:
        result = (text for name, attrs, text in self.elements if name == tag and css in attrs.get("class", ""))
        return [" ".join("".join(text).split()) for text in result]

    def plot(self, title: str) -> list[str]:
        """The lines (SVG path data) of the chart whose description starts with the title."""
        starts = [i for i, (_, a, _) in enumerate(self.elements) if a.get("aria-label", "").startswith(f"{title}.")]
        lines = []
        for tag, attrs, _ in self.elements[starts[0] + 1 :]:
            if "data-readout" in attrs:
                break
            if tag == "path" and attrs["class"] == "line" and attrs["d"] != "M1 4H21":
                lines.append(attrs["d"])
        return lines


def render(run: Path) -> Page:
    page = Page(write_report(run).read_text(encoding="utf-8"))
    assert page.open == []
    return page


def decoded(uri: str) -> Image.Image:
    head, data = uri.split(",", 1)
    assert re.fullmatch(r"data:image/(png|gif|webp|jpeg);base64", head)
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
