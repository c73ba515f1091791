"""What rewards read and saw, drawn over the picture; alarms; shares of what was gated and clipped."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from mmgrpo.report.drawings import Mark, marks_of, parsed_answers
from mmgrpo.samples import write_samples
from mmgrpo.types import Prompt, Sample, Scores
from tests.report.folder import write_lines
from tests.report.page import Page, render


def boxed(*stated: list[float], role: str = "reference") -> dict[str, object]:
    boxes: list[dict[str, object]] = [{"box": list(box), "role": "stated", "label": "dog"} for box in stated]
    space = {"name": "original", "width": None, "height": None}
    return {"boxes": [*boxes, {"box": [0, 0, 400, 300], "role": role}], "space": space, "pairs": [[0, 0, 0.5]]}


def write(run: Path, name: str, explanations: list[dict[str, object] | None], size: tuple[int, int] | None) -> None:
    prompt = Prompt("where?", images=(Image.new("RGB", size, "red"),) if size else ())
    samples = [
        Sample(prompt, 0, i, text="there" if size else None, image=None if size else Image.new("RGB", (40, 20)))
        for i in range(len(explanations))
    ]
    ones = torch.ones(len(samples), 1)
    scores = Scores(
        names=("boxes",), weight_R=torch.ones(1), value_BR=ones, valid_BR=ones.bool(),
        explanations={"boxes": explanations},
    )  # fmt: skip
    write_samples(run / "samples" / name, samples, scores)


def rects(page: Page) -> list[dict[str, str]]:
    return page.attributes("rect")


def test_boxes_over_what_was_shown(tmp_path: Path) -> None:
    # a picture of 800 x 600, kept at 448 x 336: boxes are in its own pixels
    write(tmp_path, "step-000000", [boxed([400, 300, 800, 600])], (800, 600))
    write(tmp_path, "step-000010", [boxed([0, 0, 200, 300])], (800, 600))
    page = render(tmp_path)
    sides = [(r["class"], r["x"], r["y"], r["width"], r["height"]) for r in rects(page)]
    assert sides == [
        ("before", "50.0", "50.0", "50.0", "50.0"),
        ("reference", "0.0", "0.0", "50.0", "50.0"),
        ("after", "0.0", "0.0", "25.0", "50.0"),
    ]
    assert "dog IoU 0.50" in page.texts("title")


def test_boxes_over_what_was_drawn(tmp_path: Path) -> None:
    said: dict[str, object] = {"boxes": [{"box": [10, 5, 20, 10], "role": "stated"}], "space": {"name": "original"}}
    write(tmp_path, "step-000000", [said, None], None)
    page = render(tmp_path)
    assert [(r["x"], r["y"], r["width"], r["height"]) for r in rects(page)] == [("25.0", "25.0", "25.0", "25.0")]


def test_what_was_read(tmp_path: Path) -> None:
    write(tmp_path, "step-000000", [{"parsed": "<b>7</b>"}], (8, 8))
    assert any("boxes 1.000 read <b>7</b>" in text for text in render(tmp_path).texts("div", "answer"))
    assert parsed_answers({"a": {"parsed": None}, "b": {"parsed": 3.0}, "c": {"text": "STOP"}, "d": {"boxes": []}}) == {
        "a": "nothing", "b": "3", "c": "STOP",
    }  # fmt: skip


def test_marks() -> None:
    point = {"points": [{"point": [500, 250], "role": "stated"}], "space": {"name": "norm1000"}}
    assert marks_of({"x": point}, None, "after") == [
        Mark(kind="after", left=49, top=24, width=2, height=2, label="point")
    ]
    assert marks_of({"x": boxed([0, 0, 1, 1])}, None, "after") == []  # original pixels of a picture of unknown size
    for strange in ({"boxes": 7}, {"boxes": [{"box": ["a", 0, 1, 1]}]}, {"boxes": [3], "points": [None], "pairs": [4]}):
        assert marks_of({"x": {"space": {"name": "norm1"}, **strange}}, None, "after") == []
    outside = {"boxes": [{"box": [-5, 0.5, 1e6, 2]}], "space": {"name": "norm1"}}
    assert [(m.left, m.top, m.width, m.height) for m in marks_of({"x": outside}, None, "after")] == [(0, 50, 100, 50)]


def test_alarms_and_shares(run: Path) -> None:
    write_lines(run / "alarms.jsonl", [{"step": 7, "kind": "grid", "measured": "<i>up</i>", "cure": "lower update.lr"}])
    shares = {"gated_frac": 0.25, "clipped_frac": 0.5, "failed_frac": 0.0, "cached_frac": 0.75}
    rows = [
        {"step": s, "reward/a/mean": 1.0, "reward/a/weight": 1.0 / s, **{f"reward/a/{k}": v for k, v in shares.items()}}
        for s in (1, 2)
    ]
    write_lines(run / "metrics.jsonl", rows)
    page = render(run)
    assert "7grid<i>up</i>lower update.lr" in [text.replace(" ", "").replace("update.lr", " update.lr") for text in
                                               page.texts("tr")]  # fmt: skip
    (note,) = [text for text in page.texts("p", "sub") if text.startswith("closed by its gate")]
    assert note == (
        "closed by its gate for up to 25.0% of a step's samples; clipped, where it counts, for up to 50.0% of a step's "
        "samples; known already for up to 75.0% of a step's samples; weight 1.000 to 0.500"
    )
    assert "reward/a/gated_frac" not in page.texts("h3")
