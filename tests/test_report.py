"""The page is read back: what it shows must be what the run folder holds."""

from __future__ import annotations

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageSequence

from mmgrpo.errors import DataError
from mmgrpo.report import duration, number, write_report

STEPS = (0, 10, 20)
PROMPTS = ("a picture of the digit three", "<script>alert('four')</script> & \"more\"")
MEMBERS = 3
VOID = {"img", "meta", "link", "br", "path"}


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

    def attributes(self, tag: str) -> list[dict[str, str]]:
        return [attrs for name, attrs, _ in self.elements if name == tag]

    def texts(self, tag: str, css: str = "") -> list[str]:
        found = (text for name, attrs, text in self.elements if name == tag and css in attrs.get("class", ""))
        return [" ".join("".join(text).split()) for text in found]

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


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def pixels(step: int, request: int) -> np.ndarray:
    return np.random.default_rng((step, request)).integers(0, 256, (8, 8), dtype=np.uint8)


def decoded(uri: str) -> Image.Image:
    head, data = uri.split(",", 1)
    assert re.fullmatch(r"data:image/(png|gif|webp|jpeg);base64", head)
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


def sample(file: str | None, request: int, reward: float | None, text: str | None = None) -> dict[str, Any]:
    group, member = divmod(request, MEMBERS)
    rewards = {} if reward is None else {"judge": reward}
    return {
        "file": file,
        "prompt": PROMPTS[group],
        "group": group,
        "member": member,
        "text": text,
        "rewards": rewards,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    run = tmp_path / "digits-2"
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        folder.mkdir(parents=True)
        for request in range(2 * MEMBERS):
            Image.fromarray(pixels(step, request)).save(folder / f"{request:04d}.png")
        shots = [sample(f"{r:04d}.png", r, 0.25 if step == 0 else 0.75) for r in range(2 * MEMBERS)]
        write_lines(folder / "samples.jsonl", shots)
    (run / "config.yaml").write_text("note: the low start is <b>made</b> on purpose\npolicy:\n  path: http://hub/x\n")
    about = {
        "name": "digits",
        "command": "mmgrpo train digits.yaml",
        "started": "2026-11-20T14:00:00+00:00",
        "finished": "2026-11-20T14:02:29+00:00",
        "status": "finished",
        "seed": 7,
        "versions": {"torch": "2.15.0"},
        "explain": "A = (r - mean) / std",
    }
    (run / "run.json").write_text(json.dumps(about))
    metrics = [
        {
            "step": step,
            "update": update,
            "reward/mean": 0.25 * step,
            "reward/std": 0.5,
            "reward/judge/mean": 0.25 * step,
            "reward/judge/failed_frac": 0.125 if step == 2 else 0.0,
            "policy/loss": 0.5,
            "policy/clip_low_frac": 0.2 * update,
            "policy/clip_high_frac": 0.1 * update,
            "policy/on_policy_gap": 1e-7,
            "optimizer/grad_norm": float("nan") if (step, update) == (2, 1) else 1.0,
            "time/rollout_s": 2.0,
            "time/reward_s": 0.5,
            "time/update_s": 1.0,
            "count/forwards_per_sample": 9.0 * (update + 1),
            "policy/entropy_mean": 0.3,
        }
        for step in (1, 2, 3)
        for update in (0, 1)
    ]
    write_lines(run / "metrics.jsonl", metrics)
    accuracy, recall = (0.56, 0.8, 0.95), (0.78, 0.6, 0.41)
    evaluation = [
        {"step": s, "eval/held_out_accuracy/mean": a, "eval/recall/mean": r, "time/evaluation_s": 4.0}
        for s, a, r in zip(STEPS, accuracy, recall, strict=True)
    ]
    write_lines(run / "evaluation.jsonl", evaluation)
    # the clock starts again after a resume: 10 s and 30 s
    warmup = [{"step": s, "loss": 1 / s, "lr": 1e-3, "time_s": t} for s, t in ((1, 1.0), (50, 10.0), (100, 30.0))]
    warmup.insert(2, {"step": 51, "loss": 0.1, "lr": 1e-3, "time_s": 0.5})
    write_lines(run / "warmup.jsonl", warmup)
    (run / "checkpoints/step-000020").mkdir(parents=True)
    return run


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


def test_pictures_are_the_files_in_reading_order(run: Path) -> None:
    page = render(run)
    shown = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    # Grids: per prompt, its members before and then after. Gallery: all 6 requests, each at the 3 steps.
    grids = [(step, group * MEMBERS + m) for group in (0, 1) for step in (0, 20) for m in range(MEMBERS)]
    gallery = [(step, request) for request in range(6) for step in STEPS]
    assert len(shown) == 12 + 18
    for picture, (step, request) in zip(shown, grids + gallery, strict=True):
        np.testing.assert_array_equal(picture, pixels(step, request))
    assert page.attributes("img")[0]["alt"] == f"step 0: {PROMPTS[0]}; judge 0.250"
    assert all(attrs["class"] == "px" for attrs in page.attributes("img"))
    assert [attrs["style"] for attrs in page.attributes("i")][:6] == ["width:25.0%"] * 3 + ["width:75.0%"] * 3
    assert page.texts("p", "caption")[0] == f"{PROMPTS[0]} 0.250 → 0.750"


def test_what_the_run_says_is_escaped_and_nothing_is_fetched(run: Path) -> None:
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


def test_curves_are_drawn_to_scale(run: Path) -> None:
    page = render(run)
    # both measures lie in 0..1, so the axis is 0..1: y = 100 (1 - value); steps 0, 10, 20 at x = 0, 50, 100
    assert page.plot("Held-out measures") == ["M0.0 44.0L50.0 20.0L100.0 5.0", "M0.0 22.0L50.0 40.0L100.0 59.0"]
    # clipping 0 and 0.2 in a step's two updates is 0.1 on average; axis 0..0.1
    assert page.plot("Fraction of ratios clipped") == ["M0.0 0.0L50.0 0.0L100.0 0.0", "M0.0 50.0L50.0 50.0L100.0 50.0"]
    band = next(attrs["d"] for tag, attrs, _ in page.elements if tag == "path" and attrs["class"] == "band")
    # means 0.25, 0.5, 0.75 +- 0.5: from -0.25 to 1.25, ticks every 0.5 from -0.5 to 1.5, so y = 100 (1.5 - v) / 2
    assert band == "M0.0 37.5L50.0 25.0L100.0 12.5L100.0 62.5L50.0 75.0L0.0 87.5Z"
    assert "failed on up to 12.5% of a step's samples" in page.texts("p", "sub")
    assert "1 value not finite, left out" in page.texts("p", "sub")
    assert "policy/entropy_mean" in page.texts("h3")


def test_spikes_survive_thinning(run: Path) -> None:
    rows = [{"step": s, "optimizer/grad_norm": 90.0 if s == 3333 else 1.0} for s in range(5000)]
    write_lines(run / "metrics.jsonl", rows)
    plots = [json.loads(attrs["data-readout"]) for attrs in render(run).attributes("div") if "data-readout" in attrs]
    points = next(plot["curves"][0][1] for plot in plots if plot["curves"][0][0] == "Gradient norm")
    assert len(points) <= 500
    assert (points[0], points[-1]) == ([0, 1.0], [4999, 1.0])
    assert [3333, 90.0] in points


def test_time_by_phase(run: Path) -> None:
    page = render(run)
    cells = page.texts("td")
    start = cells.index("warm-up")
    # 149 s in all: warm-up 10 + 30; rollout 3 x 2 (not 6 x 2); reward 3 x 0.5; update 6 x 1; evaluation 3 x 4
    assert cells[start : start + 24] == [
        *("warm-up", "40 s", "26.8 %", "0.400 s per step"),
        *("rollout", "6.00 s", "4.0 %", "2.00 s per step"),
        *("reward", "1.50 s", "1.0 %", "0.500 s per step"),
        *("update", "6.00 s", "4.0 %", "2.00 s per step"),
        *("evaluation", "12 s", "8.1 %", "4.00 s per evaluation"),
        *("everything else", "1 min 24 s", "56.0 %", ""),
    ]
    assert "Model forwards per sample: 18.00" in page.texts("p", "sub")


def test_missing_evaluation_still_renders(run: Path) -> None:
    (run / "evaluation.jsonl").unlink()
    page = render(run)
    assert page.texts("div", "heads") == []
    assert "Evaluation: not recorded" in page.texts("p", "missing")
    assert len(page.attributes("img")) == 30


def test_empty_run_says_not_recorded_everywhere(tmp_path: Path) -> None:
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


def test_requests_that_differ_are_left_out(run: Path) -> None:
    shots = [sample(f"{r:04d}.png", r, None) for r in range(6)]
    shots[0]["prompt"] = "something else"
    write_lines(run / "samples/step-000020/samples.jsonl", shots)
    page = render(run)
    assert "1 line asks something else at the two steps" in page.texts("p", "lead")[0]
    assert len(page.attributes("img")) == 2 * 5 + 3 * 5


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


def test_grids_are_limited(run: Path) -> None:
    for step in STEPS:
        rows = [
            {"file": "0000.png", "prompt": f"prompt {r // 8}", "group": r // 8, "member": r % 8} for r in range(200)
        ]
        write_lines(run / f"samples/step-{step:06d}/samples.jsonl", rows)
    page = render(run)
    # 25 prompts: 20 of them, 100 // 20 = 5 members each, twice; the gallery shows 6 requests at 3 steps
    assert len(page.attributes("img")) == 2 * 100 + 18
    captions = page.texts("p", "caption")[:20]
    assert (captions[0], captions[-1]) == ("prompt 0", "prompt 24")
    assert "100 of 200 requests" in page.texts("p", "lead")[0]


def test_large_pictures_are_reduced_until_the_page_is_small(run: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    for step in STEPS:
        for request in range(6):
            Image.fromarray(noise).save(run / f"samples/step-{step:06d}/{request:04d}.png")
    page = render(run)
    images = [decoded(attrs["src"]) for attrs in page.attributes("img")]
    # 30 pictures share 4.8 MB; a file is about 197 kB, which is more than 160 kB
    assert {image.format for image in images} == {"WEBP"}
    assert "30 pictures are reduced" in page.texts("p", "lead")[0]
    assert (run / "report.html").stat().st_size < 8_000_000


@pytest.mark.parametrize(("side", "exact"), [(16, True), (128, False)])
def test_videos_keep_moving(run: Path, side: int, exact: bool) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    frames = [Image.fromarray(frame) for frame in noise]
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        frames[0].save(folder / "0.webp", save_all=True, append_images=frames[1:], duration=125, lossless=True)
        write_lines(folder / "samples.jsonl", [sample("0.webp", r, 1.0) for r in range(6)])
    for attrs in render(run).attributes("img"):
        shown = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(decoded(attrs["src"]))]
        assert len(shown) == 4
        assert not exact or np.array_equal(np.stack(shown), noise)
        assert not np.array_equal(shown[0], shown[1])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "not recorded"),
        (0.0, "0.000"),
        (0.56, "0.560"),
        (-1.08, "\u22121.080"),
        (18.0, "18.00"),
        (1234.5, "1,234"),
        (0.00123, "0.00123"),
        (2.5e-7, "2.50\u00d710⁻⁷"),
        (float("inf"), "inf"),
    ],
)
def test_numbers(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "not recorded"),
        (0.012, "0.012 s"),
        (2.1, "2.10 s"),
        (59.7, "1 min 00 s"),
        (149.0, "2 min 29 s"),
        (7265.0, "2 h 01 min"),
    ],
)
def test_durations(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
