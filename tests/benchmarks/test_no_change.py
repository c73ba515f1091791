"""Runs are compared with those of another commit bit by bit, those of several tasks too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from benchmarks.no_change import SHORTENED, compare, for_tasks, read
from mmgrpo.config.loading import load_config


def write_run(folder: Path, lines: Sequence[Mapping[str, Any]], weights: Mapping[str, bytes]) -> None:
    folder.mkdir()
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for checkpoint, content in weights.items():
        (folder / checkpoint / "policy").mkdir(parents=True)
        (folder / checkpoint / "policy" / "weights.safetensors").write_bytes(content)


def test_overrides_of_a_mixed_run_reach_the_tasks_that_may_set_them() -> None:
    overrides = for_tasks("quickstart/digits-rewritten", [*SHORTENED, "steps=2", "seeds.order=1"])
    assert overrides == [
        "seed=0",
        "steps=2",
        "tasks.rewriter.update.warmup.steps=20",
        "tasks.rewriter.rollout.prompts_per_step=4",
        "tasks.rewriter.evaluation=null",
        "tasks.rewriter.seeds.order=1",
        "tasks.painter.update.warmup.steps=20",  # its prompts are samples of the rewriter
        "tasks.painter.evaluation=null",
        "tasks.painter.seeds.order=1",
    ]
    config = load_config("quickstart/digits-rewritten", overrides[:5])
    assert config.mixed["rewriter"]["rollout"]["prompts_per_step"] == 4


def test_overrides_of_a_single_run_are_unchanged() -> None:
    assert for_tasks("quickstart/arithmetic-text", SHORTENED) == list(SHORTENED)


def test_a_series_is_an_error() -> None:
    with pytest.raises(ValueError, match="papers/video/veripo is a series of runs: compare the configuration of each"):
        for_tasks("papers/video/veripo", SHORTENED)


def test_steps_of_tasks_are_summed_and_their_clock_is_left_out(tmp_path: Path) -> None:
    clock = {"time/rollout_s": 4.0, "time/reward_s": 2.0, "time/update_s": 1.0}

    def line(task: str, step: int, reward: float) -> dict[str, Any]:
        return {
            "task": task,
            "step": step,
            **{f"{task}/{k}": v for k, v in clock.items()},
            f"{task}/reward/mean": reward,
        }

    lines = [line("sums", 1, 0.5), line("sums", 1, 0.5), line("drawing", 1, 0.25), line("sums", 2, 0.75)]
    folders = {"sums/checkpoints/step-000001": b"1", "sums/checkpoints/step-000002": b"2"}
    write_run(tmp_path / "run", lines, {**folders, "drawing/checkpoints/step-000001": b"3"})
    trained = read(tmp_path / "run")
    assert trained.seconds == (4 + 2 + 2 * 1 + 4 + 2 + 1, 4 + 2 + 1)  # two updates of sums in the first step
    assert trained.lines[2] == {"task": "drawing", "step": 1, "drawing/reward/mean": 0.25}
    assert trained.weights == sha256(b"32").hexdigest()  # the newest of drawing, then that of sums
    write_run(tmp_path / "other", [*lines[:3], line("sums", 2, 0.5)], {**folders, "drawing/checkpoints/step-1": b"4"})
    comparison = compare(read(tmp_path / "other"), trained)
    assert not comparison.weights
    assert comparison.differing == ("line 3: sums/reward/mean is 0.5, was 0.75",)


def test_a_single_run_is_read_as_before(tmp_path: Path) -> None:
    line = {"step": 1, "reward/mean": 0.5, "time/rollout_s": 1.0, "time/reward_s": 0.0, "time/update_s": 2.0}
    write_run(tmp_path / "run", [line, {**line, "step": 2}], {"checkpoints/step-000002": b"weights"})
    trained = read(tmp_path / "run")
    assert trained.seconds == (3.0, 3.0)
    assert trained.lines == ({"step": 1, "reward/mean": 0.5}, {"step": 2, "reward/mean": 0.5})
    assert trained.weights == sha256(b"weights").hexdigest()
    write_run(tmp_path / "empty", [line], {})
    with pytest.raises(RuntimeError, match="holds no weights in any checkpoint"):
        read(tmp_path / "empty")
