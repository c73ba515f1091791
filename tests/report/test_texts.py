"""Texts before and after."""

from __future__ import annotations

import json
from pathlib import Path

from tests.report.folder import sample
from tests.report.page import render


def test_texts_before_and_after(run: Path) -> None:
    for step, text in ((0, "<b>4</b>\u20281"), (10, None), (20, "3" * 1600)):
        rows = [sample(None, 0, step / 20, text), sample(None, 1, None, text)]
        path = run / f"samples/step-{step:06d}/samples.jsonl"
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    page = render(run)
    assert page.attributes("img") == []
    assert page.texts("td", "said") == ["<b>4</b> 1", "3" * 1500 + " … (100 more characters)"] * 2
    assert page.texts("span", "change") == ["judge 0.000 → 1.000"]
    assert "unreadable" not in " ".join(page.texts("footer"))
