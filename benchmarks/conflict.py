"""Two conflicting rewards on a policy of four letters: their sum, GDPO, and a gate.

``many`` gives 5 for four letters a, ``last`` 1 for a b at the end: only one can have the last letter. In the raw sum
the larger one takes it; normalized by group (GDPO, arXiv:2601.05242, sec. 3) both count alike, and the last letter is
most of the reward ``last`` and a quarter of ``many``.

``easy`` gives 3 for four letters e, ``right`` 1 for a in the first two places. In the raw sum the easy one wins; gated
by the other (the paper's conditioned rewards: one counts only where that of higher priority is met) both rise,
``right`` first.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mmgrpo import Trainer
from mmgrpo.scoring import Gate, NamedReward
from mmgrpo.types import Prompt, Sample
from tests.policies.letters import letters

Curves = dict[str, list[float]]

STEPS = 60


def many(samples: Sequence[Sample]) -> list[float]:
    """5 for four letters a."""
    return [5 * (sample.text or "").count("a") / 4 for sample in samples]


def last(samples: Sequence[Sample]) -> list[float]:
    """1 for a b at the end."""
    return [float((sample.text or "").endswith("b")) for sample in samples]


def easy(samples: Sequence[Sample]) -> list[float]:
    """3 for four letters e."""
    return [3 * (sample.text or "").count("e") / 4 for sample in samples]


def right(samples: Sequence[Sample]) -> list[float]:
    """1 for a in the first two places, a half for one of them."""
    return [(sample.text or "")[:2].count("a") / 2 for sample in samples]


GATED = NamedReward("easy", easy, gate=Gate("right", at_least=1.0, otherwise="zero"))
RUNS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "sum": ([many, last], {}),
    "gdpo": ([many, last], {"scale": "gdpo"}),
    "sum, easy": ([easy, right], {}),
    "gated": ([GATED, right], {}),
}
"""Rewards, and the section ``advantage``, of each run."""


def curves_of(name: str, output: Path, *, steps: int = STEPS) -> Curves:
    """Trains, and gives every number under ``reward/`` at every step."""
    rewards, advantage = RUNS[name]
    config = {
        "about": {"name": name.replace(", ", "-")},
        "output": str(output),
        "steps": steps,
        "rollout": {"prompts_per_step": 4, "group_size": 32},
        "advantage": advantage,
        "update": {"optimizer": {"lr": 0.2}},
    }
    folder = Trainer(letters(), rewards, [Prompt(text) for text in "wxyz"], config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {key: [line[key] for line in lines] for key in lines[0] if key.startswith("reward/")}


def main() -> None:
    """Prints the curves, every tenth of the run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--output", type=Path, help="folder of the run folders; a temporary one if not given")
    options = parser.parse_args()
    with TemporaryDirectory() as temporary:
        for name in RUNS:
            curves = curves_of(name, options.output or Path(temporary), steps=options.steps)
            for key, values in curves.items():
                if key.count("/") == 2 and key.endswith(("/mean", "/gated_frac")):
                    printed_values = [*values[:: max(len(values) // 10, 1)], values[-1]]
                    print(f"{name:<10} {key:<24} {'  '.join(f'{value:.2f}' for value in printed_values)}")


if __name__ == "__main__":
    main()
