"""Differences of runs on two and three processes from one, with replicated and sharded models.

    python -m benchmarks.world_sizes --into /tmp/worlds

Every scenario of ``tests/test_world_sizes.py`` with three times as many groups, which one, two and three processes can
share. Compared with one process: the final weights, relative to their norm, and the mean rewards of every step.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

PROCESSES = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Way:
    """How the scenarios are run.

    Attributes:
        processes: how many.
        sharded: whether the model is sharded over them.
        trains: all weights, or adapters.
    """

    processes: int
    sharded: bool
    trains: str

    @property
    def name(self) -> str:
        """Of its file and its column."""
        return f"{self.trains}-{self.processes}{'-fsdp2' if self.sharded else ''}"


WAYS = tuple(
    Way(processes, sharded, trains)
    for trains in ("all", "adapters")
    for processes in PROCESSES
    for sharded in (False, True)
    if processes > 1 or not sharded
)

Outcome = tuple[Tensor, list[dict[str, Any]]]
"""The weights at the end, and the lines of the log."""


def started(way: Way, into: Path, names: Sequence[str]) -> Path:
    """Runs the scenarios in separate processes, unless their result exists; returns its file."""
    result = into / f"{way.name}.pt"
    if not result.exists():
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={way.processes}", "--standalone"]
        command += ["-m", "benchmarks.world_sizes", "--way", way.name, "--into", str(into), "--only", *names]
        environment = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "MMGRPO_TIMES": "3", "FSDP_VERSION": "2"}
        environment |= {"ACCELERATE_USE_FSDP": str(way.sharded).lower()}
        with (into / f"{way.name}.log").open("w") as log:
            subprocess.run(command, env={**os.environ, **environment}, stdout=log, stderr=log, check=True)
    return result


def run(way: Way, into: Path, names: Sequence[str]) -> None:
    """The scenarios in this process, one of several; the main one writes the results."""
    from tests import test_sharding, test_world_sizes

    if way.trains == "adapters":
        test_sharding.with_adapters()
    result: dict[str, Outcome] = {}
    for name in names or test_world_sizes.SCENARIOS:
        torch.manual_seed(0)
        trainer = test_world_sizes.SCENARIOS[name](into / "runs" / way.name / name)
        result[name] = test_world_sizes.outcome(trainer)
    if os.environ["RANK"] == "0":
        torch.save(result, into / f"{way.name}.pt")


def apart(outcome: Outcome, other: Outcome) -> tuple[float, float]:
    """The difference of the weights relative to their norm, and the largest difference of a mean reward."""
    rewards = [[line["reward/mean"] for line in lines if "reward/mean" in line] for _, lines in (outcome, other)]
    distance = float((other[0] - outcome[0]).norm() / outcome[0].norm())
    return distance, max((abs(a - b) for a, b in zip(*rewards, strict=True)), default=0.0)


def table(result: Mapping[str, Mapping[str, Outcome]]) -> Iterator[str]:
    """A row per scenario, a column per way, except the ways that the others are compared with."""
    others = [way for way in WAYS if way.processes > 1]
    yield "| scenario | " + " | ".join(way.name for way in others) + " |"
    yield "| --- |" + " --- |" * len(others)
    for name in result["all-1"]:
        cells = []
        for way in others:
            distance, reward = apart(result[f"{way.trains}-1"][name], result[way.name][name])
            cells.append(f"{distance:.0e}" + (f" (rewards {reward:.0e})" if reward > 1e-6 else ""))
        yield f"| {name} | " + " | ".join(cells) + " |"


def main() -> None:
    """Runs the missing scenarios, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True, help="folder of the results")
    parser.add_argument("--only", nargs="*", default=[], help="these scenarios")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        run(next(way for way in WAYS if way.name == options.way), options.into, options.only)
        return
    options.into.mkdir(parents=True, exist_ok=True)
    result = {way.name: torch.load(started(way, options.into, options.only), weights_only=False) for way in WAYS}
    print("\n".join(table(result)))


if __name__ == "__main__":
    main()
