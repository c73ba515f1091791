"""The page in a real browser: every text is readable at every width."""

from __future__ import annotations

from pathlib import Path

import pytest

from mmgrpo.report import write_report
from tests.policies.families import daily
from tests.report.browser import BROWSERS, browser, layouts
from tests.report.folder import write_lines
from tests.report.test_image_grids import record

WIDTHS = (390, 1000, 1280, 1400, 1920)
MEASURES = {
    "held_out_accuracy": (0.485, 0.9475),
    "recall": (0.75, 0.39),
    "spread": (1.0934, 0.7812),
    "a_measure_with_a_long_name_that_nobody_shortened": (-1234567.25, 0.000012345),
    "precision": (0.0750, 0.0825),
    "verifier": (0.0, 1.0),
}
FIGURES = [
    "0.485 → 0.948",
    "0.750 → 0.390",
    "1.093 → 0.781",
    "\u22121,234,567 → 1.23\u00d710⁻⁵",
    "0.0750 → 0.0825",
    "0.000 → 1.000",
]

needs_browser = pytest.mark.skipif(browser() is None, reason=f"no browser found: none of {', '.join(BROWSERS)}")


@needs_browser
@pytest.mark.parametrize("num_measures", daily([5, 6], 6))
def test_no_text_is_cut_off_at_any_width(run: Path, tmp_path: Path, num_measures: int) -> None:
    measures = dict(list(MEASURES.items())[:num_measures])
    lines = [
        {"step": step, **{f"eval/{name}/mean": ends[end] for name, ends in measures.items()}}
        for end, step in enumerate((0, 20))
    ]
    write_lines(run / "evaluation.jsonl", lines)
    record(run, num_prompts=3, num_members=10)
    result = layouts(write_report(run), WIDTHS, tmp_path)
    assert [layout.width for layout in result] == list(WIDTHS)
    assert [layout.figures for layout in result] == [FIGURES[:num_measures]] * len(WIDTHS)
    assert {layout.width: layout.cut for layout in result} == {width: [] for width in WIDTHS}
    assert {layout.width: layout.overhang for layout in result} == dict.fromkeys(WIDTHS, 0)
    assert all(layout.tile is not None and layout.tile >= 96 for layout in result)


@pytest.mark.nightly
@needs_browser
@pytest.mark.parametrize("num_members", daily([1, 2], 2))
def test_prompts_of_few_images_share_a_row(run: Path, tmp_path: Path, num_members: int) -> None:
    record(run, num_prompts=24, num_members=num_members)
    result = layouts(write_report(run), WIDTHS, tmp_path)
    assert {layout.width: (layout.cut, layout.overhang) for layout in result} == dict.fromkeys(WIDTHS, ([], 0))
    assert all(layout.tile is not None and layout.tile >= 96 for layout in result)
    # a prompt a line would take 24 lines of more than 96 px
    assert all(layout.grid < 24 * 96 for layout in result if layout.width >= 1000)
