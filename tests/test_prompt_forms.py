"""Rows in the forms of TRL, verl, EasyR1 and ms-swift, recognized automatically."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image
from trl.data_utils import prepare_multimodal_messages

from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt
from tests.policies.tiny_language import policy_of

IMAGE, VIDEO = {"type": "image"}, {"type": "video"}


def words(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def picture(colour: int) -> Image.Image:
    return Image.new("RGB", (2, 2), (colour, colour, colour))


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    picture(colour).save(buffer, format="PNG")
    return buffer.getvalue()


def colours(prompt: Prompt) -> list[int]:
    return [load_image(image).getpixel((0, 0))[0] for image in prompt.images]  # pyrefly: ignore[bad-index, unsupported-operation]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Images 1.png to 4.png of those colors, and a video that is never opened."""
    for colour in range(1, 5):
        picture(colour).save(tmp_path / f"{colour}.png")
    (tmp_path / "clip.mp4").touch()
    return tmp_path


def read(folder: Path, *rows: dict[str, Any]) -> list[Prompt]:
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return load_prompts(folder / "rows.jsonl")


def read_row(folder: Path, **row: Any) -> Prompt:
    (prompt,) = read(folder, row)
    return prompt


class TestTrl:
    TURNS = (
        [user("what is it?")],
        [
            {"role": "system", "content": "be brief"},
            user("first?"),
            {"role": "assistant", "content": "1"},
            user("and?"),
        ],
        [user([words("left"), IMAGE, words("right"), IMAGE, words("same?")])],
        [user([IMAGE, words("a")]), {"role": "assistant", "content": [words("b")]}, user([IMAGE, words("c")])],
    )

    @pytest.mark.parametrize("turns", TURNS)
    def test_media_are_at_the_positions_of_trl(self, turns: list[dict[str, Any]]):
        """Every part of TRL's own messages, in order, with the image it shows."""
        images = [picture(3), picture(4)]
        (prompt,) = load_prompts(Dataset.from_dict({"prompt": [turns], "images": [images], "answer": ["x"]}))
        expected = prepare_multimodal_messages(turns, images)
        parts = [part for turn in expected for part in turn["content"]]
        assert prompt.messages is not None
        ours = [
            part
            for turn in prompt.messages
            for part in (turn["content"] if isinstance(turn["content"], list) else [words(turn["content"])])
        ]
        assert [turn["role"] for turn in prompt.messages] == [turn["role"] for turn in expected]
        assert [{k: v for k, v in part.items() if k != "image"} for part in parts] == ours
        assert colours(prompt) == [part["image"].getpixel((0, 0))[0] for part in parts if "image" in part] == [3, 4]
        assert prompt.columns == {"answer": "x"}

    def test_a_text_and_its_image(self, folder: Path):
        prompt = read_row(folder, prompt="how many?", image="2.png", solution="5")
        assert (prompt.text, prompt.messages, prompt.columns) == ("how many?", None, {"solution": "5"})
        assert prompt.images == (str(folder / "2.png"),)

    def test_parts_that_carry_their_image(self, folder: Path):
        url = "data:image/png;base64," + base64.b64encode(png(9)).decode()
        parts = [
            {"type": "image", "image": "3.png"},
            IMAGE,
            {"type": "image", "image": {"bytes": None, "path": "4.png"}},
            {"type": "image_url", "image_url": {"url": url, "detail": "low"}},
            {"type": "image_url", "image_url": (folder / "2.png").as_uri()},
            {"type": "image", "path": "1.png", "max_pixels": 100},
            words("which?"),
        ]
        prompt = read_row(folder, prompt=[user(parts)], images=["1.png"])
        assert colours(prompt) == [3, 1, 4, 9, 2, 1]
        assert prompt.messages == [user([*[IMAGE] * 5, {**IMAGE, "max_pixels": 100}, words("which?")])]
        assert prompt.text == "which?"

    def test_images_nested_in_the_messages_of_a_dataset(self):
        part = {"type": Value("string"), "text": Value("string"), "image": ImageFeature()}
        features = Features({"prompt": List({"role": Value("string"), "content": List(part)})})
        content = [{"type": "image", "image": picture(6)}, {"type": "text", "text": "what?"}]
        dataset = Dataset.from_dict({"prompt": [[user(content)]]}, features=features)
        (prompt,) = load_prompts(dataset)
        assert prompt.messages == [user([IMAGE, words("what?")])]  # without the None that arrow fills in
        assert colours(prompt) == [6]

    def test_tool_calls_need_no_content(self, folder: Path):
        call = {"role": "assistant", "content": None, "tool_calls": [{"name": "zoom"}]}
        prompt = read_row(folder, prompt=[user("look"), call, {"role": "tool", "content": "a cat"}])
        assert prompt.messages == [user("look"), call, {"role": "tool", "content": "a cat"}]


class TestVerl:
    def test_placeholders_are_replaced_by_parts(self, folder: Path):
        row = {
            "data_source": "geo3k",
            "prompt": [user("<image>\nIs it like <image>?")],
            "images": [{"bytes": None, "path": "1.png"}, {"image": "file://" + str(folder / "2.png")}],
            "videos": None,
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": 3},
        }
        prompt = read_row(folder, **row)
        assert prompt.messages == [user([IMAGE, words("\nIs it like "), IMAGE, words("?")])]
        assert prompt.text == "Is it like ?"
        assert colours(prompt) == [1, 2]
        expected = {name: row[name] for name in ("data_source", "reward_model", "extra_info")}
        assert prompt.columns == {**expected, "ground_truth": "42", "answer": "42"}

    def test_the_nested_ground_truth_hides_no_column(self, folder: Path):
        prompt = read_row(folder, prompt="p", reward_model={"ground_truth": "42"}, answer="mine", ground_truth=None)
        assert (prompt.columns["answer"], prompt.columns["ground_truth"]) == ("mine", "42")
        assert "answer" not in read_row(folder, prompt="p", reward_model={"style": "model"}).columns

    def test_images_and_videos_each_in_their_place(self, folder: Path):
        videos = [{"video": "clip.mp4", "fps": 2.0}, ["3.png", "4.png"]]
        prompt = read_row(folder, prompt="<video>before <image>, after<video>", images=["1.png"], videos=videos)
        parts = [{**VIDEO, "fps": 2.0}, words("before "), IMAGE, words(", after"), VIDEO]
        assert prompt.messages == [user(parts)]
        assert prompt.videos == (str(folder / "clip.mp4"), (str(folder / "3.png"), str(folder / "4.png")))

    def test_easyr1_problem_and_answer(self):
        features = Features({"images": List(ImageFeature()), "problem": Value("string"), "answer": Value("string")})
        rows = {"images": [[picture(8)]], "problem": ["<image>Find x."], "answer": ["12"]}
        (prompt,) = load_prompts(Dataset.from_dict(rows, features=features))
        assert prompt.messages == [user([IMAGE, words("Find x.")])]
        assert (prompt.text, colours(prompt)) == ("Find x.", [8])
        assert prompt.columns == {"problem": "<image>Find x.", "answer": "12"}

    def test_a_tag_in_a_row_without_media_is_text(self, folder: Path):
        prompt = read_row(folder, prompt="explain the <image> element")
        assert (prompt.text, prompt.messages) == ("explain the <image> element", None)


class TestSwift:
    def test_messages_end_in_the_reference(self, folder: Path):
        turns = [
            {"role": "system", "content": "be brief"},
            user("<image>what is in it, <video>and here?"),
            {"role": "assistant", "content": "a cat"},
        ]
        prompt = read_row(folder, messages=turns, images=["1.png"], videos=["clip.mp4"])
        assert prompt.messages == [turns[0], user([IMAGE, words("what is in it, "), VIDEO, words("and here?")])]
        assert prompt.columns == {"solution": "a cat"}
        assert (colours(prompt), prompt.videos) == ([1], (str(folder / "clip.mp4"),))

    def test_the_reference_hides_no_solution(self, folder: Path):
        turns = [user("1 + 1?"), {"role": "assistant", "content": "it is 2"}]
        assert read_row(folder, messages=turns, solution="2").columns == {"solution": "2"}
        assert read_row(folder, messages=turns[:1]).columns == {}

    def test_bytes_and_base64(self, folder: Path):
        encoded = base64.b64encode(png(7)).decode()
        rows = [{"messages": [user("<image><image>?")], "images": [encoded, "2.png"]}]
        assert colours(read(folder, *rows)[0]) == [7, 2]
        table = pa.Table.from_pylist([{"messages": [user("<image>?")], "images": [{"bytes": png(5), "path": "x"}]}])
        pyarrow.parquet.write_table(table, folder / "rows.parquet")
        (prompt,) = load_prompts(folder / "rows.parquet")
        assert prompt.messages == [user([IMAGE, words("?")])]
        assert colours(prompt) == [5]

    def test_named_objects(self, folder: Path):
        objects = {"ref": ["sheep", "dog"], "bbox": [[1, 2, 3, 4]]}
        turns = [user("<image>Find the <ref-object>"), {"role": "assistant", "content": "<bbox>, no <ref-object>"}]
        prompt = read_row(folder, messages=turns, images=["1.png"], objects=objects)
        assert prompt.text == "Find the sheep"
        assert prompt.columns == {"objects": objects, "solution": "<bbox>, no dog"}

    def test_tags_without_media_raise(self, folder: Path):
        with pytest.raises(DataError, match="line 1: the messages hold 1 image placeholders and the row 0 images"):
            read(folder, {"messages": [user("<image>what?")]})


class TestImages:
    def test_stored_images_are_reopened_and_pickled_without_their_dataset(self):
        dataset = Dataset.from_dict({"prompt": ["p"] * 50, "images": [[picture(n), picture(n + 1)] for n in range(50)]})
        prompt = load_prompts(dataset)[7]
        assert prompt.images[0] is not prompt.images[0]
        assert [image.size for image in prompt.images[1:]] == [(2, 2)]
        pickled = pickle.dumps(prompt)
        assert len(pickled) < 1000
        assert colours(pickle.loads(pickled)) == colours(prompt) == [7, 8]

    def test_orientation(self, tmp_path: Path):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.new("RGB", (4, 2)).save(tmp_path / "turned.jpg", exif=exif)
        features = Features({"prompt": Value("string"), "image": ImageFeature()})
        rows = {"prompt": ["p"], "image": [{"bytes": (tmp_path / "turned.jpg").read_bytes(), "path": None}]}
        (stored,) = load_prompts(Dataset.from_dict(rows, features=features))
        assert stored.images[0].size == (2, 4)

    def test_a_dataset_of_paths(self, folder: Path):
        rows = {"prompt": ["p", "q"], "image": [str(folder / "1.png"), None]}
        features = Features({"prompt": Value("string"), "image": ImageFeature()})
        first, two = load_prompts(Dataset.from_dict(rows, features=features))
        assert (first.images, two.images) == ((str(folder / "1.png"),), ())


class TestErrors:
    @pytest.mark.parametrize(
        ("row", "texts"),
        [
            (
                {"prompt": "<image> and <image>", "images": ["1.png"]},
                r"line 1: the messages hold 2 image placeholders and the row 1 images for them; write one <image> tag",
            ),
            ({"prompt": "<image>what?", "images": []}, "hold 1 image placeholders and the row 0 images"),
            ({"prompt": "<video>what?", "image": "1.png"}, "hold 1 video placeholders and the row 0 videos"),
            ({"prompt": [user([IMAGE, words("a")])], "images": ["1.png", "2.png"]}, "hold 1 image .* the row 2 images"),
            ({"prompt": [user([IMAGE, words("a")])]}, "hold 1 image placeholders and the row 0 images"),
            (
                {"prompt": [user([{"type": "file", "file": "a.wav"}])]},
                r"user turn is neither .*\(text, image, .*file",
            ),
            ({"messages": [user("<audio>what?")]}, "hold 1 audio placeholders and the row 0 audios"),
            ({"prompt": [user([{"type": "audio", "audio": "a.wav"}])]}, r"line 1: .*a.wav does not exist"),
            ({"prompt": "p", "audio": "1.png"}, r"line 1: .*1.png cannot be opened as audio"),
            ({"prompt": "p", "audio": 3}, "line 1: the audio must be a path or have an array and a sampling_rate, got"),
            ({"prompt": "p", "audio": {"array": [0.5], "sampling_rate": 0}}, "line 1: Audio.sampling_rate must be an"),
            ({"prompt": [user(3)]}, "content must be a text or a list of parts, got 3"),
            (
                {"prompt": "p", "images": [{"bytes": None, "path": None}]},
                "line 1: the image is a mapping .* nothing",
            ),
            ({"prompt": "p", "image": 3}, "line 1: the image must be a path, got int"),
            ({"prompt": "p", "image": "clip.mp4"}, r"line 1: .*clip.mp4 cannot be opened as an image \(Unidentified"),
            ({"prompt": "p", "image": "5.png"}, r"line 1: .*5.png does not exist; nearest there"),
            ({"prompt": "p", "image": "data:image/png;base64,AAA"}, "line 1: the image data:.* is declared as base64"),
            (
                {"messages": [user("a <bbox>")], "objects": {"ref": []}},
                "holds a <bbox> tag, .* write the coordinates out",
            ),
            ({"messages": [user("a <ref-object>")], "objects": {"ref": []}}, "1 <ref-object> tags and objects.ref 0"),
        ],
    )
    def test_invalid_rows_raise(self, folder: Path, row: dict[str, Any], texts: str):
        with pytest.raises(DataError, match=texts):
            read(folder, row)

    def test_bytes_that_are_no_image_name_their_row(self):
        features = Features({"prompt": Value("string"), "image": ImageFeature()})
        rows = {"prompt": ["p", "q"], "image": [{"bytes": png(1)}, {"bytes": b"nothing"}]}
        with pytest.raises(DataError, match=r"the dataset, row 1: the image .* cannot be opened as an image"):
            load_prompts(Dataset.from_dict(rows, features=features))

    def test_bytes_that_are_no_video(self):
        dataset = Dataset.from_dict({"prompt": ["p"], "videos": [[{"bytes": b"x", "path": None}]]})
        with pytest.raises(DataError, match=r"row 0.*the video of 1 bytes cannot be opened as a video"):
            load_prompts(dataset)


def test_a_question_is_the_same_to_a_model_in_every_form(folder: Path):
    """Image and text of every dataset reach a real processor and model alike; another image does not."""
    rows = [
        {"prompt": "what is it?", "image": "4.png"},
        {"prompt": [user("what is it?")], "images": ["4.png"]},
        {"prompt": [user("<image>what is it?")], "images": [{"bytes": None, "path": "4.png"}]},
        {"problem": "<image>what is it?", "images": ["4.png"]},
        {"messages": [user("<image>what is it?"), {"role": "assistant", "content": "grey"}], "images": ["4.png"]},
        {"prompt": [user([{"type": "image_url", "image_url": {"url": "4.png"}}, words("what is it?")])]},
        {"prompt": "what is it?", "image": "far.png"},
    ]
    Image.new("RGB", (16, 16), (250, 0, 0)).save(folder / "far.png")
    Image.new("RGB", (16, 16), (4, 4, 4)).save(folder / "4.png")
    policy = policy_of("qwen2.5-vl")
    rollouts = [policy.rollout([prompt], group_size=3, seed=5) for prompt in read(folder, *rows)]
    texts = [[sample.text for sample in rollout.samples] for rollout in rollouts]
    assert texts[:6] == [texts[0]] * 6
    assert [rollout.old_logprob_BT.tolist() for rollout in rollouts[:6]] == [rollouts[0].old_logprob_BT.tolist()] * 6
    assert rollouts[6].old_logprob_BT.tolist() != rollouts[0].old_logprob_BT.tolist()
