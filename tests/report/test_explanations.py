"""Explanations of rewards on the image; alerts; shares of gated and clipped rewards."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image

from mmgrpo.report.image_marks import ImageMark, marks_of
from mmgrpo.report.reward_notes import RewardNote, TimelineSpan, note_of, timeline_of
from mmgrpo.runs.sample_files import write_samples
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


def test_boxes_over_input_images(tmp_path: Path) -> None:
    # an image of 800 x 600, kept at 448 x 336: boxes are in its own pixels
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


def test_boxes_over_generated_images(tmp_path: Path) -> None:
    explanation: dict[str, object] = {
        "boxes": [{"box": [10, 5, 20, 10], "role": "stated"}],
        "space": {"name": "original"},
    }
    write(tmp_path, "step-000000", [explanation, None], None)
    page = render(tmp_path)
    assert [(r["x"], r["y"], r["width"], r["height"]) for r in rects(page)] == [("25.0", "25.0", "25.0", "25.0")]


def test_parsed_answers_are_displayed(tmp_path: Path) -> None:
    write(tmp_path, "step-000000", [{"parsed": "<b>7</b>"}], (8, 8))
    assert any("boxes 1.000 read <b>7</b>" in text for text in render(tmp_path).texts("div", "answer"))
    result = [
        note_of(explanation, None).read
        for explanation in ({"parsed": None}, {"parsed": 3.0}, {"text": "STOP"}, {"boxes": []})
    ]
    assert result == ["nothing", "3", "STOP", None]


def test_common_values_are_displayed_once(tmp_path: Path) -> None:
    for step in ("step-000000", "step-000010"):
        write(tmp_path, step, [{"reason": "well formed"}, {"reason": "well formed"}], (8, 8))
    page = render(tmp_path)
    assert page.texts("p", "lead")[0].endswith("The same for every request: boxes 1.000 → 1.000")
    assert page.texts("p", "worth") == [""] * 4
    write(tmp_path, "step-000010", [{"reason": "well formed"}, {"reason": "by luck"}], (8, 8))
    assert render(tmp_path).texts("p", "worth")[1::2] == ["boxes 1.000: well formed", "boxes 1.000: by luck"]


def test_reasons_of_scores_in_words(tmp_path: Path) -> None:
    explanation: dict[str, object] = {
        "parsed": 7.0, "reference": 8, "parts": {"type": 1, "place": 1 / 3},
        "majority": ["7", "8"], "reason": "<i>why</i>",
    }  # fmt: skip
    parts = "type 1, place 0.333, most say 7 or 8"
    assert note_of(explanation, None) == RewardNote(read="7", expected="8", reason="<i>why</i>", parts=parts)
    assert note_of(explanation, "8").expected is None  # the row's reference is next to the request
    assert note_of({"parts": 3, "reason": ["x"], "majority": []}, None) == RewardNote()
    assert note_of({"parts": {str(i): i for i in range(14)}}, None).parts == ", ".join(
        [*(f"{i} {i}" for i in range(12)), "and 2 more"]
    )
    write(tmp_path, "step-000000", [explanation], (8, 8))
    answers = render(tmp_path).texts("div", "answer")
    assert f"boxes 1.000 read 7, expected 8 ({parts}): <i>why</i>" in answers[-1]


def test_spans_and_moments_are_on_a_timeline(tmp_path: Path) -> None:
    explanation: dict[str, object] = {
        "spans": [{"span": [4, 8], "role": "stated"}, {"span": [2, 6], "role": "reference"}],
        "overlaps": [[2, 0.25], [7, 1]],
    }
    line = timeline_of(explanation)
    assert line is not None
    # from 2 to 8: 4 is a third of the way, 6 two thirds, 7 five sixths
    assert line.spans == (
        TimelineSpan(role="stated", left=33.33, width=66.67), TimelineSpan(role="reference", left=0, width=66.67),
    )  # fmt: skip
    assert (line.start, line.end, line.moments) == ("2", "8", ((0, 25), (83.33, 100)))
    assert line.label == "stated 4 to 8; reference 2 to 6; overlap 0.25 at 2; overlap 1.00 at 7"
    for nothing in ({}, {"spans": 3}, {"spans": [None, {"span": ["a", 1]}]}, {"overlaps": [[1], [float("nan"), 1]]}):
        assert timeline_of(nothing) is None
    write(tmp_path, "step-000000", [explanation], (8, 8))
    styles = [a["style"] for a in render(tmp_path).attributes("i") if a.get("class") in ("stated", "reference")]
    assert styles == ["left:33.33%;width:66.67%", "left:0.0%;width:66.67%"]


def test_masks_are_outlined(tmp_path: Path) -> None:
    # over the left half of the image 2 columns and 2 rows: all of the first column, the lower cell of the second
    mask: dict[str, object] = {"box": [0, 0, 50, 100], "size": [2, 2], "counts": [0, 2, 1, 1], "role": "stated"}
    space = {"name": "original", "width": 100, "height": 100}
    (mark,) = marks_of({"x": {"masks": [mask], "space": space}}, None, "after")
    assert mark.path == "M0 0H25M25 50H50M0 100H50" + "M0 0V100M25 0V50M50 50V100"
    assert (
        marks_of({"x": {"masks": [mask | {"role": "reference"}], "space": space}}, None, "after")[0].kind == "reference"
    )
    for wrong in ({"counts": [0, 2]}, {"counts": "04"}, {"size": [2]}, {"size": [4096, 4096]}, {"box": [0, 0, 1]}):
        assert marks_of({"x": {"masks": [mask | wrong], "space": space}}, None, "after") == []
    write(tmp_path, "step-000000", [{"masks": [mask], "space": space}], (8, 8))
    assert [a["d"] for a in render(tmp_path).attributes("path") if a.get("class") == "after"] == [mark.path]


def test_marks() -> None:
    point = {"points": [{"point": [500, 250], "role": "stated"}], "space": {"name": "norm1000"}}
    assert marks_of({"x": point}, None, "after") == [
        ImageMark(kind="after", left=49, top=24, width=2, height=2, label="point")
    ]
    assert marks_of({"x": boxed([0, 0, 1, 1])}, None, "after") == []  # original pixels of an image of unknown size
    for strange in ({"boxes": 7}, {"boxes": [{"box": ["a", 0, 1, 1]}]}, {"boxes": [3], "points": [None], "pairs": [4]}):
        assert marks_of({"x": {"space": {"name": "norm1"}, **strange}}, None, "after") == []
    outside = {"boxes": [{"box": [-5, 0.5, 1e6, 2]}], "space": {"name": "norm1"}}
    assert [(m.left, m.top, m.width, m.height) for m in marks_of({"x": outside}, None, "after")] == [(0, 50, 100, 50)]


def test_alerts_and_shares(run: Path) -> None:
    write_lines(
        run / "alerts.jsonl",
        [{"step": 7, "kind": "grid", "measured": "<i>up</i>", "suggested_fix": "lower update.optimizer.lr"}],
    )
    shares = {"gated_frac": 0.25, "clipped_frac": 0.5, "failed_frac": 0.0, "cached_frac": 0.75}
    rows = [
        {"step": s, "reward/a/mean": 1.0, "reward/a/weight": 1.0 / s, **{f"reward/a/{k}": v for k, v in shares.items()}}
        for s in (1, 2)
    ]
    write_lines(run / "metrics.jsonl", rows)
    page = render(run)
    rows = [text.replace(" ", "") for text in page.texts("tr")]
    assert "7grid<i>up</i>lowerupdate.optimizer.lr" in rows
    (note,) = [text for text in page.texts("p", "settled") if "closed by its gate" in text]
    assert note == (
        "Constant throughout: a 1.000 (closed by its gate for up to 25.0% of a step's samples; "
        "clipped for up to 50.0% of a step's "
        "samples; cached for up to 75.0% of a step's samples; weight 1.000 to 0.500)"
    )
    assert "reward/a/gated_frac" not in page.texts("h3")
