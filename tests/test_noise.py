"""Messages of libraries before and between the lines of a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.tiny.language_models import make
from tests.tiny.pipelines import PIPELINES

OF_THE_MACHINE = ("xformers", "[real_accelerator.py")  # packages that do not fit it say so when they are found


def first_lines(tmp_path: Path, policy: dict[str, object], reward: dict[str, object]) -> tuple[list[str], list[str]]:
    """A run of one step from files, as a program that is piped sees it: its lines, and those on the error stream."""
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n")
    config = {
        "steps": 1,
        "output": str(tmp_path / "runs"),
        "policy": policy,
        "prompts": {"source": str(tmp_path / "prompts.txt")},
        "rewards": [reward],
        "rollout": {"prompts_per_step": 1, "group_size": 2},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(config))
    call = [sys.executable, "-m", "mmgrpo.cli", "train", str(tmp_path / "run.yaml")]
    env = {name: value for name, value in os.environ.items() if name not in ("TQDM_DISABLE", "PYTHONWARNINGS")}
    done = subprocess.run(call, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr
    paragraphs = done.stderr.replace("\n ", " ").splitlines()  # a warning and its further lines are one
    return done.stdout.splitlines(), [
        line for line in paragraphs if not any(word in line.lower() for word in OF_THE_MACHINE)
    ]


@pytest.mark.nightly
def test_a_pipeline_from_a_folder(tmp_path: Path) -> None:
    PIPELINES["sd3"].build().save_pretrained(tmp_path / "model")
    call = {"height": 16, "width": 16, "num_inference_steps": 4}
    policy = {"name": "denoising", "model": str(tmp_path / "model"), "gradient_checkpointing": True, "call": call}
    output, noise = first_lines(tmp_path, {**policy, "lora": {"rank": 2}}, {"name": "brightness"})
    assert output[0] == f"run folder: {tmp_path / 'runs/run'}"
    assert noise == [f"loading the libraries and {tmp_path / 'model'} ..."]


@pytest.mark.nightly
def test_a_language_model_from_a_folder(tmp_path: Path) -> None:
    model, processor = make("llama")
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    policy = {"name": "language", "model": str(tmp_path / "model"), "gradient_checkpointing": True, "max_new_tokens": 4}
    output, noise = first_lines(tmp_path, policy, {"name": "overlong", "max_length": 4, "margin": 2})  # pyrefly: ignore[bad-argument-type]
    assert output[0] == f"run folder: {tmp_path / 'runs/run'}"
    assert noise == [f"loading the libraries and {tmp_path / 'model'} ..."]
