"""Whether a change leaves every update as it was: bitwise comparison of short runs of this tree and another commit.

python -m benchmarks.no_change BASE [--configs NAME ...] [--steps 3] [--set key=value ...] [--set-base key=value ...]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmgrpo.config.loading import load_config
from mmgrpo.config.tasks import OF_RUN, inherited_keys

ROOT = Path(__file__).parents[1]
QUICKSTARTS = ("quickstart/digits-image", "quickstart/arithmetic-text", "quickstart/digits-vlm")
SHORTENED = ("seed=0", "update.warmup.steps=20", "rollout.prompts_per_step=4", "evaluation=null")
CLOCK = "time/"

HEADER = f"{'config':28} {'weights':>9} {'lines':>6} {'numbers':>8} {'differ':>7}"
LEGEND = """\
weights: of the last checkpoint, by SHA-256; lines and numbers: of metrics.jsonl, without times.
differ: numbers of the other commit that are different or missing here; metrics logged only here do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """The result of a run.

    Attributes:
        weights: SHA-256 of the weights of the last checkpoint, of each task in a mixed run.
        lines: the logged metrics of every update, without times.
        seconds: of each step: rollout, rewards and all updates, of all tasks.
    """

    weights: str
    lines: tuple[Mapping[str, Any], ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A run of this tree compared with that of the other commit.

    Attributes:
        weights: whether they are bitwise equal.
        num_lines: lines of the other commit's metrics.
        num_numbers: numbers in them.
        differing: the differences, each with the line, the name and both numbers.
        added: names of metrics that only this tree logs.
    """

    weights: bool
    num_lines: int
    num_numbers: int
    differing: tuple[str, ...]
    added: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether nothing differs."""
        return self.weights and not self.differing


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs, compares and prints; 1 at any difference."""
    options = _parser().parse_args(arguments)
    overrides = [*SHORTENED, f"steps={options.steps}", *options.set]
    print(f"this tree against {options.base}: {' '.join(overrides)}\n{HEADER}")
    result = []
    with checked_out(options.base) as base:
        for config in options.configs:
            shared = for_tasks(config, overrides)
            comparison = compare(train(ROOT, config, shared), train(base, config, [*shared, *options.set_base]))
            print(_table_row(config, comparison), flush=True)
            result.append(comparison)
    print(LEGEND)
    return 0 if all(comparison.same for comparison in result) else 1


def for_tasks(config: str, overrides: Sequence[str]) -> list[str]:
    """The overrides of a run; in a mixed run, those of a task's sections for every task that may set them.

    Raises: ValueError for a series, which is several runs.
    """
    loaded = load_config(config)
    if loaded.series:
        raise ValueError(f"{config} is a series of runs: compare the configuration of each run alone")
    if not loaded.mixed:
        return list(overrides)
    of_run = [override for override in overrides if _is_under(override, OF_RUN)]
    return of_run + [
        f"tasks.{name}.{override}"
        for name, values in loaded.mixed.items()
        for override in overrides
        if not _is_under(override, inherited_keys(values.get("rollout", {}).get("task")))
    ]


def _is_under(override: str, keys: Sequence[str]) -> bool:
    return any(f"{override.partition('=')[0]}.".startswith(f"{key}.") for key in keys)


def train(tree: Path, config: str, overrides: Sequence[str]) -> Trained:
    """Trains a configuration with the code of a tree, in a separate process.

    Raises: RuntimeError with the end of its output, if the run failed.
    """
    with tempfile.TemporaryDirectory() as output:
        command = [sys.executable, "-m", "mmgrpo", "train", config, *overrides, f"output={output}"]
        environment = os.environ | {"PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
        run = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        if run.returncode != 0:
            raise RuntimeError(f"{config} in {tree} ended with {run.returncode}:\n{(run.stdout + run.stderr)[-3000:]}")
        (folder,) = Path(output).iterdir()
        return read(folder)


def read(folder: Path) -> Trained:
    """The result in a run folder, which has the folders of its tasks, if there are any."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = tuple({name: value for name, value in line.items() if not _is_clock(name)} for line in lines)
    return Trained(weights=_hash(folder), lines=timeless, seconds=_seconds(lines))


def _is_clock(name: str) -> bool:
    return f"/{CLOCK}" in f"/{name}"


def compare(here: Trained, base: Trained) -> Comparison:
    """The differences from the run of the other commit."""
    differing = [f"{len(here.lines)} lines of metrics, not {len(base.lines)}"] * (len(here.lines) != len(base.lines))
    for number, (actual, other) in enumerate(zip(here.lines, base.lines, strict=False)):
        for name, value in other.items():
            # as text: NaN is itself, and -0.0 is not 0.0
            if repr(actual.get(name)) != repr(value):
                differing.append(f"line {number}: {name} is {actual.get(name)}, was {value}")
    added = {name for line in here.lines for name in line} - {name for line in base.lines for name in line}
    return Comparison(
        weights=here.weights == base.weights,
        num_lines=len(base.lines),
        num_numbers=sum(map(len, base.lines)),
        differing=tuple(differing),
        added=tuple(sorted(added)),
    )


def _seconds(lines: Sequence[Mapping[str, Any]]) -> tuple[float, ...]:
    steps: dict[int, dict[str, float]] = {}
    for line in lines:
        task = f"{line['task']}/" if "task" in line else ""
        rollout_s, reward_s, update_s = (line[f"{task}time/{part}_s"] for part in ("rollout", "reward", "update"))
        of_tasks = steps.setdefault(line["step"], {})
        of_tasks[task] = of_tasks.get(task, rollout_s + reward_s) + update_s
    return tuple(sum(of_tasks.values()) for of_tasks in steps.values())


def _hash(folder: Path) -> str:
    checkpoints = sorted(folder.rglob("checkpoints"))
    newest = [sorted(each.iterdir())[-1] for each in checkpoints]
    files = [sorted((each / "policy").rglob("*.safetensors")) for each in newest]
    if not any(files):
        raise RuntimeError(f"{folder} holds no weights in {', '.join(map(str, newest)) or 'any checkpoint'}")
    return hashlib.sha256(b"".join(file.read_bytes() for each in files for file in each)).hexdigest()


@contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """The tree of a commit of this repository, for as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def _table_row(config: str, result: Comparison) -> str:
    weights = "same" if result.weights else "DIFFERENT"
    lines = [f"{config:28} {weights:>9} {result.num_lines:6} {result.num_numbers:8} {len(result.differing):7}"]
    lines += [f"    {each}" for each in result.differing[:10]]
    if result.added:
        lines.append(f"    logged only here: {', '.join(result.added)}")
    return "\n".join(lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("--configs", nargs="+", default=QUICKSTARTS, help="files or shipped names")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--set", nargs="*", default=[], help="further overrides, a.b=c, for both")
    parser.add_argument(
        "--set-base", nargs="*", default=[], help="further overrides for the other commit, whose keys may differ"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
