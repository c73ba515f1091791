"""The saved texts of a run: with their images, rewards and advantages."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmgrpo.data.clips import decoded
from mmgrpo.runs.sample_files import completion_metrics, write_samples
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt, Rollout, Sample, Scores
from tests.test_docs import page_names

SMALL = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8))
LARGE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (900, 600, 3), dtype=np.uint8))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_texts_are_saved_with_their_prompts(tmp_path: Path) -> None:
    SMALL.save(tmp_path / "a.png")
    prompts = [
        Prompt("which?", images=(SMALL, LARGE), columns={"answer": 7}),
        Prompt("and?", images=(str(tmp_path / "a.png"), "nowhere.png"), videos=("clip.mp4",)),
    ]
    samples = [
        Sample(prompts[0], 3, 0, text="<b>7</b>", tokens=[5, 6, 1]),
        Sample(prompts[0], 3, 1, text="\ud800", tokens=[5, 6], finished=False),
        Sample(prompts[1], 4, 0, text=""),
    ]
    scores = Scores(
        names=("right", "short"),
        weight_R=torch.ones(2),
        value_BR=torch.tensor([[1, 0.5], [0, 0.25], [0, 1]]),
        valid_BR=torch.tensor([[True, True], [False, True], [True, True]]),
    )
    folder = write_samples(
        tmp_path / "samples/train-000001", samples, scores, advantage_B=torch.tensor([0.75, -0.75, 0.0])
    )
    first, second, third = lines(folder / "samples.jsonl")
    small, large = first["images"]
    assert (first["prompt"], first["text"], first["group"], first["member"]) == ("which?", "<b>7</b>", 3, 0)
    assert (first["rewards"], second["rewards"]) == ({"right": 1.0, "short": 0.5}, {"short": 0.25})
    assert [line["advantage"] for line in (first, second, third)] == [0.75, -0.75, 0.0]
    assert [(line["finished"], line.get("num_tokens")) for line in (first, second, third)] == [
        (True, 3),
        (False, 2),
        (True, None),
    ]
    assert (first["reference"], third["reference"], third["num_videos"]) == ("7", None, 1)
    assert second["images"] == [small, large]
    assert third["images"] == [small, None]  # the same image from a file; one that cannot be opened
    assert len(list((tmp_path / "samples/images").iterdir())) == 2
    assert np.array_equal(np.asarray(Image.open(folder / small)), np.asarray(SMALL))
    with Image.open(folder / large) as reduced:
        assert (reduced.format, reduced.size) == ("JPEG", (299, 448))


def test_completion_metrics() -> None:
    assert completion_metrics([1, 2, 6, 7], [True, True, True, False]) == {
        "completions/mean_length": 4.0,
        "completions/max_length": 7.0,
        "completions/clipped_frac": 0.25,
    }
    assert completion_metrics([], []) == {}


def letters(length: int) -> Any:
    """The policy of docs/learn/smallest-policy.md, whose texts end at the first e and whose letters are its tokens."""

    class Spoken(page_names("learn/smallest-policy.md")["LetterPolicy"]):  # pyrefly: ignore[invalid-inheritance, unknown-name]
        def rollout(self, prompts: Any, *, group_size: int, seed: int, plan: Plan | None = None) -> Rollout:
            rollout = super().rollout(prompts, group_size=group_size, seed=seed, plan=plan)
            texts = [
                dataclasses.replace(s, tokens=[ord(c) for c in s.text or ""], finished="e" in (s.text or ""))
                for s in rollout.samples
            ]
            return dataclasses.replace(rollout, samples=texts)

    return Spoken(length)


@pytest.mark.parametrize("evaluated", [True, False])
def test_a_run_keeps_groups_and_measures_completions(tmp_path: Path, evaluated: bool) -> None:
    (tmp_path / "held_out.txt").write_text("held out\n")
    config: dict[str, Any] = {
        "output": str(tmp_path),
        "steps": 5,
        "rollout": {"prompts_per_step": 3, "group_size": 4, "saved_groups": 2},
    }
    if evaluated:
        config["evaluation"] = {"prompts": {"source": str(tmp_path / "held_out.txt")}, "every": 2}
    prompts = [Prompt(word, images=(SMALL,)) for word in ("one", "two", "three")]
    trainer = Trainer(letters(4), {"a": lambda samples: [s.text.count("a") for s in samples]}, prompts, config)
    run = trainer.train()
    names = sorted(path.name for path in run.glob("samples/train-*"))
    steps = (1, 2, 4, 5) if evaluated else (1, 5)
    assert names == [f"train-{step:06d}" for step in steps]
    for name in names:
        rows = lines(run / "samples" / name / "samples.jsonl")
        assert [row["member"] for row in rows] == [0, 1, 2, 3] * 2
        assert len({row["prompt"] for row in rows}) == 2
        for group in (rows[:4], rows[4:]):
            rewards = torch.tensor([row["rewards"]["a"] for row in group])
            expected = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            assert torch.allclose(torch.tensor([row["advantage"] for row in group]), expected, atol=1e-5)
            assert [row["rewards"]["a"] for row in group] == [row["text"].count("a") for row in group]
    assert len(list((run / "samples/images").iterdir())) == 1
    metrics = lines(run / "metrics.jsonl")
    assert [(m["completions/mean_length"], m["completions/max_length"]) for m in metrics] == [(4.0, 4.0)] * 5
    assert all(0 <= m["completions/clipped_frac"] <= 1 for m in metrics)
    # three groups of four, of which the first two are kept: what is kept bounds how many were cut off
    for step in steps:
        cut = sum(not row["finished"] for row in lines(run / f"samples/train-{step:06d}/samples.jsonl"))
        assert cut <= round(12 * metrics[step - 1]["completions/clipped_frac"]) <= cut + 4


def test_no_samples_are_saved_by_default(tmp_path: Path) -> None:
    config = {"output": str(tmp_path), "steps": 1, "rollout": {"prompts_per_step": 1, "saved_groups": 0}}
    run = Trainer(letters(2), {"a": lambda samples: [0.0] * len(samples)}, [Prompt("one")], config).train()
    assert not (run / "samples").exists()


def test_videos_are_mp4_files_with_a_sheet_of_their_frames(tmp_path: Path) -> None:
    clips = [[Image.new("L", (16, 8), 20 * row + 60 * number) for number in range(3)] for row in range(2)]
    samples = [Sample(Prompt("moves"), 0, row, video=clip, frame_rate=5.0) for row, clip in enumerate(clips)]
    scores = Scores(names=(), value_BR=torch.zeros(2, 0), valid_BR=torch.zeros(2, 0).bool(), weight_R=torch.ones(0))
    folder = write_samples(tmp_path / "samples", samples, scores)
    assert [line["file"] for line in lines(folder / "samples.jsonl")] == ["0000.mp4", "0001.mp4"]
    frames, rate = decoded((folder / "0001.mp4").read_bytes(), max_pixels=2**26)
    assert rate == 5.0
    shades = [int(np.asarray(frame.convert("L")).mean().round()) for frame in frames]
    assert shades == pytest.approx([20, 80, 140], abs=2)
    with Image.open(folder / "frames.png") as sheet:
        pixels = np.asarray(sheet)[..., 0]
    assert [[pixels[36 + 72 * row, 64 + 130 * n] for n in range(3)] for row in (0, 1)] == [[0, 60, 120], [20, 80, 140]]
