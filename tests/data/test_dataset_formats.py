"""Rows are the same in every format of a dataset, and the decompressed size of a file is bounded."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, Features, Value, load_dataset
from datasets import Image as Feature
from PIL import Image

from mmgrpo.config.loading import validated
from mmgrpo.data import bounds
from mmgrpo.data.image_loading import load_image
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.data.prompt_rows import prompt_of_row
from mmgrpo.errors import DataError
from mmgrpo.training.arguments import prompts_of
from mmgrpo.types import Prompt

ROWS = [{"prompt": "a", "answer": 1, "box": [1.0, 2.0]}, {"prompt": "b", "answer": 2, "box": [3.0, 4.0]}]


def pictured(*colors: str | None) -> Dataset:
    """A row for each color with an image of it for the model and for a reward; None: bytes that are no image."""

    def encoded(color: str | None) -> dict[str, Any]:
        buffer = io.BytesIO()
        Image.new("RGB", (8, 8), color or "black").save(buffer, "PNG")
        return {"bytes": b"torn" if color is None else buffer.getvalue(), "path": None}

    rows = [
        {"prompt": str(number), "answer": number, "image": encoded(color), "goal": encoded(color)}
        for number, color in enumerate(colors)
    ]
    features = Features({"prompt": Value("string"), "answer": Value("int64"), "image": Feature(), "goal": Feature()})
    return Dataset.from_list(rows, features=features)


class TestFormats:
    @pytest.mark.parametrize("format_name", [None, "pandas", "arrow", "torch", "numpy"])
    def test_columns_are_plain_values_in_every_format(self, format_name: str | None) -> None:
        prompts = load_prompts(Dataset.from_list(ROWS).with_format(format_name))
        assert [dict(prompt.columns) for prompt in prompts] == [
            {key: row[key] for key in ("answer", "box")} for row in ROWS
        ]
        assert type(prompts[0].columns["answer"]) is int

    def test_a_format_of_some_columns_hides_none(self) -> None:
        (first, _) = load_prompts(Dataset.from_list(ROWS).with_format("torch", columns=["answer"]))
        assert (first.text, first.columns["answer"]) == ("a", 1)

    def test_a_transform_makes_the_rows(self) -> None:
        dataset = Dataset.from_list(ROWS).with_transform(
            lambda batch: {"prompt": [text + "!" for text in batch["prompt"]]}
        )
        assert [prompt.text for prompt in load_prompts(dataset)] == ["a!", "b!"]

    def test_a_streamed_dataset_needs_a_limit(self) -> None:
        stream = Dataset.from_list(ROWS).to_iterable_dataset()
        assert [prompt.columns["answer"] for prompt in load_prompts(stream, limit=1)] == [1]  # pyrefly: ignore[bad-argument-type]
        with pytest.raises(DataError, match="set limit, the number of rows to read"):
            load_prompts(stream)  # pyrefly: ignore[bad-argument-type]
        config = validated({"prompts": {"source": "unused.txt"}})
        with pytest.raises(DataError, match="set limit, the number of rows to read"):
            prompts_of(stream, config.prompts)

    @pytest.mark.parametrize("format_name", [None, "pandas", "arrow", "torch", "numpy"])
    def test_a_streamed_dataset_is_read_without_its_format(self, format_name: str | None) -> None:
        stream = pictured("red").to_iterable_dataset().with_format(format_name)
        (prompt,) = load_prompts(stream, limit=1)  # pyrefly: ignore[bad-argument-type]
        assert (prompt.text, prompt.columns["answer"]) == ("0", 0)
        assert load_image(prompt.images[0]).getpixel((0, 0)) == (255, 0, 0)
        assert prompt.columns["goal"].getpixel((0, 0)) == (255, 0, 0)

    def test_a_streamed_row_that_cannot_be_decoded_is_skipped(self, caplog: pytest.LogCaptureFixture) -> None:
        stream = pictured("red", None, "blue").to_iterable_dataset()
        assert [prompt.text for prompt in load_prompts(stream, limit=3, on_error="skip")] == ["0", "2"]  # pyrefly: ignore[bad-argument-type]
        assert "1 of 3 rows" in caplog.text
        with pytest.raises(DataError, match=r"the dataset, row 1.* cannot be opened as an image|row 1 cannot be read"):
            load_prompts(stream, limit=3)  # pyrefly: ignore[bad-argument-type]

    def test_a_row_with_an_undecodable_reward_image_is_skipped(self) -> None:
        broken = pictured("red", None, "blue").remove_columns("image")
        assert [prompt.text for prompt in load_prompts(broken, on_error="skip")] == ["0", "2"]
        with pytest.raises(DataError, match="the dataset, row 1 cannot be read"):
            load_prompts(broken)

    def test_a_row_with_a_failing_transform_is_skipped(self) -> None:
        def transform(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            return {"prompt": [{"a": "first"}[text] for text in batch["prompt"]]}

        dataset = Dataset.from_list(ROWS).with_transform(transform)
        assert [prompt.text for prompt in load_prompts(dataset, on_error="skip")] == ["first"]
        with pytest.raises(DataError, match=r"the dataset, row 1 cannot be read \(KeyError: 'b'\)"):
            load_prompts(dataset)

    def test_a_stream_that_raises_is_an_error_with_its_row(self) -> None:
        stream = Dataset.from_list(ROWS).to_iterable_dataset().map(lambda row: {"x": 1 / (2 - row["answer"])})
        with pytest.raises(DataError, match=r"row 1 of the stream cannot be read \(ZeroDivisionError"):
            load_prompts(stream, limit=2)  # pyrefly: ignore[bad-argument-type]

    def test_parquet_columns_of_one_name_or_of_no_feature_are_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        pyarrow.parquet.write_table(pa.table([pa.array(["a"]), pa.array(["b"])], names=["prompt", "prompt"]), path)
        with pytest.raises(DataError, match="several columns of the name prompt"):
            load_prompts(path)
        pairs = pa.array([[("k", 1)]], type=pa.map_(pa.string(), pa.int64()))
        pyarrow.parquet.write_table(pa.table({"prompt": pa.array(["a"]), "pairs": pairs}), path)
        with pytest.raises(DataError, match="datasets cannot read its columns"):
            load_prompts(path)

    def test_rows_in_python_are_skipped_as_those_of_files(self, caplog: pytest.LogCaptureFixture) -> None:
        rows = [{"prompt": "a"}, {"prompt": 3}, {"question": "b"}, "c"]
        config = validated({"prompts": {"source": "unused.txt", "on_error": "skip"}})
        assert [prompt.text for prompt in prompts_of(rows, config.prompts)] == ["a", "c"]
        assert "2 of 4 rows" in caplog.text

    def test_json_features_are_decoded(self, tmp_path: Path) -> None:
        tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}}
        rows = [
            {"prompt": [{"role": "user", "content": "a"}], "answer": {"x": 1}, "tools": [tool]},
            {"prompt": [{"role": "user", "content": [{"type": "text", "text": "b"}]}], "answer": [1, 2]},
        ]
        path = tmp_path / "rows.jsonl"
        path.write_text("\n".join(map(json.dumps, rows)))
        expected = load_prompts(path)
        made = load_prompts(
            load_dataset("json", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
        )
        assert [prompt.text for prompt in made] == ["a", "b"]
        assert [prompt.messages for prompt in made] == [prompt.messages for prompt in expected]
        assert [prompt.columns["answer"] for prompt in made] == [{"x": 1}, [1, 2]]
        assert made[0].chat_template_kwargs == {"tools": [tool]}


class TestMessages:
    def test_messages_as_json_text_are_messages(self) -> None:
        turns = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
        prompt = prompt_of_row({"messages": json.dumps(turns)}, "prompt", where="row 0", folder=None)
        assert prompt.messages == turns[:1]
        assert (prompt.text, dict(prompt.columns)) == ("2+2?", {"solution": "4"})

    @pytest.mark.parametrize("text", ["[1, 2]", "[a list]", "[]", '["role"]', '{"role": "user"}'])
    def test_other_texts_stay_texts(self, text: str) -> None:
        assert prompt_of_row({"prompt": text}, "prompt", where="row 0", folder=None).text == text

    @pytest.mark.parametrize(
        "text",
        [
            str([{"role": "user", "content": "it's 2"}]),
            json.dumps({"messages": [{"role": "user", "content": "it's 2"}]}),
            json.dumps({"role": "user", "content": "it's 2"}),
        ],
    )
    def test_texts_of_messages_in_other_notations_are_messages(self, text: str) -> None:
        prompt = prompt_of_row({"prompt": text}, "prompt", where="row 0", folder=None)
        assert prompt.messages == [{"role": "user", "content": "it's 2"}]

    @pytest.mark.parametrize(
        ("messages", "message"),
        [
            (json.dumps([{"from": "human", "value": "a"}]), "row 0: a chat message needs 'role' and 'content'"),
            ([{"role": "user", "content": 3}], "content must be a text or a list of parts, got 3"),
            ([{"role": "user", "content": ["a"]}], "parts of a message must be objects"),
            ([{"role": "assistant", "content": ["a"]}], "parts of a message must be objects"),
            (
                [{"role": "assistant", "content": None, "tool_calls": "f(x)"}],
                "'tool_calls' of a message must be a list",
            ),
            ([{"role": "assistant", "content": None, "tool_calls": [3]}], "'tool_calls' of a message must be a list"),
        ],
    )
    def test_malformed_messages_are_an_error(self, messages: Any, message: str) -> None:
        with pytest.raises(DataError, match=message):
            prompt_of_row({"messages": messages}, "prompt", where="row 0", folder=None)

    @pytest.mark.parametrize("source", ["dataset", "parquet", "without content", "json text"])
    def test_turns_that_only_call_tools_are_read_from_any_source(self, source: str, tmp_path: Path) -> None:
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
        turns: list[dict[str, Any]] = [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "content": "sunny"},
        ]
        if source == "parquet":
            Dataset.from_list([{"prompt": turns}]).to_parquet(str(tmp_path / "rows.parquet"))
            (prompt,) = load_prompts(tmp_path / "rows.parquet")
        elif source == "dataset":
            (prompt,) = load_prompts(Dataset.from_list([{"prompt": turns}]))
        else:
            other = {"role": "assistant", "tool_calls": [call] if source == "without content" else json.dumps([call])}
            prompt = prompt_of_row({"prompt": [turns[0], other, turns[2]]}, "prompt", where="row", folder=None)
        assert prompt.messages == turns

    def test_other_values_than_texts_of_text_columns_are_an_error(self) -> None:
        with pytest.raises(DataError, match="row 3: 'negative_prompt' must be a text or null, got 0"):
            prompt_of_row({"prompt": "a", "negative_prompt": 0}, "prompt", where="row 3", folder=None)
        turns = [{"role": "user", "content": "<ref-object>"}]
        with pytest.raises(DataError, match=r"objects.ref must be a list of names, got 'dog'"):
            prompt_of_row({"messages": turns, "objects": {"ref": "dog"}}, "prompt", where="row", folder=None)

    def test_half_of_a_surrogate_pair_is_an_error_of_its_row(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        path.write_text('{"prompt": "a\\ud83d\\ude00"}\n{"prompt": "a\\ud83d"}\n')
        assert [prompt.text for prompt in load_prompts(path, on_error="skip")] == ["a\U0001f600"]
        with pytest.raises(DataError, match=r"line 2: the text holds '.ud83d', half of a surrogate pair"):
            load_prompts(path)
        with pytest.raises(DataError, match="item 0: the text holds"):
            prompts_of(["a\ud83d"], None)

    def test_blank_texts_and_truths_as_json_are_read(self) -> None:
        row = {"prompt": "a", "tools": "", "chat_template_kwargs": " ", "reward_model": '{"ground_truth": "4"}'}
        prompt = prompt_of_row(row, "prompt", where="row", folder=None)
        assert (prompt.chat_template_kwargs, prompt.columns["answer"]) == ({}, "4")

    def test_a_last_turn_that_only_calls_a_tool_is_the_solution(self) -> None:
        call = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
        prompt = prompt_of_row({"messages": turns}, "prompt", where="row 0", folder=None)
        assert json.loads(prompt.columns["solution"]) == [call["function"]]

    def test_tools_that_are_no_list_are_an_error(self) -> None:
        with pytest.raises(DataError, match=r"row 7: the column 'tools' goes to the chat template and is no JSON"):
            prompt_of_row({"prompt": "a", "tools": "hammer"}, "prompt", where="row 7", folder=None)
        prompt = prompt_of_row({"prompt": "a", "chat_template_kwargs": '{"x": 1}'}, "prompt", where="row", folder=None)
        assert prompt.chat_template_kwargs == {"x": 1}

    def test_lines_with_a_hash_are_prompts_with_a_warning(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "prompts.txt"
        path.write_text("a cat\n# animals\n\na dog\n")
        assert load_prompts(path) == [Prompt("a cat"), Prompt("# animals"), Prompt("a dog")]
        assert "1 of 3 lines begin with #" in caplog.text


class TestBounds:
    @pytest.fixture(autouse=True)
    def _small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bounds, "MIN_BYTES", 2**20)

    def test_a_parquet_that_expands_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        table = pa.table({"prompt": ["a" * 1000] * 20_000})
        pyarrow.parquet.write_table(table, path)
        assert path.stat().st_size < 10_000
        with pytest.raises(DataError, match="expands to more than"):
            load_prompts(path)
        with pytest.raises(DataError, match="expands to more than"):
            load_prompts(tmp_path)

    def test_plain_files_of_some_size_are_read(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        pyarrow.parquet.write_table(pa.table({"prompt": [f"{n} {'x' * 100}" for n in range(2_000)]}), path)
        assert len(load_prompts(path)) == 2_000

    @pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.zip", "rows.jsonl.GZ", "rows.jsonl"])
    def test_an_archive_that_expands_is_an_error(self, name: str, tmp_path: Path) -> None:
        content = json.dumps({"prompt": "a" * 4_000_000}).encode()
        if name.endswith("zip"):
            with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("rows.jsonl", content)
        else:
            (tmp_path / name).write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=f"{name} has .* and expands to more than"):
            load_prompts(tmp_path)

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_a_stream_of_zstd_or_lz4_that_expands_is_an_error(self, codec: str, tmp_path: Path) -> None:
        path = tmp_path / "rows.jsonl"
        with pa.CompressedOutputStream(str(path), codec) as stream:
            stream.write(json.dumps({"prompt": "a" * 40_000_000}).encode())
        assert path.stat().st_size < 200_000
        with pytest.raises(DataError, match=r"rows\.jsonl has .* and expands to more than"):
            bounds.require_bounded(tmp_path)
        path.write_bytes(path.read_bytes()[:8] + b"\xff" * 20)
        with pytest.raises(DataError, match=f"is not a readable {codec} file"):
            bounds.require_bounded(tmp_path)

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_a_stream_of_zstd_or_lz4_within_its_bound_is_read(self, codec: str, tmp_path: Path) -> None:
        with pa.CompressedOutputStream(str(tmp_path / "rows.jsonl"), codec) as stream:
            stream.write("".join(json.dumps({"prompt": str(n)}) + "\n" for n in range(2_000)).encode())
        bounds.require_bounded(tmp_path)

    @pytest.mark.parametrize("codec", ["zstd", "lz4"])
    def test_every_frame_of_a_compressed_stream_counts(self, codec: str, tmp_path: Path) -> None:
        frames = []
        for size in (10, 40_000_000):
            path = tmp_path / f"{size}.bin"
            with pa.CompressedOutputStream(str(path), codec) as stream:
                stream.write(b"a" * size)
            frames.append(path.read_bytes())
            path.unlink()
        (tmp_path / "rows.jsonl").write_bytes(b"".join(frames))
        with pytest.raises(DataError, match=r"rows\.jsonl has .* and expands to more than"):
            bounds.require_bounded(tmp_path)

    def test_dictionaries_and_compressed_arrow_files_that_expand_are_an_error(self, tmp_path: Path) -> None:
        repeated = pa.table({"prompt": pa.array(["a" * 10_000] * 300).dictionary_encode()})
        pyarrow.parquet.write_table(repeated, tmp_path / "rows.parquet")
        with pytest.raises(DataError, match=r"rows\.parquet has .* and expands to more than"):
            load_prompts(tmp_path / "rows.parquet")
        folder = tmp_path / "arrow"
        folder.mkdir()
        table = pa.table({"prompt": ["a" * 10_000] * 300})
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with pa.ipc.new_stream(str(folder / "rows.arrow"), table.schema, options=options) as writer:
            writer.write_table(table)
        with pytest.raises(DataError, match=r"rows\.arrow has .* and expands to more than"):
            load_prompts(folder)

    def test_a_card_of_anchors_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "rows.jsonl").write_text('{"prompt": "a"}')
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
        (tmp_path / "README.md").write_text("---\n" + "\n".join(lines) + "\n---\n")
        with pytest.raises(DataError, match=r"the card .*README.md is no YAML that can be read"):
            load_prompts(tmp_path)

    def test_blanks_take_linear_time(self) -> None:
        """With a quadratic pattern each line takes minutes."""
        blanks = " " * 300_000
        with pytest.raises(DataError):
            load_image(blanks + "!")
        prompt = prompt_of_row(
            {"messages": [{"role": "user", "content": blanks + "x"}]}, "prompt", where="row", folder=None
        )
        assert prompt.text == "x"
