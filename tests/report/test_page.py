"""The page contains the data of the run folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mmgrpo.errors import DataError
from mmgrpo.report import write_report
from tests.report.folder import PROMPTS
from tests.report.page import Page, render


def test_header(run: Path) -> None:
    page = render(run)
    assert page.texts("h1") == ["digits"]
    assert page.texts("p", "kicker") == ["mmgrpo run · digits-2finished"]
    assert page.texts("div", "heads") == [
        "held_out_accuracy 0.560 → 0.950 step 0 → 20 recall 0.780 → 0.410 step 0 → 20"
    ]
    facts = dict(zip(page.texts("dt"), page.texts("dd"), strict=True))
    assert facts == {
        "Started": "20 November 2026, 14:00 UTC",
        "Duration": "2 min 29 s",
        "Trained": "3 steps, 6 updates",
        "Seed": "7",
    }
    assert page.texts("p", "note") == ["the low start is <b>made</b> on purpose"]


def test_texts_of_the_run_are_escaped_and_no_file_is_fetched(run: Path) -> None:
    html = write_report(run).read_text(encoding="utf-8")
    page = Page(html)
    scripts = page.texts("script")
    assert len(scripts) == 1
    assert "alert" not in scripts[0]
    assert any(PROMPTS[1] in caption for caption in page.texts("p", "caption"))
    assert "path: http://hub/x" in page.texts("pre")[1]
    for tag, attrs, _ in page.elements:
        for key in ("src", "href", "srcset", "data", "action", "poster", "xlink:href"):
            assert attrs.get(key, "#").startswith(("#", "data:")), f"<{tag} {key}={attrs.get(key)!r:.80}>"
    style = page.texts("style")[0]
    assert "url(" not in style
    assert "@import" not in style
    policy = next(attrs["content"] for attrs in page.attributes("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_missing_evaluation_still_renders(run: Path) -> None:
    (run / "evaluation.jsonl").unlink()
    page = render(run)
    assert page.texts("div", "heads") == []
    assert "Evaluation: not recorded" in page.texts("p", "missing")
    assert len(page.attributes("img")) == 30


def test_empty_run_shows_not_recorded_everywhere(tmp_path: Path) -> None:
    page = render(tmp_path)
    assert page.texts("dd") == ["not recorded"] * 4
    assert [text.removesuffix(": not recorded") for text in page.texts("p", "missing")] == [
        "Evaluation",
        "Samples",
        "Mean reward",
        "Policy loss, KL from the reference, On-policy gap, Gradient norm, Groups of equal reward, Learning rate, "
        "Warm-up loss",
        "Time by phase",
        "Resolved formula and batch geometry",
        "config.yaml",
        "Command",
        "Machine",
        "Versions",
        "Checkpoints",
    ]


def test_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run folder at"):
        write_report(tmp_path / "absent")


def test_damage_is_counted(run: Path) -> None:
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "upd')
    (run / "samples/step-000000/0001.png").write_bytes(b"\x89PNG\r\n\x1a\n cut off")
    (run / "samples/step-000000/0002.png").unlink()
    (run / "config.yaml").write_text("note: [")
    page = render(run)
    assert "1 unreadable line in metrics.jsonl, left out." in page.texts("p")
    holes = [attrs["aria-label"] for attrs in page.attributes("span") if attrs.get("class") == "hole"]
    assert holes == [f"step 0: {PROMPTS[0]}; judge 0.250"] * 4  # two requests, in the grid and in the gallery
    assert "note: [" in page.texts("pre")


def test_environment_names_the_machine_and_those_a_run_went_on_with(run: Path) -> None:
    first = {"processor": "A <b>9</b>", "cores": 2, "gpus": [], "processes": 1, "threads": 2, "commit": "c0ffee"}
    later = first | {"gpus": ["H200", "H200"], "processes": 2, "commit": None}
    about = json.loads((run / "run.json").read_text()) | {"machine": first}
    resumed = [{"at": "now", "machine": first}, {"at": "then", "machine": later}]
    (run / "run.json").write_text(json.dumps(about | {"resumed": resumed, "status": "running"}))
    page = render(run)
    rows = [" ".join(text.split()) for text in page.texts("tr")]
    assert rows[-11:-1] == [
        "ProcessorA <b>9</b>, 2 cores",
        "GPUnone used",
        "Processes1",
        "Threads of each2",
        "Commit of mmgrpoc0ffee",
        "Processor, resumedA <b>9</b>, 2 cores",
        "GPU, resumed2 x H200",
        "Processes, resumed2",
        "Threads of each, resumed2",
        "Commit of mmgrpo, resumednot recorded",
    ]
    assert dict(zip(page.texts("dt"), page.texts("dd"), strict=True))["Duration"] == "running"
