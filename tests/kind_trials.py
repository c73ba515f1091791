"""Signals at any moment, from loading on, for all kinds of runs; the resumed run equals an undisturbed one.

    python -m tests.kind_trials --trials 200 --seed 0

The kinds: mixed runs, a rewriter with its painter, conversations with and without images, interpreters, a search
server or pages, trees, replay, a critic, a verifier that is fitted while the run loads, a series by the command, and a
comparison by the command. A trial sends SIGKILL, SIGTERM, SIGUSR1, SIGUSR2 or Ctrl-C, once or twice; a third of the
trials while the run loads or fits. Then the run is resumed to its end. Compared bitwise: all lines without times,
weights and states of checkpoints, files, samples, and the status. No process may be left when the interrupted one has
ended.
"""

from __future__ import annotations

import argparse
import ctypes
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, final

import click
import torch
import typer
import yaml
from mmgrpo.examples import digits
from mmgrpo.examples.rewriting import requests
from mmgrpo.rewards.groups.of_task import OfTask
from mmgrpo.rewards.text.environment_return import EnvironmentReturn

from mmgrpo import Trainer
from mmgrpo.cli import app
from mmgrpo.environment import Environment, Turn
from mmgrpo.environments.miniwob_pages import MiniwobEnvironment
from mmgrpo.environments.python import PythonEnvironment
from mmgrpo.environments.search import SearchEnvironment
from mmgrpo.errors import PolicyError
from mmgrpo.runs.stopping import BOUNCE_S, TERMINATING
from mmgrpo.scoring import NamedReward
from mmgrpo.system import interrupts
from mmgrpo.system.process_guard import PR_SET_CHILD_SUBREAPER
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.types import Prompt
from tests.environments.retrieval_server import RetrievalServer, written
from tests.faults.runs import ALL, Case, Reward, differing, lengths, run_state, texts
from tests.faults.sittings import DONE, INTERRUPTED, Place, Sitting, begin, ended, placed, worked_s
from tests.policies.test_language_exchanges import terse
from tests.policies.tiny_language import policy_of, prompts_of
from tests.test_trainer import BASE, make_policy
from tests.test_world_sizes import FLOAT32
from tests.training.test_following import PAINTER, TASKS, prompt_reward, rewriter
from tests.training.test_mixed import spelt
from tests.training.test_token_trees import even_prompts_differ

MEMORY = "/dev/shm"
MAX_SITTINGS = 6
LEFT_S = 10.0
LEFT_RUNNING = 99
"""Code of a sitting that left processes."""
LIMIT_S = 600.0  # a comparison starts processes that import everything
EVERY_STEP = {"checkpoint": {"every": 1, "keep": 2}, "runtime": {"device": "cpu"}, "steps": 3}


def _no_module(policy: Any) -> Any:
    raise PolicyError("these trials look at no module")


def mixed(output: Path, resume: Path | None, reward: Reward) -> Any:
    """Two tasks of one run."""
    return spelt(output, resume=resume, about={"name": "run"}, checkpoint={"every": 1})


def rewritten(output: Path, resume: Path | None, reward: Reward) -> Any:
    """A rewriter whose reward is that of the images of its painter."""
    values = {**EVERY_STEP, "output": str(output), "tasks": {**TASKS, "painter": PAINTER}, "steps": 2}
    return MixedTrainer(
        values,
        policies={"rewriter": rewriter(), "painter": make_policy()},
        rewards={"rewriter": [NamedReward("of_task", OfTask("painter"))], "painter": {"asked": prompt_reward}},
        prompts={"rewriter": requests(), "painter": requests()},
        resume=resume,
    )


def conversations(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Turns with an environment, credited by turns."""
    environment = {"name": "python:tests.test_trainer_exchanges:Asks", "reply": "two red"}
    rollout = {"prompts_per_step": 2, "group_size": 3, "environment": environment, "max_turns": 2}
    values = {**EVERY_STEP, "output": str(output), "rollout": rollout, "update": {"optimizer": {"lr": 1e-3}}}
    policy = policy_of("llama", max_new_tokens=12)
    return Trainer(policy, {"lengths": reward}, prompts_of("llama"), values, resume=resume)


@final
class Totals(Environment):
    """Adds the lengths of turns up in an interpreter of the sandbox, whose names stay between turns."""

    def __init__(self) -> None:
        self._python = PythonEnvironment()

    def reset(self, prompt: Prompt) -> Turn:
        """Starts the interpreter."""
        assert self._python.python("total = 0") == "(no output)"
        return Turn()

    def step(self, text: str) -> Turn:
        """The color that the total determines, and the total as the reward."""
        total = int(self._python.python(f"total += {len(text) + 1}\ntotal"))
        return Turn(text=("two red", "two blue")[total % 2], reward=float(total))

    def close(self) -> None:
        """Ends the interpreter."""
        self._python.close()


def sandboxes(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Turns with an interpreter per sample, a process of the sandbox."""
    return _rewarded_turns(output, resume, reward, {"name": "python:tests.kind_trials:Totals"})


def _rewarded_turns(output: Path, resume: Path | None, reward: Reward, environment: dict[str, Any]) -> Trainer:
    rollout = {"prompts_per_step": 2, "group_size": 3, "environment": environment, "max_turns": 3}
    values = {**EVERY_STEP, "output": str(output), "rollout": rollout, "update": {"optimizer": {"lr": 1e-3}}}
    rewards = {"lengths": reward, "environment_return": EnvironmentReturn()}
    return Trainer(policy_of("llama", max_new_tokens=12), rewards, prompts_of("llama"), values, resume=resume)


WORDS = ("red two", "blue squares left", "picture number")
"""Documents of the search server: words that the policy writes."""


@cache
def retriever() -> RetrievalServer:
    """A server of this process, which all runs ask."""
    with tempfile.TemporaryDirectory() as folder:
        return RetrievalServer(
            written(Path(folder) / "corpus.jsonl", [{"text": text} for text in WORDS]), [], delay_s=0.02
        )


@final
class Looks(Environment):
    """Searches for each turn by a server, and counts the documents that were returned."""

    def __init__(self, url: str) -> None:
        self._search = SearchEnvironment(url=url)
        self._num_documents = 0

    def reset(self, prompt: Prompt) -> Turn:
        """Searches for the prompt."""
        self._search.search(prompt.text)
        return Turn()

    def step(self, text: str) -> Turn:
        """The color that the documents determine, and their number as the reward."""
        self._num_documents += self._search.search(text).count("Doc ")
        return Turn(text=("two red", "two blue")[self._num_documents % 2], reward=float(self._num_documents))


def searches(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Turns with a search server."""
    environment = {"name": "python:tests.kind_trials:Looks", "url": retriever().url}
    return _rewarded_turns(output, resume, reward, environment)


@final
class Clicks(Environment):
    """A page in the browser of the process, on which the length of a turn selects the element that is clicked."""

    def __init__(self) -> None:
        self._page = MiniwobEnvironment("click-button", observation=["elements"])

    def reset(self, prompt: Prompt) -> Turn:
        """Opens the page that the length of the prompt determines."""
        assert self._page.reset(replace(prompt, columns={"seed": len(prompt.text)})).text.startswith("Click on the")
        return Turn()

    def step(self, text: str) -> Turn:
        """A color, with the reward of the page; a click on a button ends the conversation."""
        reply = self._page.step(f"click(element={len(text) % 5 + 1})")
        return replace(reply, text=("two red", "two blue")[len(reply.text) % 2])

    def close(self) -> None:
        """Gives the tab back."""
        self._page.close()


def pages(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Turns with a page per sample, in the tabs of a real browser."""
    return _rewarded_turns(output, resume, reward, {"name": "python:tests.kind_trials:Clicks"})


def image_turns(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Turns whose answers contain images that depend on the policy's text."""
    environment = {"name": "python:tests.policies.test_language_media_turns:Showing"}
    rollout = {"prompts_per_step": 2, "group_size": 3, "environment": environment}
    values = {**EVERY_STEP, "output": str(output), "rollout": rollout, "update": {"optimizer": {"lr": 1e-3}}}
    policy = terse("qwen2.5-vl", max_new_tokens=120)
    return Trainer(policy, {"lengths": reward}, prompts_of("qwen2.5-vl"), values, resume=resume)


def trees(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Answers that branch."""
    strategy = {"name": "branch_evenly", "every": 2, "levels": 2}
    values = {
        **EVERY_STEP,
        "output": str(output),
        "rollout": {"prompts_per_step": 2, "group_size": 2, "strategy": strategy},
        "advantage": {"estimators": ["siblings", "along_segments"], "filters": ["each_decision_once"]},
        "update": {"optimizer": {"lr": 1e-3}},
    }
    policy = policy_of("llama", max_new_tokens=6)
    return Trainer(policy, {"even": even_prompts_differ}, prompts_of("llama"), values, resume=resume)


def replay(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Replayed rows, with a warm-up, an average, a controller and an evaluation."""
    return texts(output, resume, reward)


def critic(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """A critic with its own optimizer."""
    body = {"name": "language", "model": "python:tests.training.test_critic:writer", **FLOAT32}
    trained = {"policy": body, "optimizer": {"lr": 1e-3}}
    values = {
        **EVERY_STEP,
        "output": str(output),
        "rollout": {"prompts_per_step": 2, "group_size": 3},
        "advantage": {"scale": "raw", "estimators": [{"name": "gae", "gamma": 1.0, "decay": 1.0}], "critic": trained},
    }
    return Trainer(policy_of("llama"), {"lengths": reward}, prompts_of("llama"), values, resume=resume)


def fitted(output: Path, resume: Path | None, reward: Reward) -> Trainer:
    """Images that a verifier scores, which scikit-learn fits while the run loads."""
    digits.fit_verifier.cache_clear()
    values = {**BASE, **ALL, "output": str(output), "steps": 2}
    return Trainer(make_policy(), {"digit": digits.DigitVerifier()}, digits.digit_prompts(), values, resume=resume)


@dataclass
class Command:
    """A command of the CLI as if it were a trainer."""

    arguments: Sequence[str]

    def train(self) -> None:
        """Runs it here; its exit code ends the process where it is not 0."""
        try:
            code = app(list(self.arguments), standalone_mode=False)
        except click.exceptions.Abort:
            raise KeyboardInterrupt from None
        except typer.Exit as ended:
            code = ended.exit_code
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if code:
            sys.stdout.flush()
            os._exit(int(code))


SHORT: dict[str, Any] = {
    "include": "quickstart/arithmetic-text",
    "steps": 2,
    "update": {"warmup": {"steps": 2}},
    "evaluation": {"every": 1, "prompts": {"limit": 4}},
    "checkpoint": {"every": 1},
    "rollout": {"prompts_per_step": 4, "group_size": 4},
    "runtime": {"device": "cpu"},
}


def series(output: Path, resume: Path | None, reward: Reward) -> Any:
    """Two runs, the second from the weights of the first, by ``mmgrpo train``."""
    if (output / "run" / "series.yaml").is_file():
        return Command(["train", "--resume", str(output / "run")])
    file = output.parent / "series.yaml"
    runs = [{"name": "easy"}, {"name": "hard", "set": {"steps": 1}}]
    file.write_text(yaml.safe_dump({**SHORT, "about": {"name": "run"}, "output": str(output), "tasks": runs}))
    return Command(["train", str(file)])


def comparison(output: Path, resume: Path | None, reward: Reward) -> Any:
    """Two methods with a warm-up that they share, by ``mmgrpo compare``."""
    file = output.parent / "task.yaml"
    file.write_text(yaml.safe_dump({**SHORT, "steps": 1}))
    out = str(output / "run")
    return Command(["compare", "grpo", "dr-grpo", "--on", str(file), "--seeds", "1", "--jobs", "1", "--out", out])


MAKERS: dict[str, Callable[[Path, Path | None, Reward], Any]] = {
    "mixed": mixed,
    "rewriter and painter": rewritten,
    "conversations": conversations,
    "image turns": image_turns,
    "sandboxes": sandboxes,
    "searches": searches,
    "pages": pages,
    "trees": trees,
    "replay": replay,
    "critic": critic,
    "fitted verifier": fitted,
    "series": series,
    "compare": comparison,
}
SLOW = ("compare",)  # starts processes that import everything
OPTIONAL = ("pages",)  # needs a browser
CASES = {name: Case(name, make, lengths, _no_module) for name, make in MAKERS.items()}


def left_by(folder: Path) -> dict[str, Any]:
    """What every run in a folder left, by its path."""
    runs = sorted(path.parent for path in folder.rglob("run.json") if (path.parent / "config.yaml").is_file())
    return {str(run.relative_to(folder)): run_state(run) for run in runs}


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """The run that others are compared with: what it left, its seconds of work, and those until it trained."""

    left: dict[str, Any]
    worked_s: float
    loaded_s: float


def undisturbed(case: Case, place: Place) -> Undisturbed:
    """Runs a case in a new process."""
    loaded = place.root / "loaded"

    def within(trainer: Any) -> None:
        loaded.write_text(str(time.process_time()))

    sitting = _sit(case, place, within=within)
    assert sitting.code == DONE, sitting.output
    return Undisturbed(left_by(place.run), sitting.worked_s, float(loaded.read_text()))


def _sit(case: Case, place: Place, **arguments: Any) -> Sitting:
    """A sitting that gets no signal."""
    return ended(begin(case, place, before=_listen, **arguments), place, limit_s=LIMIT_S)


def _listen() -> None:
    """As the first line of ``mmgrpo train`` does."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupts.install()


def disturbed(case: Case, place: Place, undisturbed: Undisturbed, draw: random.Random) -> tuple[str, str, Sitting]:
    """A sitting that gets a signal, or Ctrl-C twice: the signal, how the sitting ended, and the sitting."""
    number = draw.choice([signal.SIGKILL, signal.SIGINT, signal.SIGINT, *TERMINATING])
    limit_s = undisturbed.loaded_s if draw.random() < 1 / 3 else undisturbed.worked_s
    after_s, twice = draw.uniform(0, limit_s), number == signal.SIGINT and draw.random() < 1 / 3
    others, pid = children(), begin(case, place, before=_listen)
    while (worked := worked_s(pid)) is not None and worked < after_s:
        time.sleep(0.001)
    os.kill(pid, number)
    if twice:
        time.sleep(BOUNCE_S + draw.uniform(0.05, 0.3))
        os.kill(pid, number)
    what, sitting = (
        f"{number.name}{' twice' if twice else ''} after {after_s:.3f} s",
        ended(pid, place, limit_s=LIMIT_S),
    )
    if running := left_running(others):
        sitting = replace(sitting, code=LEFT_RUNNING, output=f"it left {running} running; {sitting.output[-300:]}")
    return what, "before the signal" if worked is None else f"code {sitting.code}", sitting


def children() -> set[int]:
    """The child processes of this one, without those that have ended."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return {int(pid) for pid in Path("/proc/self/task").joinpath(str(os.getpid()), "children").read_text().split()}


def left_running(others: set[int]) -> list[str]:
    """The commands of processes that an ended sitting left, orphans that became children; they get a while to end."""
    deadline = time.monotonic() + LEFT_S
    while (left := children() - others) and time.monotonic() < deadline:
        time.sleep(0.02)
    return [Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in left]


def wrongs(case: Case, place: Place, undisturbed: Undisturbed, draw: random.Random) -> tuple[str, list[str]]:
    """How the disturbed sitting ended, and what is wrong after the run was resumed to its end."""
    what, end, sitting = disturbed(case, place, undisturbed, draw)
    faults = (
        [] if sitting.is_clear or sitting.code in (143, 138, 140) else [f"ended with {sitting.code}: {sitting.output}"]
    )
    for _ in range(MAX_SITTINGS):
        if case.name not in SLOW and not any(place.run.glob("*.yaml")):
            shutil.rmtree(place.run, ignore_errors=True)  # before there was a run
        last = _sit(case, place)
        if last.code == DONE:
            break
    if last.code != DONE:  # pyrefly: ignore[unbound-name]
        return end, [*faults, f"{what}: resumed to {last.code}: {last.output[-600:]}"]
    return end, [
        *faults,
        *(f"{what}: {difference}" for difference in islice(differing(left_by(place.run), undisturbed.left), 3)),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the trials and prints their table; returns how many differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--kinds", nargs="+", default=[name for name in CASES if name not in (*SLOW, *OPTIONAL)], choices=CASES
    )
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # orphans become children, so that they are noticed
    tried, wrong, ends = Counter[str](), Counter[str](), Counter[tuple[str, str]]()
    with tempfile.TemporaryDirectory(dir=MEMORY if Path(MEMORY).is_dir() else None) as root:
        undisturbed_runs: dict[str, Undisturbed] = {}
        for name in options.kinds:
            if name not in SLOW:
                with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
                    first = placed(Path(root) / f"{name}-first")
                    CASES[name].make(first.output, None, lengths).train()  # imports everything, once for all
            undisturbed_runs[name] = undisturbed(CASES[name], placed(Path(root) / name))
            print(
                f"{name}: {undisturbed_runs[name].loaded_s:.2f} of {undisturbed_runs[name].worked_s:.2f} s loading",
                flush=True,
            )
        for number in range(options.trials):
            name = options.kinds[number % len(options.kinds)]
            place = placed(Path(root) / f"trial-{number}")
            end, faults = wrongs(CASES[name], place, undisturbed_runs[name], random.Random(f"{options.seed} {number}"))
            tried[name] += 1
            wrong[name] += bool(faults)
            ends[name, end] += 1
            for fault in faults:
                print(f"trial {number}, {name}: {fault}", flush=True)
            shutil.rmtree(place.root)
    print("| kind | trials | differ | how the disturbed sitting ended |\n| --- | --- | --- | --- |")
    for name in options.kinds:
        how = ", ".join(f"{end} {num}" for (kind, end), num in sorted(ends.items()) if kind == name)
        print(f"| {name} | {tried[name]} | {wrong[name]} | {how} |")
    print(f"{tried.total()} trials, {wrong.total()} of them differ")
    return wrong.total()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(min(main(), 1))
