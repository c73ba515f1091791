"""A run folder whose every number a test can compute, and the ways to write one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

STEPS = (0, 10, 20)
PROMPTS = ("a picture of the digit three", "<script>alert('four')</script> & \"more\"")
MEMBERS = 3


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def pixels(step: int, request: int) -> np.ndarray:
    return np.random.default_rng((step, request)).integers(0, 256, (8, 8), dtype=np.uint8)


def sample(file: str | None, request: int, reward: float | None, text: str | None = None) -> dict[str, Any]:
    group, member = divmod(request, MEMBERS)
    rewards = {} if reward is None else {"judge": reward}
    return {
        "file": file,
        "prompt": PROMPTS[group],
        "group": group,
        "member": member,
        "text": text,
        "rewards": rewards,
    }


def write_run(run: Path) -> None:
    """Three evaluated steps of two prompts by three members, 8 x 8 each, and three training steps of two updates."""
    for step in STEPS:
        folder = run / f"samples/step-{step:06d}"
        folder.mkdir(parents=True)
        for request in range(2 * MEMBERS):
            Image.fromarray(pixels(step, request)).save(folder / f"{request:04d}.png")
        before_and_after = 0.25 if step == 0 else 0.75  # of the first prompt; the second earns 0.5 throughout
        rewards = [before_and_after] * MEMBERS + [0.5] * MEMBERS
        records = [sample(f"{r:04d}.png", r, reward) for r, reward in enumerate(rewards)]
        write_lines(folder / "samples.jsonl", records)
    (run / "config.yaml").write_text(
        "about: {note: the low start is <b>made</b> on purpose}\npolicy:\n  path: http://hub/x\n"
    )
    about = {
        "name": "digits",
        "command": "mmgrpo train digits.yaml",
        "started": "2026-11-20T14:00:00+00:00",
        "finished": "2026-11-20T14:02:29+00:00",
        "status": "finished",
        "seed": 7,
        "versions": {"torch": "2.15.0"},
        "explain": "A = (r - mean) / std",
    }
    (run / "run.json").write_text(json.dumps(about))
    metrics = [
        {
            "step": step,
            "update": update,
            "reward/mean": 0.25 * step,
            "reward/std": 0.5,
            "reward/judge/mean": 0.25 * step,
            "reward/judge/failed_frac": 0.125 if step == 2 else 0.0,
            "policy/loss": 0.5,
            "policy/clip_low_frac": 0.2 * update,
            "policy/clip_high_frac": 0.1 * update,
            "policy/on_policy_gap": 1e-7,
            "optimizer/grad_norm": float("nan") if (step, update) == (2, 1) else 1.0,
            "time/rollout_s": 2.0,
            "time/reward_s": 0.5,
            "time/update_s": 1.0,
            "count/forwards_per_sample": 9.0 * (update + 1),
            "policy/entropy_mean": 0.3,
            "samples/kept": 1.0,
        }
        for step in (1, 2, 3)
        for update in (0, 1)
    ]
    write_lines(run / "metrics.jsonl", metrics)
    accuracy, recall = (0.56, 0.8, 0.95), (0.78, 0.6, 0.41)
    evaluation = [
        {"step": s, "eval/held_out_accuracy/mean": a, "eval/recall/mean": r, "time/evaluation_s": 4.0}
        for s, a, r in zip(STEPS, accuracy, recall, strict=True)
    ]
    write_lines(run / "evaluation.jsonl", evaluation)
    # the clock starts again after a resume: 10 s and 30 s
    warmup = [{"step": s, "loss": 1 / s, "lr": 1e-3, "time_s": t} for s, t in ((1, 1.0), (50, 10.0), (100, 30.0))]
    warmup.insert(2, {"step": 51, "loss": 0.1, "lr": 1e-3, "time_s": 0.5})
    write_lines(run / "warmup.jsonl", warmup)
    (run / "checkpoints/step-000020").mkdir(parents=True)
