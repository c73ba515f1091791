"""Rows are the same however a dataset is formatted, and what a file expands to is bounded."""

from __future__ import annotations

import gzip
import json
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, load_dataset

from mmgrpo.config.loading import validated
from mmgrpo.data import bounds
from mmgrpo.data.media import opened
from mmgrpo.data.prompts import load_prompts
from mmgrpo.data.rows import prompt_of_row
from mmgrpo.errors import DataError
from mmgrpo.train.arguments import prompts_of
from mmgrpo.types import Prompt

ROWS = [{"prompt": "a", "answer": 1, "box": [1.0, 2.0]}, {"prompt": "b", "answer": 2, "box": [3.0, 4.0]}]


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
        assert [prompt.columns["answer"] for prompt in load_prompts(stream, limit=1)] == [1]
        with pytest.raises(DataError, match="say how many rows to read by limit"):
            load_prompts(stream)
        config = validated({"prompts": {"source": "unused.txt"}})
        with pytest.raises(DataError, match="say how many rows to read by limit"):
            prompts_of(stream, config)

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

    @pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.zip"])
    def test_an_archive_that_expands_is_an_error(self, name: str, tmp_path: Path) -> None:
        content = json.dumps({"prompt": "a" * 4_000_000}).encode()
        if name.endswith("zip"):
            with zipfile.ZipFile(tmp_path / name, "w", zipfile.ZIP_DEFLATED) as archive:
                archive.writestr("rows.jsonl", content)
        else:
            (tmp_path / name).write_bytes(gzip.compress(content))
        with pytest.raises(DataError, match=f"{name} has .* and expands to more than"):
            load_prompts(tmp_path)

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
            opened(blanks + "!")
        prompt = prompt_of_row(
            {"messages": [{"role": "user", "content": blanks + "x"}]}, "prompt", where="row", folder=None
        )
        assert prompt.text == "x"
