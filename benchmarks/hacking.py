"""Reward hacking on the digits model: the trained reward rises, the held-out accuracy falls, and the watchdog alerts.

``quickstart/digits-image``, warmed up on true captions, then trained on the brightness of its images in place of the
verifier. A bright image is no digit. The held-out accuracy, on fixed seeds, is the share of images in which a
classifier reads the digit of the prompt. Three runs start from the same weights: one as it is, one with
``evaluation.watchdog.stop: [hacking]``, and one with a higher ``objective.kl.beta``, the fix that the alert suggests.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmgrpo import Trainer, load_config
from mmgrpo.config import RunConfig
from mmgrpo.data.prompt_loading import load_prompts_of
from mmgrpo.runs.checkpoint import weights_folder
from mmgrpo.training.build import build_policy, build_rewards

HACKED: Mapping[str, Any] = {
    "update.warmup": None,
    "steps": 40,
    "evaluation.every": 5,
    "evaluation.rewards": [{"name": "held_out_judge", "label": "held_out_accuracy"}],
    "evaluation.watchdog": {"window": 4, "held_out": []},
}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "watched": {},
    "stopped": {"evaluation.watchdog.stop": ["hacking"]},
    "penalized": {"objective.kl.beta": 10.0},
}
"""The settings in which the runs differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HackingRun:
    """The curves, the alerts and the end of a run.

    Attributes:
        folder: of the run.
        status: how it ended.
        trained: mean of the trained reward at every step.
        held_out: held-out accuracy by the step of the evaluation.
        alerts: the lines of ``alerts.jsonl``.
    """

    folder: Path
    status: str
    trained: dict[int, float]
    held_out: dict[int, float]
    alerts: list[dict[str, Any]]


def warmed_up(output: Path, *, steps: int = 1500) -> Path:
    """Weights of the digits model after supervised steps on true captions."""
    warmup = {"update.warmup.steps": steps, "update.warmup.examples": {"name": "mislabeled_digits", "fraction": 0.0}}
    return _train({"about.name": "warm", "steps": 0, "evaluation": None, **warmup}, output, None)


def run(name: str, warm: Path, output: Path, *, reward: str = "brightness", **changed: Any) -> HackingRun:
    """Trains on the reward from the warmed-up weights, as ``RUNS`` says, with further changed keys."""
    changes = {**HACKED, "about.name": name, "rewards": [{"name": reward}], **RUNS[name], **changed}
    folder = _train(changes, output, warm)
    alerts = folder / "alerts.jsonl"
    return HackingRun(
        folder=folder,
        status=json.loads((folder / "run.json").read_text())["status"],
        trained={line["step"]: line["reward/mean"] for line in _lines(folder / "metrics.jsonl")},
        held_out={line["step"]: line["eval/held_out_accuracy/mean"] for line in _lines(folder / "evaluation.jsonl")},
        alerts=_lines(alerts) if alerts.exists() else [],
    )


def _train(changes: Mapping[str, Any], output: Path, warm: Path | None) -> Path:
    config: RunConfig = load_config("quickstart/digits-image", {**changes, "output": str(output)})
    policy = build_policy(config, "cpu")
    if warm is not None:
        policy.load(weights_folder(warm))
    return Trainer(policy, build_rewards(config.rewards), load_prompts_of(config.prompts), config).train()


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Prints, of each run, the two curves at the evaluations, the alerts, and how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reward", default="brightness", help="the trained reward: brightness, jpeg_size, sharpness")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, help="folder of the run folders; a temporary one if not given")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        output = options.output or Path(temporary)
        warm = warmed_up(output)
        for name in RUNS:
            result = run(name, warm, output, reward=options.reward, seed=options.seed)
            print(f"{name}: {result.status}")
            for step, accuracy in result.held_out.items():
                print(f"  step {step:>3}  {options.reward} {result.trained.get(step, float('nan')):.3f}"
                      f"  held-out accuracy {accuracy:.3f}")  # fmt: skip
            for alert in result.alerts:
                print(f"  step {alert['step']}: {alert['kind']}: {alert['measured']}; {alert['suggested_fix']}")


if __name__ == "__main__":
    main()
