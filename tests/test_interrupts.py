"""A Ctrl-C that foreign code swallows still ends the run, and changes no reward."""

from __future__ import annotations

import os
import signal
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neural_network import MLPClassifier

from mmgrpo import Trainer
from mmgrpo.cli import app
from mmgrpo.system import interrupts
from tests.forked import on_processes
from tests.policies.tiny_language import policy_of

FEATURES, LABELS = np.eye(8), np.arange(8) % 2


@pytest.fixture(autouse=True)
def _python_handles_interrupts() -> Iterator[None]:
    """A worker of pytest-xdist ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press() -> None:
    os.kill(os.getpid(), signal.SIGINT)


class Interrupting(MLPClassifier):
    """Presses Ctrl-C in its fit, whose handler of scikit-learn catches KeyboardInterrupt."""

    def _update_no_improvement_count(self, *arguments: Any) -> None:
        super()._update_no_improvement_count(*arguments)  # pyrefly: ignore[missing-attribute]
        if self.n_iter_ == 3:
            press()


def fitted(kind: type[MLPClassifier]) -> list[float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        classifier = kind((4,), max_iter=9, random_state=0).fit(FEATURES, LABELS)
    return classifier.coefs_[0].ravel().tolist()


def test_a_deferred_interrupt_is_raised_after_a_complete_fit() -> None:
    weights: list[float] = []
    with pytest.raises(KeyboardInterrupt), interrupts.deferred():
        weights = fitted(Interrupting)
    assert weights == fitted(MLPClassifier)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_swallowed_interrupt_is_raised_again() -> None:
    interrupts.install()
    assert fitted(Interrupting) != fitted(MLPClassifier)
    with pytest.raises(KeyboardInterrupt):
        interrupts.require_none()
    interrupts.require_none()


def test_a_second_interrupt_that_a_reward_swallows_ends_the_run_before_its_update(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mmgrpo.runs.stopping.BOUNCE_S", 0.0)
    calls = []

    def swallowing(samples: Any) -> list[float]:
        calls.append(len(samples))
        try:
            press()
            press()
        except KeyboardInterrupt:
            pass
        return [float(n) for n, _ in enumerate(samples)]

    config = {
        "output": str(tmp_path),
        "steps": 3,
        "rollout": {"prompts_per_step": 1, "group_size": 2},
        "runtime": {"device": "cpu"},
    }
    policy = policy_of("llama")
    before = [parameter.detach().clone() for parameter in policy.trainable]
    with pytest.raises(KeyboardInterrupt):
        Trainer(policy, {"swallowing": swallowing}, ["a", "b"], config).train()
    assert len(calls) == 1
    assert all(bool((parameter == two).all()) for parameter, two in zip(before, policy.trainable, strict=True))


def interrupted_command(folder: Path, arguments: Sequence[str]) -> Any:
    """The exit code of a command in a folder."""
    os.chdir(folder)
    with pytest.raises(SystemExit) as end:
        app(arguments)
    return end.value.code


def test_the_command_ends_where_loading_swallows_an_interrupt(tmp_path: Path) -> None:
    module = """
        import os, signal
        from mmgrpo import Prompt
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except KeyboardInterrupt:
            pass
        def rows():
            return [Prompt("1+1=", columns={"answer": "2"})]
    """
    folder = tmp_path / "runs"
    folder.mkdir()
    (folder / "swallowing.py").write_text(textwrap.dedent(module))
    command = ["train", "quickstart/arithmetic-text", "prompts.source=python:swallowing:rows"]
    small = [
        "steps=1",
        "update.warmup.steps=1",
        "evaluation=null",
        "rollout.prompts_per_step=2",
        "rollout.group_size=2",
    ]
    result = on_processes(
        tmp_path, [*command, *small], module="tests.test_interrupts", function="interrupted_command", processes=1
    )
    assert result == 130
    assert not list((folder / "runs").glob("*/metrics.jsonl"))
