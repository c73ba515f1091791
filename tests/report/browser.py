"""A real browser that renders a page at several widths, and lists the texts that cannot be read."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = ("--headless", "--hide-scrollbars", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")

MEASURE = r"""
<script>
const beyond = text => {  // how far a text reaches over what hides the rest of it, or over the page
  const range = document.createRange();
  range.selectNodeContents(text);
  const rects = [...range.getClientRects()];
  const left = Math.min(...rects.map(r => r.left)), right = Math.max(...rects.map(r => r.right));
  let most = 0;
  for (let e = text.parentElement; e && rects.length; e = e.parentElement) {
    const overflow = getComputedStyle(e).overflowX, box = e.getBoundingClientRect();
    if (["auto", "scroll"].includes(overflow)) return most;
    const hides = ["hidden", "clip"].includes(overflow) || e === document.body;
    if (hides) most = Math.max(most, box.left - left, right - box.right);
  }
  return most;
};
addEventListener("load", () => {
  const cut = [], page = document.documentElement;
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let text = texts.nextNode(); text; text = texts.nextNode()) {
    if (!text.textContent.trim() || ["SCRIPT", "STYLE"].includes(text.parentElement.tagName)) continue;
    const most = beyond(text);
    if (most > 1) cut.push(`${text.textContent.trim().slice(0, 60)}: ${Math.round(most)} px`);
  }
  const figures = [...document.querySelectorAll(".head p:not(.sub)")].map(p => p.textContent.trim());
  const tiles = [...document.querySelectorAll(".cell img")].map(img => Math.round(img.getBoundingClientRect().width));
  const tile = tiles.length ? Math.min(...tiles) : null;
  const grid = Math.round(document.querySelector(".pairs")?.getBoundingClientRect().height ?? 0);
  const overhang = page.scrollWidth - page.clientWidth;
  parent.postMessage(JSON.stringify({width: innerWidth, overhang, cut, figures, tile, grid}), "*");
});
</script>
"""

FRAMES = """<!doctype html><body>
<script>
const widths = %s, found = [];
addEventListener("message", event => {
  found.push(JSON.parse(event.data));
  if (found.length === widths.length) document.body.textContent = "FOU" + "ND" + JSON.stringify(found) + "END";
});
for (const width of widths) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`; frame.src = "page.html"; document.body.append(frame);
}
</script>"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A page at a width.

    Attributes:
        width: of the window, in CSS pixels.
        overhang: how much wider than the window the page is.
        cut: texts that reach beyond what hides the rest of them, or beyond the page, and by how much.
        figures: the lines in the cards at the head of the page.
        tile: width of the narrowest image, in CSS pixels.
        grid: height of the images before and after, in CSS pixels.
    """

    width: int
    overhang: int
    cut: list[str]
    figures: list[str]
    tile: int | None
    grid: int


def browser() -> str | None:
    """The program of a browser of Chromium's kind; None where there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def layouts(page: Path, widths: tuple[int, ...], folder: Path) -> list[Layout]:
    """The page as a browser renders it in windows of those widths, each in a separate frame."""
    program, text = browser(), page.read_text(encoding="utf-8")
    assert program is not None
    assert "</body>" in text
    (folder / "page.html").write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    frames = folder / "frames.html"
    frames.write_text(FRAMES % json.dumps(widths), encoding="utf-8")
    command = [program, *OPTIONS, f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=30000", "--dump-dom"]
    done = subprocess.run([*command, frames.as_uri()], capture_output=True, text=True, timeout=300)
    result = re.search(r"FOUND(.*)END", html.unescape(done.stdout), re.DOTALL)
    assert result, f"{program} measured nothing: {done.stderr[-2000:]}"
    return [Layout(**row) for row in sorted(json.loads(result[1]), key=lambda row: row["width"])]
