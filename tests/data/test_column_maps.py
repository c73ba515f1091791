"""Maps of columns, and parts of splits, of rows in files and data sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, DatasetDict, Features, Image, List, Value

from mmgrpo.data.column_maps import map_columns
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.errors import DataError
from tests.configs.standin_data import image_bytes

ROW = {"q": "How many?", "nums": [3, 4], "reward_model": {"ground_truth": "7", "style": "rule"}, "answers": ["a", "b"]}


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("nums", [3, 4]),
        ("reward_model.ground_truth", "7"),
        ("answers[1]", "b"),
        ("answers[-1]", "b"),
        ("answers[2]", None),
        ("reward_model.other", None),
        ("{q} Use {nums} and {answers[0]}, {{not}} more.", "How many? Use [3, 4] and a, {not} more."),
        ({"action": "reward_model.style", "box": "nums", "none": "answers[9]"}, {"action": "rule", "box": [3, 4]}),
    ],
)
def test_sources_are_names_paths_templates_and_objects(source: Any, value: Any) -> None:
    assert map_columns(ROW, {"out": source}, "row 0") == {**ROW, "out": value}


def test_the_name_of_a_column_may_look_like_a_path() -> None:
    assert map_columns({"a.b": 1, "a": {"b": 2}}, {"out": "a.b"}, "row 0")["out"] == 1


def test_a_mapped_column_replaces_one_of_its_name() -> None:
    assert map_columns(ROW, {"answers": "nums"}, "row 0")["answers"] == [3, 4]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            "question",
            "row 0 has no column 'question', which prompts.columns names; it has q, nums, reward_model, answers",
        ),
        ("Q: {reward_model.other}", r"row 0: 'reward_model.other' of the template .* has no value in this row"),
        ("[0]", "is no path of a column"),
    ],
)
def test_missing_values_are_errors_of_their_row(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        map_columns(ROW, {"out": source}, "row 0")


@pytest.mark.parametrize("source", ["a { b", "{}", 3, {"a": 1}, ""])
def test_sources_of_another_kind_are_errors(tmp_path: Path, source: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(ROW))
    with pytest.raises(DataError, match=r"columns\.prompt"):
        load_prompts(tmp_path / "a.jsonl", columns={"prompt": source})


def pictured() -> Dataset:
    """Rows whose image has another name, and a column of the name that the prompt's image has."""
    rows = [{"query": "red?", "chart": image_bytes("red"), "image": "old.png", "label": ["1", "2"]}]
    features = Features(
        {"query": Value("string"), "chart": Image(), "image": Value("string"), "label": List(Value("string"))}
    )
    return Dataset.from_list(rows, features=features)


@pytest.mark.parametrize("stored", ["parquet", "dataset", "stream"])
def test_media_and_references_are_mapped_in_every_form_of_a_dataset(tmp_path: Path, stored: str) -> None:
    dataset = pictured()
    dataset.to_parquet(tmp_path / "a.parquet")
    source: Any = {"parquet": tmp_path / "a.parquet", "dataset": dataset, "stream": dataset.to_iterable_dataset()}[
        stored
    ]
    columns = {"prompt": "<image>{query}", "image": "chart", "answer": "label[0]"}
    (prompt,) = load_prompts(source, columns=columns, limit=1)
    assert prompt.text == "red?"
    assert prompt.messages == [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "red?"}]}]
    assert load_image(prompt.images[0]).getpixel((0, 0)) == (255, 0, 0)
    assert dict(prompt.columns) == {"query": "red?", "label": ["1", "2"], "answer": "1"}


def test_media_of_json_rows_are_mapped(tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes(image_bytes("blue")["bytes"])
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "blue?", "picture": "0", "picture_file": "0.png"}))
    (prompt,) = load_prompts(tmp_path / "a.jsonl", columns={"image": "{picture}.png"})
    assert load_image(prompt.images[0]).getpixel((0, 0)) == (0, 0, 255)
    (renamed,) = load_prompts(tmp_path / "a.jsonl", columns={"image": "picture_file"})
    assert renamed.columns == {"picture": "0"}


def test_parts_of_splits(tmp_path: Path) -> None:
    rows = [{"prompt": str(number)} for number in range(10)]
    DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:1])).save_to_disk(tmp_path / "saved")  # pyrefly: ignore[bad-argument-type]

    def texts(split: str) -> str:
        return "".join(prompt.text for prompt in load_prompts(tmp_path / "saved", split=split))

    assert texts("train[:3]") == "012"
    assert texts("train[-2:]") == "89"
    assert texts("train[50%:70%]") == "56"
    assert texts("test+train[:2]") == "001"
    assert texts("train+test") == "01234567890"
    assert texts("train[:0]+test") == "0"
    with pytest.raises(DataError, match=r"has the splits train, test; split='dev\[:3\]' is no part of them"):
        texts("dev[:3]")
    with pytest.raises(DataError, match="split='train\\[3' is no part of them"):
        texts("train[3")
