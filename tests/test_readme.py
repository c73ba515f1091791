"""The README's Python, run as it stands on a tiny pipeline."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path

import pytest

from tests.tiny.pipelines import PIPELINES

README = (Path(__file__).parents[1] / "README.md").read_text()
SMALLER = {'"num_inference_steps": 10': '"num_inference_steps": 4', "512": "16", '"steps": 20': '"steps": 2'}


def test_the_snippet_trains_and_calls_nothing_deprecated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"^```python\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    for large, small in SMALLER.items():
        assert large in snippet
        snippet = snippet.replace(large, small)
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, PendingDeprecationWarning):
            warnings.filterwarnings("error", category=category, module="readme")
        exec(compile(snippet, "README.md", "exec"), {"__name__": "readme", "pipeline": PIPELINES["sd3"].build()})
    lines = [json.loads(line) for line in (tmp_path / "runs/run/metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert all(0 < line["reward/brightness/mean"] < 1 for line in lines)
    assert [line["reward/mean"] for line in lines] == [line["reward/brightness/mean"] for line in lines]
    assert not any(line["reward/brightness/failed_frac"] for line in lines)
