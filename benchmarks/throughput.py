"""Two processes of one thread compared with one: seconds of rollouts, updates and supervised steps of digits-image.

    python -m benchmarks.throughput

Alternating: one, two, one, two. Two processes divide the rows; in addition they sum gradients in each update and
wait for the slower one. As shipped all weights are trained, on few rows; the other cases have more rows, or adapters.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

CASES: Mapping[str, Sequence[str]] = {
    "as shipped": (),
    "4 times the rows": ("rollout.prompts_per_step=40", "update.warmup.batch_size=256"),
    "4 times the rows, adapters": (
        "rollout.prompts_per_step=40",
        "update.warmup.batch_size=256",
        "policy.lora={rank: 16, alpha: 32}",
    ),
}
SHORT = (
    "update.warmup.steps=40",
    "steps=6",
    "evaluation=null",
    "checkpoint.every=null",
)
WARM = 2  # steps that are not counted


def seconds(num_processes: int, settings: Sequence[str]) -> tuple[float, float, float]:
    """Of a rollout, of a step's updates and of a supervised step, each their mean in a run."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={num_processes}", "--standalone"]
        command += ["-m", "mmgrpo.cli", "train", "quickstart/digits-image", *SHORT, *settings, f"output={folder}"]
        environment = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
        subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
        (run,) = Path(folder).iterdir()
        steps, supervised = (_lines(run / name) for name in ("metrics.jsonl", "warmup.jsonl"))
    counted = [line for line in steps if line["step"] > WARM]
    num_steps = len({line["step"] for line in counted})
    rollout = sum(line["time/rollout_s"] for line in counted if not line["update"]) / num_steps
    update = sum(line["time/update_s"] for line in counted) / num_steps
    first, last = supervised[1], supervised[-1]
    return rollout, update, (last["time_s"] - first["time_s"]) / (last["step"] - first["step"])


def _lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    """Prints a row per case and part."""
    print("| case | | one process, s | two, s | ratio |\n| --- | --- | --- | --- | --- |")
    for name, settings in CASES.items():
        result = [seconds(num, settings) for num in (1, 2, 1, 2)]
        for part, times in zip(("rollout", "updates", "a supervised step"), zip(*result, strict=True), strict=True):
            single, two = times[::2], times[1::2]
            cells = [", ".join(f"{time:.3g}" for time in each) for each in (single, two)]
            print(f"| {name} | {part} | {cells[0]} | {cells[1]} | {sum(single) / sum(two):.2f} |", flush=True)


if __name__ == "__main__":
    main()
