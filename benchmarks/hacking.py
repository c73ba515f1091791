"""A reward that can be hacked, on the digits model: it rises, accuracy that is not trained on falls, the alarm rings.

``quickstart/digits-image``, warmed up on true captions and then trained on how bright its pictures are in place of the
verifier. A bright picture is no digit. On fixed seeds, beside it, the held-out judge says how many of the pictures it
still reads as the digit that was asked for. The run is made three times from the same weights: as it is, with
``evaluation.watchdog.stop: [hacking]``, and with the knob that the alarm names, ``objective.kl.beta``, turned up.
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
    "held": {"objective.kl.beta": 10.0},
}
"""What differs between the runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a run left.

    Attributes:
        folder: of the run.
        status: how it ended.
        trained: mean of the trained reward at every step.
        held_out: held-out accuracy by the step it was judged at.
        alarms: the lines of ``alarms.jsonl``.
    """

    folder: Path
    status: str
    trained: dict[int, float]
    held_out: dict[int, float]
    alarms: list[dict[str, Any]]


def warmed_up(output: Path, *, steps: int = 1500) -> Path:
    """Weights of the digits model after supervised steps on true captions."""
    warmup = {"update.warmup.steps": steps, "update.warmup.examples": {"name": "mislabeled_digits", "fraction": 0.0}}
    return _train({"about.name": "warm", "steps": 0, "evaluation": None, **warmup}, output, None)


def run(name: str, warm: Path, output: Path, *, reward: str = "brightness", **changed: Any) -> Ran:
    """Trains on the reward from the warmed-up weights, as ``RUNS`` says, with further changed keys."""
    changes = {**HACKED, "about.name": name, "rewards": [{"name": reward}], **RUNS[name], **changed}
    folder = _train(changes, output, warm)
    alarms = folder / "alarms.jsonl"
    return Ran(
        folder=folder,
        status=json.loads((folder / "run.json").read_text())["status"],
        trained={line["step"]: line["reward/mean"] for line in _lines(folder / "metrics.jsonl")},
        held_out={line["step"]: line["eval/held_out_accuracy/mean"] for line in _lines(folder / "evaluation.jsonl")},
        alarms=_lines(alarms) if alarms.exists() else [],
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
    """Prints, of each run, the two curves at the evaluations, the alarms, and how it ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reward", default="brightness", help="what is trained on: brightness, jpeg_size, sharpness")
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
            for alarm in result.alarms:
                print(f"  step {alarm['step']}: {alarm['kind']}: {alarm['measured']}; {alarm['cure']}")


if __name__ == "__main__":
    main()
