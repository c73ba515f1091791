"""The images of the report, and their places."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from mmgrpo.runs.sample_files import write_samples
from mmgrpo.types import Prompt, Sample, Scores
from tests.report.folder import MEMBERS, PROMPTS, STEPS, pixels, sample, write_lines
from tests.report.page import Page, decoded, render


def test_images_are_the_files_in_reading_order(run: Path) -> None:
    page = render(run)
    images = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    # Grids: per prompt, its members before and then after. Gallery: all 6 requests, each at the 3 steps; the first
    # prompt's rose, the second's stayed.
    grids = [(step, group * MEMBERS + m) for group in (0, 1) for step in (0, 20) for m in range(MEMBERS)]
    gallery = [(step, request) for request in range(6) for step in STEPS]
    assert len(images) == 12 + 18
    for picture, (step, request) in zip(images, grids + gallery, strict=True):
        np.testing.assert_array_equal(picture, pixels(step, request))
    assert page.attributes("img")[0]["alt"] == f"step 0: {PROMPTS[0]}; judge 0.250"
    assert not any("class" in attrs for attrs in page.attributes("img"))
    assert "pixelated" not in page.texts("style")[0]
    assert [attrs["style"] for attrs in page.attributes("i")][:6] == ["width:25.0%"] * 3 + ["width:75.0%"] * 3
    assert page.texts("p", "caption")[0] == f"{PROMPTS[0]} 0.250 → 0.750"


def test_the_gallery_shows_the_largest_changes_up_and_down(run: Path) -> None:
    before, after = [0.5] * 6 + [0.0, 1.0], [0.6, 0.5, 0.9, 0.2, 0.4, 0.5, 0.8, 1.0]
    for step, rewards in ((0, before), (20, after)):
        records = [sample("0000.png", r % 6, reward) | {"prompt": f"p{r}"} for r, reward in enumerate(rewards)]
        write_lines(run / f"samples/step-{step:06d}/samples.jsonl", records)
    (run / "samples/step-000010/samples.jsonl").unlink()
    page = render(run)
    # rises: +0.1 (0), +0.4 (2), +0.8 (6); falls: -0.3 (3), -0.1 (4); request 1 of those that stayed fills the six
    assert requests(page)[16:] == [r for r in (6, 2, 0, 3, 4, 1) for _ in range(2)]
    assert "Of 8 requests 3 rose and 2 fell from the first to the last" in page.texts("p", "lead")[1]
    assert page.texts("p", "caption")[8:10] == ["p6 0.000 → 0.800", "p2 0.500 → 0.900"]


def test_scores_of_the_complete_set_are_displayed_once(run: Path) -> None:
    for step, recall in ((0, 0.75), (20, 0.5)):
        folder = run / f"samples/step-{step:06d}/samples.jsonl"
        records = [json.loads(line) for line in folder.read_text().splitlines()]
        write_lines(folder, [record | {"rewards": {"recall": recall, **record["rewards"]}} for record in records])
    page = render(run)
    assert page.texts("p", "lead")[0].endswith("judge, 0 to 1. The same for every request: recall 0.750 → 0.500")
    captions = [f"{PROMPTS[0]} 0.250 → 0.750", f"{PROMPTS[1]} 0.500 → 0.500"]
    assert page.texts("p", "caption")[:2] == captions
    # a bar a picture: 3 + 3 of the first prompt, then the second's
    widths = ["width:25.0%"] * 3 + ["width:75.0%"] * 3 + ["width:50.0%"] * 6
    assert [attrs["style"] for attrs in page.attributes("i")][:12] == widths


def test_a_single_request_keeps_its_numbers(run: Path) -> None:
    for step, score in ((0, 0.25), (20, 0.75)):
        write_lines(run / f"samples/step-{step:06d}/samples.jsonl", [sample("0000.png", 0, score)])
    page = render(run)
    assert page.texts("p", "caption")[0] == f"{PROMPTS[0]} 0.250 → 0.750"
    assert "The same for every request" not in page.texts("p", "lead")[0]


def test_requests_that_differ_are_left_out(run: Path) -> None:
    records = [sample(f"{r:04d}.png", r, None) for r in range(6)]
    records[0]["prompt"] = "something else"
    write_lines(run / "samples/step-000020/samples.jsonl", records)
    page = render(run)
    assert "1 line has another request at the two steps" in page.texts("p", "lead")[0]
    assert len(page.attributes("img")) == 2 * 5 + 3 * 5


def record(run: Path, num_prompts: int, num_members: int) -> None:
    """At every step, the same image for every member of every prompt, prompt-major."""
    for step in STEPS:
        rows = [
            {"file": "0000.png", "prompt": f"prompt {group}", "group": group, "member": member}
            for group in range(num_prompts)
            for member in range(num_members)
        ]
        write_lines(run / f"samples/step-{step:06d}/samples.jsonl", rows)


def requests(page: Page) -> list[int]:
    return [int(attrs["data-request"]) for attrs in page.attributes("div") if "data-request" in attrs]


def test_grids_are_limited(run: Path) -> None:
    record(run, num_prompts=25, num_members=8)
    page = render(run)
    # 25 prompts take turns: 100 / 25 = 4 members each, twice; the gallery shows 6 requests at 3 steps
    assert len(page.attributes("img")) == 2 * 100 + 18
    grids = [group * 8 + member for group in range(25) for _ in ("before", "after") for member in range(4)]
    assert requests(page)[:200] == grids
    captions = page.texts("p", "caption")[:25]
    assert captions == [f"prompt {group}" for group in range(25)]
    assert "100 of 200 requests" in page.texts("p", "lead")[0]


def test_ten_prompts_of_forty_members_are_lines_of_five(run: Path) -> None:
    record(run, num_prompts=10, num_members=40)
    page = render(run)
    grids = [group * 40 + member for group in range(10) for _ in ("before", "after") for member in range(10)]
    assert requests(page)[:200] == grids
    # the gallery: the first member of 6 prompts at 3 steps, evenly spaced among the 10: 9 k / 5 = 0 1.8 3.6 5.4 7.2 9
    assert requests(page)[200:] == [group * 40 for group in (0, 2, 4, 5, 7, 9) for _ in STEPS]
    assert [attrs["style"] for attrs in page.attributes("div") if attrs.get("class") == "pairs"] == ["--n:5;--parts:2"]
    assert "100 of 400 requests" in page.texts("p", "lead")[0]


def test_remaining_places_go_to_the_first_prompts(run: Path) -> None:
    record(run, num_prompts=30, num_members=8)
    # 3 turns of 30 prompts leave 10 of 100 places
    per_prompt = Counter(request // 8 for request in requests(render(run))[:200])
    assert per_prompt == {group: 2 * (4 if group < 10 else 3) for group in range(30)}


def test_of_too_many_prompts_evenly_spaced_ones_are_displayed(run: Path) -> None:
    record(run, num_prompts=199, num_members=2)
    page = render(run)
    # 100 of 199: every other one, from the first to the last
    assert page.texts("p", "caption")[:100] == [f"prompt {group}" for group in range(0, 199, 2)]
    # one image each, so that several prompts are next to each other
    grids = [attrs["style"] for attrs in page.attributes("div") if attrs.get("class") == "pairs sparse"]
    assert grids == ["--n:1;--parts:2"]
    assert page.texts("p", "lead")[0].endswith("From left to right: step 0, step 20.")


def test_input_images_are_next_to_generated_images(run: Path) -> None:
    folder = run / "samples/shown"
    folder.mkdir()
    for request in range(2 * MEMBERS):
        Image.fromarray(pixels(99, request)).save(folder / f"{request}.png")
    for step in STEPS:
        path = run / f"samples/step-{step:06d}/samples.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        write_lines(path, [record | {"images": [f"../shown/{n}.png"]} for n, record in enumerate(records)])
    page = render(run)
    result = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    grids = [(step, group * MEMBERS + m) for group in (0, 1) for step in (99, 0, 20) for m in range(MEMBERS)]
    gallery = [(step, request) for request in range(6) for step in (99, *STEPS)]
    for picture, (step, request) in zip(result, grids + gallery, strict=True):
        np.testing.assert_array_equal(picture, pixels(step, request))
    assert page.texts("p", "label")[:3] == ["Input", "Before step 0", "After step 20"]
    assert page.attributes("img")[0]["alt"] == f"input: {PROMPTS[0]}"


def test_the_source_of_an_edit_is_next_to_its_result(tmp_path: Path) -> None:
    source, edited = (Image.fromarray(pixels(step, 0)) for step in (99, 20))
    made = Sample(Prompt("mirror it", images=(source,)), 0, 0, image=edited)
    zero = torch.zeros(1, 0)
    scores = Scores(names=(), value_BR=zero, valid_BR=zero.bool(), weight_R=torch.ones(0))
    folder = write_samples(tmp_path / "samples/step-000000", [made], scores)
    page = render(tmp_path)
    result = [np.asarray(decoded(attrs["src"]).convert("L")) for attrs in page.attributes("img")]
    np.testing.assert_array_equal(result, [pixels(99, 0), pixels(20, 0)])
    assert page.texts("p", "label")[0] == "Input"
    assert sorted(file.name for file in folder.iterdir()) == ["0000.png", "samples.jsonl"]
