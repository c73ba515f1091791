"""Null keys, which arrow gives to every object of a column, reach neither rewards nor the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset

from mmgrpo import build_rewards
from mmgrpo.config import RewardConfig
from mmgrpo.data.arrow_values import without_null_keys
from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.types import Prompt, Sample


def parquet(folder: Path, rows: list[dict[str, Any]]) -> list[Prompt]:
    pa.parquet.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    return load_prompts(folder / "rows.parquet")


def score(name: str, prompt: Prompt, text: str) -> float:
    reward = build_rewards([RewardConfig(name=name)])[0].function
    return float(reward([Sample(prompt, 0, 0, text=text)])[0])  # type: ignore[arg-type]


def test_a_right_tool_call_of_a_mixed_column_scores_1(tmp_path: Path) -> None:
    calls = [{"name": "f", "arguments": {"x": 1}}], [{"name": "g", "arguments": {"city": "Paris"}}]
    prompt, _ = parquet(tmp_path, [{"prompt": "a", "answer": call} for call in calls])
    assert prompt.columns["answer"] == calls[0]
    assert score("tool_calls", prompt, '{"name": "f", "arguments": {"x": 1}}') == 1.0


@pytest.mark.parametrize("name", ["field_match", "value_match", "record_similarity"])
def test_a_right_record_of_a_mixed_column_scores_1(name: str, tmp_path: Path) -> None:
    prompt, _ = parquet(tmp_path, [{"prompt": "a", "answer": {"name": "Li"}}, {"prompt": "b", "answer": {"age": 3}}])
    assert score(name, prompt, '{"name": "Li"}') == 1.0


def test_messages_hold_no_arguments_of_other_rows() -> None:
    def row(name: str, **arguments: Any) -> dict[str, Any]:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        user, assistant = {"role": "user", "content": "x"}, {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"prompt": [user, assistant]}

    prompt, _ = load_prompts(Dataset.from_list([row("weather", city="Paris"), row("time", zone=1)]))
    assert prompt.messages is not None
    assert prompt.messages[1]["tool_calls"][0]["function"] == {"name": "weather", "arguments": {"city": "Paris"}}


def test_a_null_column_and_a_null_in_a_list_stay() -> None:
    (prompt,) = load_prompts(Dataset.from_list([{"prompt": "a", "answer": None, "grid": [[1, None]]}]))
    assert prompt.columns == {"answer": None, "grid": [[1, None]]}
    assert without_null_keys({"a": [{"b": None, "c": 0}], "d": None}) == {"a": [{"c": 0}]}
