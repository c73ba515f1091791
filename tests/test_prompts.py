from __future__ import annotations

import io
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from datasets import Image as ImageFeature
from PIL import Image

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.samplers import in_order
from mmgrpo.data.stream import PromptStream
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.types import Prompt

FOUR = [Prompt("one"), Prompt("two"), Prompt("three"), Prompt("four")]
NOT_PROMPTS = ["a", "b"]


def four_prompts() -> list[Prompt]:
    return FOUR


def write(path: Path, *rows: Any) -> Path:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows), encoding="utf-8")
    return path


def png(colour: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (2, 2), colour).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.fixture(autouse=True)
def _separate_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)


class TestFiles:
    def test_text_is_one_prompt_per_line(self, tmp_path: Path):
        path = write(tmp_path / "train.txt", "\ufeffa cat", "", "  a dog  ", "a \u2028 line separator", "")
        assert [prompt.text for prompt in load_prompts(path)] == ["a cat", "a dog", "a \u2028 line separator"]
        assert [prompt.text for prompt in load_prompts(path, limit=2)] == ["a cat", "a dog"]

    def test_geneval_metadata(self, tmp_path: Path):
        include = [{"class": "bear", "count": 2}]
        row = {"tag": "counting", "include": include, "exclude": [], "prompt": "a photo of two bears"}
        write(tmp_path / "train_metadata.jsonl", row, "", {"tag": "color", "prompt": "a red bus"})
        expected = Prompt("a photo of two bears", columns={"tag": "counting", "include": include, "exclude": []})
        assert load_prompts(tmp_path / "train_metadata.jsonl", limit=1) == [expected]
        assert load_prompts(tmp_path, split="train") == [expected, Prompt("a red bus", columns={"tag": "color"})]

    def test_json_list_with_another_prompt_column(self, tmp_path: Path):
        path = write(tmp_path / "rows.json", [{"caption": "a cat", "negative_prompt": "blurry", "prompt": "kept"}])
        assert load_prompts(path, columns={"prompt": "caption"}) == [
            Prompt("a cat", negative="blurry", columns={"prompt": "kept"})
        ]

    def test_chat_messages_keep_the_last_user_text(self, tmp_path: Path):
        question = [{"type": "image"}, {"type": "text", "text": "how many?"}]
        turns = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hello"},
            {"role": "user", "content": question},
            {"role": "assistant", "content": "<answer>"},
        ]
        Image.new("L", (2, 2)).save(tmp_path / "a.png")
        row = {"prompt": turns, "image": "a.png", "solution": "3"}
        (prompt,) = load_prompts(write(tmp_path / "rows.jsonl", row))
        assert (prompt.text, prompt.messages, prompt.columns) == ("how many?", turns, {"solution": "3"})

    def test_media_paths_count_from_the_file(self, tmp_path: Path):
        for name in ("a.png", "b.png"):
            Image.new("L", (2, 2)).save(tmp_path / name)
        (tmp_path / "clip.mp4").touch()
        rows = [
            {"prompt": "p", "image": "a.png", "video": "clip.mp4"},
            {"prompt": "p", "images": [str(tmp_path / "a.png"), "b.png"], "videos": ["clip.mp4", ["a.png", "b.png"]]},
            {"prompt": "p", "image": (tmp_path / "a.png").as_uri(), "video": ["a.png", "b.png"]},
            {"prompt": "p", "image": None},
        ]
        first, two, three, four = load_prompts(write(tmp_path / "rows.jsonl", *rows))
        a, b, clip = (str(tmp_path / name) for name in ("a.png", "b.png", "clip.mp4"))
        assert (first.images, first.videos) == ((a,), (clip,))
        assert (two.images, two.videos) == ((a, b), (clip, (a, b)))
        assert (three.images, three.videos) == ((a,), ((a, b),))
        assert (four.images, four.videos, four.columns) == ((), (), {})

    def test_parquet_of_any_tool(self, tmp_path: Path):
        rows = [{"prompt": "p", "image": {"bytes": png(7), "path": None}, "answer": 3}]
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "rows.parquet")
        (prompt,) = load_prompts(tmp_path / "rows.parquet")
        assert prompt.columns == {"answer": 3}
        assert [image.getpixel((0, 0)) for image in prompt.images] == [7]


class TestDatasets:
    @pytest.fixture
    def dataset(self) -> Dataset:
        features = Features({"prompt": Value("string"), "images": List(ImageFeature()), "answer": Value("int64")})
        rows = {
            "prompt": ["both", "none"],
            "images": [[{"bytes": png(7)}, {"bytes": png(9)}], []],
            "answer": [1, 2],
        }
        return Dataset.from_dict(rows, features=features)

    def check(self, prompts: list[Prompt]) -> None:
        assert [(prompt.text, prompt.columns) for prompt in prompts] == [
            ("both", {"answer": 1}),
            ("none", {"answer": 2}),
        ]
        assert [image.getpixel((0, 0)) for image in prompts[0].images] == [7, 9]
        assert prompts[0].images[1].getpixel((0, 0)) == 9
        assert [len(prompt.images) for prompt in prompts] == [2, 0]
        assert not prompts[1].images

    def test_saved_to_disk(self, tmp_path: Path, dataset: Dataset):
        dataset.save_to_disk(tmp_path / "saved")
        self.check(load_prompts(tmp_path / "saved"))

    def test_parquet_decodes_its_images(self, tmp_path: Path, dataset: Dataset):
        dataset.to_parquet(tmp_path / "rows.parquet")
        self.check(load_prompts(tmp_path / "rows.parquet"))

    def test_local_dataset_folder(self, tmp_path: Path, dataset: Dataset):
        dataset.to_parquet(tmp_path / "train-00000-of-00001.parquet")
        self.check(load_prompts(tmp_path))

    def test_images_are_decoded_on_each_access(self, tmp_path: Path, dataset: Dataset):
        dataset.save_to_disk(tmp_path / "saved")
        images = load_prompts(tmp_path / "saved")[0].images
        assert images[0] is not images[0]

    def test_several_splits_need_a_name(self, tmp_path: Path, dataset: Dataset):
        DatasetDict({"train": dataset, "test": dataset.select([1])}).save_to_disk(tmp_path / "saved")  # pyrefly: ignore[no-matching-overload]
        assert [prompt.text for prompt in load_prompts(tmp_path / "saved", split="test")] == ["none"]
        with pytest.raises(DataError, match="has the splits train, test; got split=None"):
            load_prompts(tmp_path / "saved")
        with pytest.raises(DataError, match="has the splits train, test; got split='dev'"):
            load_prompts(tmp_path / "saved", split="dev")

    def test_a_missing_prompt_column_raises_with_the_existing_ones(self, tmp_path: Path, dataset: Dataset):
        dataset.save_to_disk(tmp_path / "saved")
        with pytest.raises(
            DataError, match=r"no column 'text'; set prompts.columns: \{prompt: COLUMN\} to one of \['prompt', 'images'"
        ):
            load_prompts(tmp_path / "saved", columns={"prompt": "text"})

    def test_a_dataset_that_cannot_be_had(self):
        with pytest.raises(
            DataError, match=r"as a dataset 'someone/nothing-here' cannot be loaded: .*nor does its folder"
        ):
            load_prompts("someone/nothing-here")


class TestPython:
    def test_function_or_list(self):
        assert load_prompts(f"python:{__name__}:four_prompts", limit=3) == FOUR[:3]
        assert load_prompts(f"python:{__name__}:FOUR") == FOUR

    @pytest.mark.parametrize("source", ["python:no_such_module:x", "python:json:no_such", "python:json"])
    def test_missing_sources_raise(self, source: str):
        with pytest.raises(ConfigError, match=source.removeprefix("python:")):
            load_prompts(source)

    def test_empty_sources_raise(self):
        with pytest.raises(DataError, match="must give a list of Prompt, got float"):
            load_prompts("python:math:pi")
        with pytest.raises(DataError, match="its item 0 is a str"):
            load_prompts(f"python:{__name__}:NOT_PROMPTS")


class TestErrors:
    def test_missing_file_names_the_nearest(self, tmp_path: Path):
        (tmp_path / "train.txt").touch()
        (tmp_path / "zzz.md").touch()
        with pytest.raises(DataError, match=r"trian.txt does not exist; nearest there: train.txt$"):
            load_prompts(tmp_path / "trian.txt")
        with pytest.raises(DataError, match="nor does its folder"):
            load_prompts(tmp_path / "no" / "train.txt")

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("a.txt", "\n \n", "holds no prompts"),
            ("a.jsonl", '{"prompt": "a"}\n\n{"prompt": "b"', r"a.jsonl, line 3 is not JSON: .* at column 15"),
            ("a.jsonl", '{"prompt": "a"}\n{"text": "b", "tag": 1}', r"line 2 has no prompt: .* columns are text, tag"),
            ("a.jsonl", '{"prompt": ""}', "line 1 has no prompt"),
            ("a.jsonl", "3", "line 1 must be an object with a 'prompt', got int"),
            ("a.json", '[\n{"prompt": }]', "line 2 is not JSON"),
            ("a.json", '{"prompt": "a"}\n{"prompt": "b"}', "Extra data; one object per line belongs in a .jsonl"),
            ("a.json", '{"prompt": "a"}', "must hold a list of objects, got dict"),
            ("a.json", '[{"prompt": "a"}, {}]', "item 1 has no prompt"),
            ("a.jsonl", '{"prompt": "a", "image": "b.png"}', r"line 1: .*b.png does not exist; .*paths count from"),
            ("a.jsonl", '{"prompt": ["hi"]}', "chat message needs 'role' and 'content', got 'hi'"),
            ("a.jsonl", '{"prompt": [{"role": "system", "content": "x"}]}', "no user turn with text"),
            ("a.csv", "prompt", "known endings are .txt, .jsonl, .json, .parquet"),
            ("a.parquet", "prompt", "not a readable parquet file"),
        ],
    )
    def test_malformed_files(self, tmp_path: Path, name: str, text: str, message: str):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=message):
            load_prompts(tmp_path / name)

    def test_not_utf8(self, tmp_path: Path):
        (tmp_path / "a.txt").write_bytes("ein Bär".encode("latin-1"))
        with pytest.raises(DataError, match=r"not UTF-8 .* at byte 5"):
            load_prompts(tmp_path / "a.txt")

    def test_settings_without_effect_raise(self, tmp_path: Path):
        path = write(tmp_path / "a.txt", "a")
        with pytest.raises(DataError, match="no splits, so split='train' does nothing"):
            load_prompts(path, split="train")
        with pytest.raises(DataError, match=r"no columns, so columns=\{'prompt': 'caption'\} does nothing"):
            load_prompts(path, columns={"prompt": "caption"})
        with pytest.raises(DataError, match="limit must be at least 1 or absent, got 0"):
            load_prompts(path, limit=0)


def indices(stream: PromptStream, steps: range) -> list[list[int]]:
    return [[index for index, _ in stream.take(step)] for step in steps]


def samples_of(steps: list[list[int]]) -> list[int]:
    return [index for step in steps for index in step]


class TestStream:
    def test_an_epoch_is_a_permutation_and_epochs_differ(self):
        stream = PromptStream([Prompt(str(i)) for i in range(12)], num_per_step=4, seed=3)
        first, second = (samples_of(indices(stream, range(start, start + 3))) for start in (0, 3))
        assert sorted(first) == sorted(second) == list(range(12))
        assert first != second

    def test_any_step_can_be_taken_first(self):
        def stream(seed: int) -> PromptStream:
            return PromptStream([Prompt(str(i)) for i in range(7)], num_per_step=3, seed=seed)

        first = stream(0)
        forward = [first.take(step) for step in range(9)]
        assert [stream(0).take(step) for step in reversed(range(9))] == forward[::-1]
        assert indices(stream(1), range(9)) != indices(first, range(9))
        assert all(prompt.text == str(index) for step in forward for index, prompt in step)

    def test_no_prompt_twice_in_a_step_and_each_at_least_once_an_epoch(self):
        stream = PromptStream([Prompt(str(i)) for i in range(10)], num_per_step=4, seed=0)
        steps = indices(stream, range(300))  # an epoch is 3 steps: 12 draws, 2 of the 10 prompts come twice
        assert all(len(set(step)) == 4 for step in steps)
        for epoch in range(100):
            counts = Counter(samples_of(steps[3 * epoch : 3 * epoch + 3]))
            assert sorted(counts.values()) == [1] * 8 + [2] * 2
        # over 100 epochs each prompt comes 120 times on average, 100 + Binomial(100, 0.2): 4 sigma is 16
        assert all(abs(count - 120) <= 16 for count in Counter(samples_of(steps)).values())

    def test_fewer_prompts_than_a_step_repeat_evenly(self):
        stream = PromptStream(FOUR, num_per_step=10, seed=0)
        for step in indices(stream, range(20)):
            assert sorted(Counter(step).values()) == [2, 2, 3, 3]

    def test_in_order(self):
        stream = PromptStream(FOUR, num_per_step=3, seed=0, sampler=in_order())
        assert indices(stream, range(3)) == [[0, 1, 2], [3, 0, 1], [2, 3, 0]]

    def test_invalid_streams_raise(self):
        with pytest.raises(DataError, match="at least one prompt"):
            PromptStream([], num_per_step=1, seed=0)
        with pytest.raises(DataError, match="num_per_step must be at least 1, got 0"):
            PromptStream(FOUR, num_per_step=0, seed=0)


def test_a_column_of_images_that_no_row_has_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", {"prompt": "a", "mask": None}, {"prompt": "b", "edge": 1})
    with pytest.raises(
        DataError, match=r"names the column 'masc', which no row of .*rows.jsonl has; the columns are mask, edge"
    ):
        load_prompts(path, image_columns=["masc"])
