"""Disturbs training runs, removes the cause, resumes, and compares bitwise with undisturbed runs.

    python -m tests.fault_trials --trials 200 --seed 0

A trial is a run of a small policy (images with all weights, texts with adapters; each with a warm-up, an average of the
weights, a sampler and a controller with memory, and evaluations) and a fault; the seed determines its kind and time.
The disturbed session must end regularly, as signaled, or with an error that names the setting to change. The final
state of the resumed run (weights, optimizer, memory, every line and sample) must be that of an undisturbed run.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from mmgrpo import Trainer
from mmgrpo.runs.folder import run_status
from mmgrpo.types import Sample
from tests.faults.disturbed import FAULTS, IN_PARTS, OF_TWO, UndisturbedRun, settled
from tests.faults.runs import CASES, Case, differing, run_state
from tests.faults.sittings import CLEAR, DONE, INTERRUPTED, Place, placed, sit, sit_both, watched

MEMORY = "/dev/shm"  # a killed process loses nothing that it wrote, and syncing a disk takes most of the time
SAYS_WHAT_TO_DO = ("start the run again", "starting again")
"""Of a run whose only checkpoint is damaged."""


def undisturbed_run(case: Case, place: Place) -> UndisturbedRun:
    """The run that the others are compared with."""
    counted = place.root / "counted"

    def within(trainer: Trainer) -> None:
        case.module(trainer.policy).register_forward_pre_hook(lambda *_: _note(counted, "forward"))

    def reward(samples: Sequence[Sample]) -> Sequence[float | None]:
        _note(counted, "asked")
        return case.reward(samples)

    sitting = sit(case, place, before=watched(place), within=within, reward=reward)
    assert sitting.code == DONE, sitting.output
    counts = Counter(counted.read_text().split())
    num_bytes = sum(path.stat().st_size for path in place.run.rglob("*") if path.is_file())
    left, events = run_state(place.run), tuple(place.events.read_text().splitlines())
    return UndisturbedRun(left, sitting.worked_s, events, num_bytes, counts["forward"], counts["asked"])


def undisturbed_job(case: Case, kind: str, place: Place, undisturbed: UndisturbedRun) -> UndisturbedRun:
    """The same on two processes, whose gradients are added in another order."""
    sitting = sit_both(case, place, in_parts=kind == IN_PARTS)
    assert sitting.code == DONE, sitting.output
    return replace(undisturbed, left=run_state(place.run), duration_s=sitting.worked_s)


def wrongs(
    case: Case, kind: str, place: Place, undisturbed: UndisturbedRun, draw: random.Random
) -> Iterator[tuple[str, str]]:
    """Tries a fault.

    Args:
        case: the run.
        kind: the fault.
        place: where.
        undisturbed: the same run without a fault.
        draw: says when and how.

    Yields:
        tuple[str, str]: first how the disturbed sitting ended; then what was done, and what is wrong for it.
    """
    goes_on = sit if kind in FAULTS else partial(sit_both, in_parts=kind == IN_PARTS)
    result = (FAULTS | OF_TWO)[kind](case, place, undisturbed, draw)
    yield "", _named(result.sitting.code, run_status(place.run))
    if not result.sitting.is_clear:
        yield result.what, f"ended with {result.sitting.code}: {result.sitting.output}"
    if not (place.run / "config.yaml").is_file():  # before there was a run
        shutil.rmtree(place.run, ignore_errors=True)
    last = goes_on(case, place)
    if last.code == CLEAR and any(text in last.output for text in SAYS_WHAT_TO_DO):
        shutil.rmtree(place.run)
        last = goes_on(case, place)
    if last.code != DONE:
        yield result.what, f"resumed and ended with {last.code}: {last.output}"
        return
    for text in islice(differing(run_state(place.run), undisturbed.left), 3):
        yield result.what, text


def _named(code: int, status: str) -> str:
    if code == DONE:
        return "not at all" if status == "finished" else "in order"
    endings = {CLEAR: "a clear error", INTERRUPTED: "at once"}
    return endings.get(code, "killed" if code < 0 else "an unclear error")


def _note(file: Path, word: str) -> None:
    with file.open("a") as log:
        log.write(f"{word}\n")


def table(tried: Counter[tuple[str, str]], wrong: Counter[tuple[str, str]], ends: Counter[tuple[str, str]]) -> str:
    """The trials by policy and fault, in Markdown."""
    names = sorted({name for name, _ in tried})
    heads = ["fault", *names, "other than undisturbed, or unclear", "how the disturbed sitting ended"]
    lines = [f"| {' | '.join(heads)} |", f"|{' --- |' * len(heads)}"]
    for kind in dict.fromkeys(kind for _, kind in tried):
        how = ", ".join(f"{end} {num}" for (of, end), num in sorted(ends.items()) if of == kind)
        cells = [kind, *(str(tried[name, kind]) for name in names), str(sum(wrong[name, kind] for name in names)), how]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trials; returns how many were other than they should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200, help="how many, over all policies and faults in turn")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--in-turn", action="store_true", help="a fault is tried on one policy, the next on the next")
    parser.add_argument("--policies", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=FAULTS)
    parser.add_argument("--of-two", type=int, default=0, help="further trials, of runs on two processes")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    tried, wrong, ends = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as root:
        undisturbed_runs: dict[str, UndisturbedRun] = {}
        for name in options.policies:
            case = CASES[name]
            with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                first = placed(Path(root) / f"{name}-first")
                case.make(first.output, None, case.reward).train()  # imports everything, once for all processes
            undisturbed_runs[name] = undisturbed_run(case, placed(Path(root) / name))
            print(
                f"{name}: {undisturbed_runs[name].duration_s:.1f} s of work, "
                f"{len(undisturbed_runs[name].events)} events",
                flush=True,
            )
        of_two = {
            (name, kind): undisturbed_job(
                CASES[name], kind, placed(Path(root) / f"{name}-{kind}"), undisturbed_runs[name]
            )
            for name in (options.policies if options.of_two else [])
            for kind in OF_TWO
        }
        for number in range(options.trials + options.of_two):
            name = options.policies[number % len(options.policies)]
            kinds, turn = (
                (options.faults, number) if number < options.trials else (list(OF_TWO), number - options.trials)
            )
            kind = kinds[(turn if options.in_turn else turn // len(options.policies)) % len(kinds)]
            place = placed(Path(root) / f"trial-{number}")
            draw = random.Random(f"{options.seed} {number}")
            try:
                undisturbed = of_two[name, kind] if kind in OF_TWO else undisturbed_runs[name]
                (_, end), *result = wrongs(CASES[name], kind, place, undisturbed, draw)
            finally:
                settled(place)
            tried[name, kind] += 1
            wrong[name, kind] += bool(result)
            ends[kind, end] += 1
            for what, text in result:
                print(f"trial {number}, {name}, {kind} ({what}): {text}", flush=True)
            shutil.rmtree(place.root)
    print(table(tried, wrong, ends))
    print(f"{tried.total()} trials, {wrong.total()} of them wrong")
    return wrong.total()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(min(main(), 1))
