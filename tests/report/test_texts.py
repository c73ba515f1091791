"""Texts before and after, and training groups with the advantage of each text."""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.data import clips
from mmgrpo.environment import Turn
from mmgrpo.runs.sample_files import write_samples
from mmgrpo.types import Prompt, Sample, Scores, Video
from tests.audio_signals import tone
from tests.report.folder import sample, write_lines
from tests.report.page import Page, decoded, render

HOSTILE = "<img src=x onerror=alert(1)>&lt;b&gt;\u202e</p><script>alert(2)</script>"
G = 4


def pixels(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def write_texts(run: Path, name: str, texts: list[list[str]], advantages: list[list[float]] | None = None) -> None:
    """Groups of texts; request i shows image i, and a text is right if it holds a 7."""
    prompts = [Prompt(f"which {i}? {HOSTILE}", images=(Image.fromarray(pixels(i)),), columns={"answer": 7})
               for i in range(len(texts))]  # fmt: skip
    samples = [
        Sample(prompt, group, member, text=text, tokens=list(range(len(text))), finished=not text.endswith("..."))
        for group, (prompt, members) in enumerate(zip(prompts, texts, strict=True))
        for member, text in enumerate(members)
    ]
    right = torch.tensor([[float("7" in (s.text or "")), 0.5] for s in samples])
    scores = Scores(names=("right", "form"), weight_R=torch.ones(2), value_BR=right, valid_BR=right >= 0)
    advantage_B = None if advantages is None else torch.tensor(advantages).flatten()
    write_samples(run / "samples" / name, samples, scores, advantage_B=advantage_B)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """A run of three evaluated steps and of two training steps."""
    run = tmp_path / "texts"
    for step, answer in ((0, "2"), (10, "3"), (20, "7")):
        write_texts(run, f"step-{step:06d}", [[answer], [HOSTILE if step else ""]])
    write_texts(run, "train-000001", [["1", "7", "77", "9..."], ["a", "b", "c", "d"]], [[-1, 0.5, 1.5, -1], [0.0] * G])
    write_texts(run, "train-000020", [["7"] * G, ["7", "1", "1", "1"]], [[0.0] * G, [1.5, -0.5, -0.5, -0.5]])
    return run


def by_class(page: Page, css: str) -> list[str]:
    return page.texts("div", css)


def test_before_and_after_with_input_images(written: Path) -> None:
    page = render(written)
    answers = by_class(page, "answer")
    assert answers[1:4] == ["2 ✗ right 1 token", "7 ✓ right 1 token", "nothing ✗ right 0 tokens"]
    turned = "right: of 2, 1 became right, 0 became wrong, 0 right and 1 wrong at both steps."
    same = "The same for every request: form 0.500 → 0.500"
    assert page.texts("p", "lead")[0].endswith(f"never by reward. {turned} {same}")
    marks = [text for tag, attrs, text in page.elements if "verdict" in attrs.get("class", "")]
    assert ["".join(text).strip() for text in marks[:4]] == ["✗ right", "✓ right", "✗ right", "✗ right"]
    assert by_class(page, "row")[0] == f"which 0? {HOSTILE} reference: 7 {answers[1]} {answers[2]}"
    labels = [attrs["data-label"] for attrs in page.attributes("div") if attrs.get("class") == "answer"]
    assert labels == ["before, step 0", "after, step 20"] * 2
    images = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    # two requests before and after, then two groups in each of two steps: image 0 and image 1 each time
    assert len(images) == 6
    for index, picture in enumerate(images):
        np.testing.assert_array_equal(picture, pixels(index % 2))


def test_groups_are_ranked_with_their_advantages(written: Path) -> None:
    page = render(written)
    assert [text for text in page.texts("h3") if text.startswith("Step")] == ["Step 1", "Step 20"]
    members = [
        (attrs["class"].split()[1:], " ".join("".join(text).split()))
        for tag, attrs, text in page.elements
        if tag == "div" and attrs.get("class", "").split()[:1] == ["member"]
    ]
    assert members[:G] == [
        (["up"], "+1.50 77 ✓ right form 0.500 2 tokens"),
        (["up"], "+0.50 7 ✓ right form 0.500 1 token"),
        (["down"], "\u22121.00 1 ✗ right form 0.500 1 token"),
        (["down"], "\u22121.00 9... ✗ right form 0.500 4 tokens cut off"),
    ]
    assert [side for side, _ in members[G : 3 * G]] == [[]] * 2 * G
    assert [text.split()[0] for _, text in members[3 * G :]] == ["+1.50"] + ["\u22120.50"] * 3
    assert page.texts("p", "dead") == ["Every advantage is 0: this group has no effect."] * 2


def test_generated_texts_are_escaped(written: Path) -> None:
    page = render(written)
    assert len(page.texts("script")) == 1
    assert "alert(" not in page.texts("script")[0]
    assert not [attrs for attrs in page.attributes("img") if "onerror" in attrs]
    assert HOSTILE in page.texts("p", "wrote")
    assert any(HOSTILE in text for text in page.texts("p", "prompt"))


def test_requests_that_show_something_else_are_left_out(written: Path) -> None:
    path = written / "samples/step-000020/samples.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[0]["images"] = rows[1]["images"]
    write_lines(path, rows)
    assert len(by_class(render(written), "row")) == 1


def test_missing_images_leave_an_empty_cell(written: Path) -> None:
    for path in (written / "samples/images").iterdir():
        path.unlink()
    page = render(written)
    assert page.attributes("img") == []
    holes = [attrs for attrs in page.attributes("span") if attrs.get("class") == "hole"]
    assert len(holes) == 6


def test_steps_and_members_are_limited_by_position(tmp_path: Path) -> None:
    for step in range(1, 12):
        write_texts(tmp_path, f"train-{step:06d}", [[str(n) for n in range(31)]], [list(map(float, range(31)))])
    page = render(tmp_path)
    # of 11 steps the 4 nearest to 10 k / 3 = 0, 3.3, 6.7, 10; of 31 ranked answers every other one, 30 first
    assert [text for text in page.texts("h3") if text.startswith("Step")] == [f"Step {n}" for n in (1, 4, 8, 11)]
    assert "4 of 11 saved steps" in page.texts("p", "lead")[0]
    assert page.texts("p", "wrote")[:16] == [str(n) for n in range(30, -1, -2)]
    assert "16 of 31 answers, evenly spaced." in page.texts("p", "sub")


def test_of_many_requests_the_changed_ones_are_first(tmp_path: Path) -> None:
    before, after = [[str(0)]] * 60, [["0"]] * 60
    after[50], before[41] = ["7"], ["7"]  # one became right, one became wrong
    write_texts(tmp_path, "step-000000", before)
    write_texts(tmp_path, "step-000010", after)
    page = render(tmp_path)
    questions = [text.split("?")[0] for text in page.texts("p", "prompt")]
    assert questions[:2] == ["which 50", "which 41"]
    # of the 58 others, 18 evenly spaced: those at the places round(57 k / 17)
    others = [n for n in range(60) if n not in (41, 50)]
    assert questions[2:] == [f"which {others[round(57 * k / 17)]}" for k in range(18)]
    assert (
        "20 of 60 requests: first the 2 whose scores changed most, up or down, then 18 chosen by position."
        in " ".join(page.texts("p", "lead"))
    )


def test_a_conversation_is_displayed_turn_by_turn(tmp_path: Path) -> None:
    sample = Sample(
        Prompt("17 + 25?"), 0, 0, text="17+25=4242", tokens=[1, 2, 3], turn_starts=[0, 2], turn_ends=[1, 3],
        turn_texts=["17+25=", "42"], turn_rewards=[None, None], turn_keys=["17 + 25?", f"42 {HOSTILE}"],
    )  # fmt: skip
    unit = torch.ones(1, 1)
    write_samples(
        tmp_path / "samples/step-000000",
        [sample],
        Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0),
    )
    page = render(tmp_path)
    assert page.texts("p", "wrote") == ["17+25=", "42"]
    assert page.texts("p", "told") == [f"42 {HOSTILE}"]  # the prompt is above


def test_turns_of_roles_have_the_name_of_their_role(tmp_path: Path) -> None:
    turns = [
        Sample(Prompt("17 + 25?"), 0, 0, text="Carry.", tokens=[1], prompt_template="coach"),
        Sample(Prompt("17 + 25?"), 1, 0, text="42", tokens=[2], prompt_template="solver", after=((0, 0),)),
    ]
    unit = torch.ones(2, 1)
    write_samples(
        tmp_path / "samples/step-000000",
        turns,
        Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0),
    )
    lines = [json.loads(line) for line in (tmp_path / "samples/step-000000/samples.jsonl").open()]
    assert [(line["prompt_template"], line.get("after")) for line in lines] == [("coach", None), ("solver", [[0, 0]])]
    rows = by_class(render(tmp_path), "row")
    assert [row.split("?")[0] for row in rows] == ["coach: 17 + 25", "solver: 17 + 25"]


@pytest.mark.parametrize(
    ("openings", "displayed"),
    [(("page 3", "page 3"), ["page 3"]), (("page 3", "page 4"), []), (("go", "go"), []), ((None, None), [])],
)
def test_the_request_displays_the_shared_opening_turn(
    tmp_path: Path, openings: tuple[str | None, str | None], displayed: list[str]
) -> None:
    unit = torch.ones(2, 1)
    samples = [
        Sample(
            Prompt("go"), 0, member, text="click", tokens=[1], turn_starts=[0], turn_ends=[1], turn_texts=["click"],
            turn_keys=[opening],
        )
        for member, opening in enumerate(openings)
    ]  # fmt: skip
    scores = Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0)
    write_samples(tmp_path / "samples/train-000001", samples, scores, advantage_B=torch.tensor([1.0, -1.0]))
    assert render(tmp_path).texts("p", "told") == displayed  # no reply follows; "go" is the prompt


def conversation(member: int, num_images: int = 1) -> Sample:
    """Two turns; the reply to the first shows images, the reply to the last is not read by the policy."""
    images = [Image.fromarray(pixels(10 * member + number)) for number in range(num_images)]
    replies = (
        Turn(text=f"seen {HOSTILE}", images=images, videos=["clip.mp4"], reward=0.25),
        Turn(text="over", done=True),
    )
    return Sample(
        Prompt("which?", images=(Image.fromarray(pixels(99)),)), 0, member, text="zoom 7", tokens=[1, 2, 3],
        turn_starts=[0, 2], turn_ends=[1, 3], turn_texts=["zoom", f"it is {member}"], turn_rewards=[0.25, None],
        turn_keys=["which?", None], turn_replies=replies,
    )  # fmt: skip


def test_images_of_replies_are_embedded_between_the_turns(tmp_path: Path) -> None:
    unit = torch.ones(2, 1)
    scores = Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0)
    samples = [conversation(0), conversation(1, num_images=7)]
    write_samples(tmp_path / "samples/train-000001", samples, scores, advantage_B=torch.tensor([1.0, -1.0]))
    lines = [json.loads(line) for line in (tmp_path / "samples/train-000001/samples.jsonl").read_text().splitlines()]
    first, last = lines[0]["turns"]
    assert (first["reward"], first["reply"]["text"], first["reply"]["num_videos"]) == (0.25, f"seen {HOSTILE}", 1)
    assert first["reply"]["image_sizes"] == [[8, 8]]
    assert lines[0]["num_tokens"] == 2  # those of the turns
    unread = {"text": "over", "images": [], "image_sizes": [], "num_videos": 0, "unread": True}
    assert last == {"state": None, "text": "it is 0", "reply": unread}
    page = render(tmp_path)
    first, second = by_class(page, "member ")
    assert (
        f"zoom reward of the turn 0.250 1 video, not saved seen {HOSTILE} it is 0 over The policy does not read this"
        in first
    )
    assert "and 1 more 1 video" in second
    embedded = [np.asarray(decoded(attrs["src"])) for attrs in page.attributes("img")]
    assert len(embedded) == 1 + 1 + 6  # of the request, of each answer, of which at most six
    for image, seed in zip(embedded, (99, 0, *range(10, 16)), strict=True):
        np.testing.assert_array_equal(image, pixels(seed))
    for path in (tmp_path / "samples/images").iterdir():
        path.unlink()
    assert len([attrs for attrs in render(tmp_path).attributes("span") if attrs.get("class") == "hole"]) == 8


def test_videos_and_audio_of_requests_and_replies_are_played(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 6), color) for color in ("red", "lime", "blue")]
    file = clips.encoded([Image.new("RGB", (8, 6), "white")] * 4, 4.0)
    replies = (Turn(text="look", videos=[Video(frames, 2.0), file, "none.mp4"], audios=[tone()]), Turn(done=True))
    spoken = replace(
        conversation(0), prompt=Prompt("which?", videos=[frames], audios=[tone(880)]), turn_replies=replies
    )
    unit = torch.ones(1, 1)
    scores = Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0)
    write_samples(tmp_path / "samples/step-000000", [spoken], scores)
    page = render(tmp_path)
    played = [b64decode(attrs["src"].partition(",")[2]) for attrs in page.attributes("video")]
    request, reply, white = [clips.decoded(data, max_pixels=2**20) for data in played]
    assert [len(frames) for frames, _ in (request, reply, white)] == [3, 3, 4]
    assert [rate for _, rate in (request, reply, white)] == [8.0, 2.0, 4.0]
    assert np.asarray(reply[0][1]).mean(axis=(0, 1)).round(-1).tolist() == [0, 250, 0]
    assert len(page.attributes("audio")) == 2
    assert "1 video, not saved" in page.texts("p", "sub")


@pytest.mark.parametrize("wrong", [{"reply": 3}, {"reply": {"images": 3, "text": []}}, {"text": 7, "reward": "x"}, 5])
def test_turns_of_another_make_still_render(tmp_path: Path, wrong: Any) -> None:
    unit = torch.ones(1, 1)
    scores = Scores(names=("right",), weight_R=unit[0], value_BR=unit, valid_BR=unit > 0)
    folder = write_samples(tmp_path / "samples/step-000000", [conversation(0)], scores)
    (row,) = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    row["turns"] = [row["turns"][0] | wrong if isinstance(wrong, dict) else wrong, row["turns"][1]]
    write_lines(folder / "samples.jsonl", [row])
    assert render(tmp_path).texts("p", "wrote")[-1] == "it is 0"


def test_long_texts_keep_their_end(run: Path) -> None:
    text = "start " + "x" * 1600 + " the end"
    for step in (0, 10, 20):
        rows = [sample(None, r, None, "short" if r else text) for r in range(2)]
        path = run / f"samples/step-{step:06d}/samples.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    page = render(run)
    # of 1614 characters the first 1000 and the last 500
    cut = f"start {'x' * 994} … (114 characters left out) … {'x' * 492} the end"
    assert page.texts("p", "wrote") == [cut, cut, "short", "short"]
    assert "unreadable" not in " ".join(page.texts("footer"))


@pytest.mark.parametrize(
    "wrong", [{"images": 3}, {"images": [3]}, {"advantage": "x"}, {"num_tokens": None}, {"reference": []}]
)
def test_lines_of_another_make_still_render(written: Path, wrong: dict[str, Any]) -> None:
    for path in written.glob("samples/*/samples.jsonl"):
        write_lines(path, [{**json.loads(line), **wrong} for line in path.read_text().splitlines()])
    assert len(by_class(render(written), "row")) == 2
