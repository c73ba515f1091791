"""The small runs that faults are tried on, of images and of texts, with all in play that a checkpoint must keep."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from mmgrpo.examples.digits import digit_prompts
from torch import nn

from mmgrpo import Trainer
from mmgrpo.policy import Policy
from mmgrpo.runs.checkpoint import ASIDE, FOLDER, MANIFEST, TRAINING, list_checkpoints
from mmgrpo.system.files import read_lines
from mmgrpo.types import Prompt, Sample
from tests.policies.tiny_language import policy_of
from tests.test_trainer import BASE, brightness, make_policy

LINES = ("metrics", "evaluation", "warmup", "alerts", "skipped")
NUM_CHECKPOINTS = 2
DIGITS = "python:mmgrpo.examples.digits:digit_prompts"
ALL: dict[str, Any] = {
    "steps": 3,
    "checkpoint": {"every": 1, "warmup_every": 2, "keep": NUM_CHECKPOINTS},
    "evaluation": {
        "watchdog": {
            "window": 2,
            "alerts": [{"name": "on_policy_gap", "limit": 1e-12}, {"name": "dead_groups", "limit": 1e-9}],
        }
    },
    "schedules": {"objective.kl.beta": {"name": "adaptive_kl", "target": 1e-6}},
    "prompts": {"sampler": {"name": "skip_settled", "right": 100, "wrong": 0, "start": 0.5}},
    "runtime": {"device": "cpu", "heartbeat_timeout_s": 10},
}
TEXTS = ("say one", "say a long word", "what number is this", "name a fruit that is red", "count")
Reward = Callable[[Sequence[Sample]], Sequence[float | None]]


@dataclass(frozen=True, slots=True)
class Case:
    """A run that faults are tried on.

    Attributes:
        name: of the policy.
        make: the trainer, from its folder, its checkpoint and its reward.
        reward: its usual reward.
        module: of the policy, one that every forward calls.
    """

    name: str
    make: Callable[[Path, Path | None, Reward], Trainer]
    reward: Reward
    module: Callable[[Policy], nn.Module]


def prompts() -> list[Prompt]:
    """What is written about."""
    return [Prompt(text) for text in TEXTS]


def lengths(samples: Sequence[Sample]) -> list[float | None]:
    """Tokens of each text; the last member of every other group has no reward."""
    return [None if s.member == 2 and s.group % 2 else len(s.tokens or ()) + 0.1 * s.member for s in samples]


def images(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Full weights, an average of them, random windows, a warm-up on images."""
    values = {
        **BASE,
        **ALL,
        "output": str(output),
        "checkpoint": {**ALL["checkpoint"], "best": "brightness"},
        "update": {
            **BASE["update"],
            "warmup": {"examples": {"name": "mislabeled_digits", "fraction": 0.45}, "steps": 4, "batch_size": 4},
        },
        "evaluation": {**ALL["evaluation"], "prompts": {"source": DIGITS, "limit": 2}, "every": 2},
    }
    return Trainer(make_policy(), {"brightness": reward}, digit_prompts(), values, resume=resume)


def texts(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Adapters, an average of them, replayed rows, a warm-up on texts."""
    values = {
        **ALL,
        "output": str(output),
        "checkpoint": {**ALL["checkpoint"], "best": "length"},
        "rollout": {"prompts_per_step": 2, "group_size": 3, "strategy": {"name": "with_replay", "num": 1}},
        "objective": {"kl": {"divergence": "k3", "beta": 0.1}},
        "update": {
            "minibatches": 2,
            "optimizer": {"lr": 1e-3},
            "ema": {"decay": 0.5},
            "warmup": {"examples": "python:tests.test_world_sizes:read_aloud", "steps": 4, "batch_size": 4},
        },
        "evaluation": {
            **ALL["evaluation"],
            "prompts": {"source": "python:tests.faults.runs:prompts", "limit": 2},
            "every": 2,
        },
    }
    policy = policy_of("llama", lora={"rank": 2, "alpha": 4})
    return Trainer(policy, {"length": reward}, prompts(), values, resume=resume)


CASES = {
    "denoising": Case("denoising", images, brightness, lambda policy: policy.pipeline.transformer),  # pyrefly: ignore[missing-attribute]
    "language": Case("language", texts, lengths, lambda policy: policy.model.get_input_embeddings()),  # pyrefly: ignore[missing-attribute]
}


def run_state(folder: Path) -> dict[str, Any]:
    """All files of a run, without times and checkpoints that were put aside."""
    rows = {name: read_lines(folder / f"{name}.jsonl") for name in LINES}
    return {
        "lines": {
            name: [
                {k: v for k, v in row.items() if not any(part.startswith("time") for part in k.split("/"))}
                for row in result.rows
            ]
            for name, result in rows.items()
        },
        "unreadable": sum(result.num_dropped for result in rows.values()),
        "checkpoints": {checkpoint.name: _hashes(checkpoint) for checkpoint in list_checkpoints(folder)},
        "files": sorted(
            str(path.relative_to(folder))
            for path in folder.rglob("*")
            if not path.is_relative_to(folder / FOLDER / ASIDE)
        ),
        "samples": {
            str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in sorted((folder / "samples").rglob("*"))
            if path.is_file()
        },
        "status": json.loads((folder / "run.json").read_text())["status"],
    }


def differing(value: Any, other: Any, where: str = "") -> Iterator[str]:
    """The places at which two records are not the same."""
    if isinstance(value, dict) and isinstance(other, dict) and value.keys() == other.keys():
        for key in value:
            yield from differing(value[key], other[key], f"{where}/{key}")
    elif isinstance(value, list) and isinstance(other, list) and len(value) == len(other):
        for number, pair in enumerate(zip(value, other, strict=True)):
            yield from differing(*pair, f"{where}/{number}")
    elif value != other:
        yield f"{where}: {value!s:.300} instead of {other!s:.300}"


def _hashes(checkpoint: Path) -> dict[str, str]:
    """The hash of each file, of what it says where that can be written in several ways."""
    written: dict[str, str] = json.loads((checkpoint / MANIFEST).read_text())["sha256"]
    state = torch.load(checkpoint / TRAINING, weights_only=True)
    return written | {TRAINING: hashlib.sha256("\n".join(_flattened(state)).encode()).hexdigest()}


def _flattened(value: Any, where: str = "") -> Iterator[str]:
    """Everything in a state, a line each; pickles also say which of equal texts are one object."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flattened(inner, f"{where}/{key!r}")
    elif isinstance(value, list | tuple):
        yield f"{where}: {type(value).__name__} of {len(value)}"
        for number, inner in enumerate(value):
            yield from _flattened(inner, f"{where}/{number}")
    elif isinstance(value, torch.Tensor):
        yield f"{where}: {value.dtype} {tuple(value.shape)} {value.tolist()!r}"
    else:
        yield f"{where}: {value!r}"
