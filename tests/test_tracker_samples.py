"""Evaluations in the trackers, read back from the files that they write."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from accelerate import Accelerator
from PIL import Image

from mmgrpo.config import RunConfig
from mmgrpo.distributed.trackers import Trackers
from mmgrpo.runs.sample_logging import log_samples
from mmgrpo.types import Prompt, Sample, Scores

SCORES = Scores(
    names=("right", "judge"),
    weight_R=torch.ones(2),
    value_BR=torch.tensor([[1.0, 0.25], [0.0, 0.5]]),
    valid_BR=torch.tensor([[True, True], [False, True]]),
    explanations={},
)
PICTURES = [Sample(Prompt("a | b"), 0, n, image=Image.new("RGB", (8, 8), c)) for n, c in enumerate(("red", "blue"))]
TEXTS = [Sample(Prompt("a | b"), 0, n, text=text) for n, text in enumerate(("one\ntwo", "<b>2</b>"))]


def log_evaluations(tracker: str, folder: Path) -> None:
    """An evaluation of images at step 0, and one of texts at step 3, in a tracker."""
    accelerator = Accelerator(cpu=True, log_with=[tracker], project_dir=str(folder))
    trackers = Trackers(accelerator)
    trackers.start(RunConfig.model_validate({"about": {"name": "shown"}}), folder)
    log_samples(trackers, 0, PICTURES, SCORES)
    trackers.log({"eval/right/mean": 1.0}, step=3)
    log_samples(trackers, 3, TEXTS, SCORES)
    assert trackers.finish() == []


def test_tensorboard_has_a_sheet_of_images_and_a_table_of_texts(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    log_evaluations("tensorboard", tmp_path)
    file = min(tmp_path.rglob("*tfevents*"), key=lambda path: len(path.parts))  # settings have a separate one
    events = EventAccumulator(str(file.parent), size_guidance={"images": 0, "tensors": 0}).Reload()
    (picture,) = events.Images("evaluation/images")
    assert picture.step == 0
    sheet = Image.open(io.BytesIO(picture.encoded_image_string)).convert("RGB")
    assert [sheet.getpixel((72 + 136 * number, 72)) for number in range(2)] == [(255, 0, 0), (0, 0, 255)]
    (text,) = events.Tensors("evaluation/texts/text_summary")
    assert text.step == 3
    assert text.tensor_proto.string_val[0].decode().splitlines() == [
        "| prompt | text | right | judge |",
        "| --- | --- | --- | --- |",
        "| a \\| b | one<br>two | 1 | 0.25 |",
        "| a \\| b | <b>2</b> |  | 0.5 |",
    ]


def in_a_process(tracker: str, folder: Path, cwd: Path | None = None, **environment: str) -> None:
    imports = "from pathlib import Path; from tests.test_tracker_samples import log_evaluations"
    call = f"{imports}; log_evaluations({tracker!r}, Path({str(folder)!r}))"
    surroundings = {**os.environ, "PYTHONPATH": str(Path.cwd()), "OMP_NUM_THREADS": "1", **environment}
    done = subprocess.run([sys.executable, "-c", call], cwd=cwd or folder, env=surroundings, capture_output=True,
                          text=True, timeout=200)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.nightly
def test_wandb_offline_has_images_and_a_table(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    elsewhere, tmp_path = tmp_path, tmp_path / "run"
    tmp_path.mkdir()
    in_a_process("wandb", tmp_path, elsewhere, WANDB_MODE="offline", WANDB_SILENT="true")
    assert list(elsewhere.iterdir()) == [tmp_path]
    pictures = sorted(tmp_path.rglob("media/images/**/*.png"))
    colours = {Image.open(path).convert("RGB").getpixel((4, 4)) for path in pictures}
    assert colours == {(255, 0, 0), (0, 0, 255)}
    (table,) = map(json.loads, [path.read_text() for path in tmp_path.rglob("media/table/**/*.table.json")])
    assert table["columns"] == ["prompt", "text", "right", "judge"]
    assert table["data"] == [["a | b", "one\ntwo", 1.0, 0.25], ["a | b", "<b>2</b>", None, 0.5]]


@pytest.mark.slow
def test_trackio_has_a_sheet_and_a_table(tmp_path: Path) -> None:
    pytest.importorskip("trackio")
    in_a_process("trackio", tmp_path, TRACKIO_DIR=str(tmp_path / "kept"))
    (sheet,) = (tmp_path / "kept").rglob("*.png")
    assert Image.open(sheet).convert("RGB").getpixel((72, 72)) == (255, 0, 0)
    stored = b"".join(path.read_bytes() for path in (tmp_path / "kept").rglob("*.db*"))
    assert b"one\\ntwo" in stored
    assert b"evaluation/images" in stored
