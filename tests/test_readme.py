"""The Python of README.md and of docs/learn/commands.md trains tiny models; README.md is short and shows its image."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.tiny.language_models import save
from tests.tiny.pipelines import PIPELINES

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
MODEL = "Qwen/Qwen2.5-0.5B-Instruct"
SMALLER_TEXT = {'"max_new_tokens": 64': '"max_new_tokens": 4', '"steps": 100': '"steps": 2'}
SMALLER_IMAGES = {'"num_inference_steps": 10': '"num_inference_steps": 4', "512": "16", '"steps": 20': '"steps": 2'}


def snippet_of(page: Path, changes: dict[str, str]) -> str:
    """The only Python block of a page, with some of its text replaced."""
    (snippet,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    for old, new in changes.items():
        assert old in snippet
        snippet = snippet.replace(old, new)
    return snippet


def run(snippet: str) -> dict[str, Any]:
    """The names that a snippet defines; its deprecation warnings are errors."""
    names: dict[str, Any] = {"__name__": "readme"}
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.filterwarnings("error", category=category, module="readme")
        exec(compile(snippet, "snippet", "exec"), names)
    return names


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    return lines


def test_readme_snippet_trains_a_language_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    save("qwen2", tmp_path / "model")
    run(snippet_of(ROOT / "README.md", {MODEL: "model", **SMALLER_TEXT}))
    for line in metrics(tmp_path):
        assert line["reward/exact/applies_frac"] == 1.0
        assert line["completions/max_length"] <= 4


def test_readme_snippet_has_twelve_lines() -> None:
    lines = [line for line in snippet_of(ROOT / "README.md", {}).splitlines() if line]
    assert len(lines) <= 12


def test_commands_snippet_trains_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = run(snippet_of(ROOT / "docs/learn/commands.md", SMALLER_IMAGES))
    names["trainer_of"](PIPELINES["sd3"].build()).train()
    lines = metrics(tmp_path)
    assert all(0 < line["reward/brightness/mean"] < 1 for line in lines)
    assert [line["reward/mean"] for line in lines] == [line["reward/brightness/mean"] for line in lines]
    assert not any(line["reward/brightness/failed_frac"] for line in lines)


def test_readme_is_short_and_its_image_small() -> None:
    assert len(README.splitlines()) <= 150
    (image,) = re.findall(r"^!\[[^\]]+\]\(([^)]+)\)", README, re.MULTILINE)
    assert (ROOT / image).stat().st_size <= 120 * 1024
