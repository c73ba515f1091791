"""Comparisons of runs: their differences and results, and nothing from outside their folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mmgrpo.cli import app
from mmgrpo.errors import DataError
from mmgrpo.report import write_comparison
from tests.report.browser import BROWSERS, browser, layouts
from tests.report.folder import PROMPTS, pixels, write_lines, write_run
from tests.report.page import Page, decoded

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """The run of the other tests, and one with a higher learning rate that reached less."""
    folders = [tmp_path / name / "digits" for name in ("first", "second")]
    for folder in folders:
        write_run(folder)
        write_lines(folder / "evaluation.jsonl", [{"step": s, "eval/accuracy/mean": 0.2 + s / 100} for s in (0, 20)])
    write_lines(folders[1] / "evaluation.jsonl", [{"step": s, "eval/accuracy/mean": 0.2 + s / 200} for s in (0, 20)])
    (folders[0] / "config.yaml").write_text("seed: 1\nupdate: {lr: 0.1, clip: 1}\n")
    (folders[1] / "config.yaml").write_text(f"seed: 1\nupdate: {{lr: 0.2, clip: 1}}\nabout: {{note: {HOSTILE}}}\n")
    return folders


def compared(runs: list[Path], out: Path | None = None) -> Page:
    page = Page(write_comparison(runs, out).read_text(encoding="utf-8"))
    assert page.open == []
    return page


def test_differences_of_configurations_and_results(runs: list[Path]) -> None:
    page = compared(runs)
    assert page.texts("h1") == ["first/digits, second/digits"]
    rows = page.texts("tr")
    assert "accuracy0.200 → 0.400 step 200.200 → 0.300 step 20" in rows
    assert "update.lr0.10.2" in rows
    assert f"about.note\u2013{HOSTILE}" in rows
    assert not [row for row in rows if row.startswith(("update.clip", "seed"))]
    # both runs in one chart, on an axis of 0..1
    assert page.plot("accuracy") == ["M0.0 80.0L100.0 60.0", "M0.0 80.0L100.0 70.0"]
    assert page.texts("script") == [text for text in page.texts("script") if "alert" not in text]


def test_a_curve_keeps_its_runs_color_and_name(runs: list[Path]) -> None:
    write_lines(runs[1] / "evaluation.jsonl", [{"step": s, "eval/extra/mean": 0.2 + s / 40} for s in (0, 20)])
    page = compared(runs)
    # accuracy of the first run alone, extra of the second alone, then the reward of both
    assert [attrs["class"] for attrs in page.attributes("g")] == ["s0", "s1", "s0", "s1"]
    assert page.texts("p", "legend")[:2] == ["first/digits", "second/digits"]


def test_rewards_are_compared_one_by_one(runs: list[Path]) -> None:
    first = "rewards: [{name: close, weight: 1.0, gate: null}, {name: close, label: near, weight: 0.2}]\n"
    (runs[0] / "config.yaml").write_text(first + "held_out: [a, b]\nwindow: null\n")
    (runs[1] / "config.yaml").write_text("rewards: [{name: close, weight: 0.5}]\nheld_out: [a]\n")
    rows = compared(runs).texts("tr")
    differences = ["rewards.close.weight1.00.5", "rewards.near.nameclose\u2013", "rewards.near.labelnear\u2013",
                   "rewards.near.weight0.2\u2013", "held_out['a', 'b']['a']"]  # fmt: skip
    start = rows.index(differences[0])
    assert rows[start : start + 5] == differences
    assert not [row for row in rows if row.startswith(("rewards.close.gate", "window"))]


def test_verdicts_are_marked(runs: list[Path]) -> None:
    for run, values in zip(runs, ((0, 1), (1, 1)), strict=True):
        rows = [
            {"prompt": "1+1=", "group": 0, "member": m, "text": "2", "rewards": {"right": value}}
            for m, value in enumerate(values)
        ]
        write_lines(run / "samples/step-000020/samples.jsonl", rows)
    assert compared(runs).texts("span", "verdict") == ["✗ right", "✓ right", "✓ right", "✓ right"]


def test_the_same_requests_are_next_to_each_other(runs: list[Path]) -> None:
    before = (runs[0] / "samples/step-000000/0001.png").read_bytes()
    for index in (0, 3):
        (runs[1] / f"samples/step-000020/000{index}.png").write_bytes(before)
    log = runs[1] / "samples/step-000020/samples.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    records[4]["prompt"] = "something else"
    write_lines(log, records)
    page = compared(runs)
    captions = page.texts("p", "caption")
    assert captions == [PROMPTS[0]] * 3 + [" ".join(PROMPTS[1].split())] * 2  # request 4 asks two things
    images = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    first, second = (20, 20, 20, 20, 20), (0, 20, 20, 0, 20)
    for place, request in enumerate((0, 1, 2, 3, 5)):
        np.testing.assert_array_equal(images[2 * place], pixels(first[place], request))
        np.testing.assert_array_equal(images[2 * place + 1], pixels(second[place], request if second[place] else 1))


def test_files_outside_of_the_folders_are_not_read(runs: list[Path], tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    write_lines(secret, [{"step": 0, "eval/secret/mean": 0.123}])
    (runs[1] / "evaluation.jsonl").unlink()
    (runs[1] / "evaluation.jsonl").symlink_to(secret)
    page = compared(runs, tmp_path / "out.html")
    assert "secret" not in [row[:6] for row in page.texts("tr")]
    assert "evaluation.jsonl of second/digits is not read, or only in part." in page.texts("p")
    assert not (runs[0] / "compare.html").exists()


def test_runs_that_cannot_be_compared(runs: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot compare 7 runs; pass two to 6"):
        write_comparison(runs[:1] * 7)
    with pytest.raises(DataError, match="a run folder is repeated"):
        write_comparison([runs[0], runs[0] / ".." / "digits"])
    with pytest.raises(DataError, match="no run folder at"):
        write_comparison([runs[0], tmp_path / "absent"])
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "No request that all runs have" in compared([runs[0], empty]).texts("p", "missing")


def test_the_command_takes_one_run_or_several(runs: list[Path], tmp_path: Path) -> None:
    output = CliRunner().invoke(app, ["report", *map(str, runs)]).output
    assert "".join(output.split()) == str(runs[0] / "compare.html")
    refused = CliRunner().invoke(app, ["report", str(runs[0]), "--out", str(tmp_path / "x.html")])
    assert refused.exit_code == 2
    assert "--out is for several runs" in refused.output


@pytest.mark.nightly
@pytest.mark.skipif(browser() is None, reason=f"no browser found: none of {', '.join(BROWSERS)}")
def test_no_text_is_cut_off(runs: list[Path], tmp_path: Path) -> None:
    widths = (390, 1400)
    result = layouts(write_comparison(runs), widths, tmp_path)
    assert {layout.width: (layout.cut, layout.overhang) for layout in result} == dict.fromkeys(widths, ([], 0))
