"""Environments that answer side by side: their order, their limits, and the same samples for any number of workers."""

from __future__ import annotations

import itertools
import random
import threading
import time
from dataclasses import dataclass, field
from typing import ClassVar, final

import pytest
from mmgrpo.policies.language.environment_pool import EnvironmentPool

from mmgrpo.environment import Environment, SupportsCalls, Turn
from mmgrpo.errors import ConfigError
from mmgrpo.tool_calls import AssistantMessage
from mmgrpo.types import Plan, Prompt, Rollout
from tests.policies.test_language_exchanges import SEED, terse
from tests.policies.tiny_language import prompts_of


@final
@dataclass
class Slow(Environment):
    """Answers four times, once ``together`` calls run; keeps record of calls at a time, threads and closings."""

    together: threading.Barrier = field(default_factory=lambda: threading.Barrier(1))
    threads: set[int] = field(default_factory=set)
    num_steps: int = 0
    running: ClassVar[int] = 0
    most: ClassVar[int] = 0
    closed: ClassVar[list[Slow]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def reset(self, prompt: Prompt) -> Turn:
        self.threads.add(threading.get_ident())
        return Turn()

    def step(self, text: str) -> Turn:
        with Slow.lock:
            Slow.running += 1
            Slow.most = max(Slow.most, Slow.running)
        self.together.wait()
        with Slow.lock:
            Slow.running -= 1
        self.threads.add(threading.get_ident())
        self.num_steps += 1
        return Turn(text=f"{len(text)} letters", done=self.num_steps == 4)

    def close(self) -> None:
        self.threads.add(threading.get_ident())
        Slow.closed.append(self)


@pytest.fixture(autouse=True)
def fresh() -> None:
    Slow.running, Slow.most, Slow.closed = 0, 0, []


@pytest.mark.parametrize("workers", [1, 3])
def test_calls_are_answered_on_one_thread_each_within_the_limit(workers: int) -> None:
    made: list[Slow] = []
    together = threading.Barrier(workers)  # passes only if as many calls run at a time

    def make() -> Environment:
        made.append(Slow(together))
        return made[-1]

    with EnvironmentPool(make, 6, workers=workers, timeout_s=60.0) as pool:
        assert pool.reset([Prompt("a")] * 6) == [Turn()] * 6
        for row in range(6):
            pool.submit(row, "x" * row)
        assert [pool.reply(row).text for row in range(6)] == [f"{row} letters" for row in range(6)]
    assert Slow.most == workers
    assert len(Slow.closed) == 6
    assert all(len(environment.threads) == 1 for environment in made)
    assert len({next(iter(environment.threads)) for environment in made}) == 6


def test_a_call_that_hangs_ends_its_conversation_alone() -> None:
    release, lengths = threading.Event(), iter([0.0, 30.0, 0.0])

    @final
    class Hanging(Environment):
        def __init__(self) -> None:
            self.seconds = next(lengths)

        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            release.wait(self.seconds)
            return Turn(text="answer")

    with EnvironmentPool(Hanging, 3, workers=1, timeout_s=0.2) as pool:
        pool.reset([Prompt("a")] * 3)
        for row in range(3):
            pool.submit(row, "x")
        assert [pool.reply(row).text for row in (2, 1, 0)] == ["answer", "", "answer"]
        errors = [environment.error for environment in pool.environments]
        pool.submit(1, "again")
        assert pool.reply(1) == Turn(done=True)
    assert errors == [
        None,
        "Hanging.step raised TimeoutError: it took longer than rollout.environment_timeout_s=0.2",
        None,
    ]
    release.set()


@pytest.mark.nightly
def test_an_answer_in_place_of_a_late_one_that_hangs_too_ends_the_conversation() -> None:
    release = threading.Event()

    @final
    class Hanging(Environment, SupportsCalls):
        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            return Turn()

        def respond(self, message: AssistantMessage) -> Turn:
            release.wait(30.0)
            return Turn(text="late")

        def interrupted(self, error: TimeoutError) -> Turn | None:
            release.wait(30.0)
            return Turn(text="late too")

    with EnvironmentPool(Hanging, 1, workers=1, timeout_s=0.2) as pool:
        pool.reset([Prompt("a")])
        pool.submit(0, "x")
        assert pool.reply(0) == Turn(done=True)
        assert "Hanging.step raised TimeoutError" in (pool.environments[0].error or "")
        release.set()


def test_an_error_of_the_run_while_environments_are_made_closes_the_others() -> None:
    made: list[Slow] = []
    numbers, together = itertools.count(), threading.Barrier(3)

    def make() -> Environment:
        together.wait(60)
        if next(numbers) == 1:
            raise ConfigError("no such key")
        made.append(Slow())
        return made[-1]

    with pytest.raises(ConfigError, match="no such key"):
        EnvironmentPool(make, 3, workers=3, timeout_s=None)
    assert len(made) == 2
    assert {id(environment) for environment in Slow.closed} == {id(environment) for environment in made}


@pytest.mark.parametrize("workers", [1, 4])
def test_a_constructor_that_raises_or_hangs_costs_its_row_alone(workers: int) -> None:
    """Each thread has the number of its row in its name; the one that hangs ends when the pool is closed."""
    closed: list[Environment] = []
    is_closed, late = threading.Event(), threading.Event()

    @final
    class Faulty(Environment):
        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            return Turn(text=f"{len(text)} letters")

        def close(self) -> None:
            closed.append(self)
            if len(closed) == 3:
                late.set()

    def make() -> Environment:
        row = threading.current_thread().name
        if row == "environment 1":
            raise OSError("no port is free")
        if row == "environment 2":
            is_closed.wait(60)
        return Faulty()

    with EnvironmentPool(make, 4, workers=workers, timeout_s=0.5) as pool:
        pool.reset([Prompt("a")] * 4)
        for row in range(4):
            pool.submit(row, "four")
        assert [pool.reply(row) for row in range(4)] == [
            Turn(text="4 letters"),
            Turn(done=True),
            Turn(done=True),
            Turn(text="4 letters"),
        ]
        errors = [environment.error for environment in pool.environments]
    assert errors == [
        None,
        "the environment.__init__ raised OSError: no port is free",
        "the environment.__init__ raised TimeoutError: it took longer than rollout.environment_timeout_s=0.5",
        None,
    ]
    is_closed.set()
    assert late.wait(60)  # the environment that is made after the rollout is closed too


def test_environments_are_made_and_reset_side_by_side() -> None:
    """Passes only if as many constructors run at a time, and as many resets."""
    together = threading.Barrier(4)

    @final
    class Together(Environment):
        def __init__(self) -> None:
            together.wait(60)

        def reset(self, prompt: Prompt) -> Turn:
            together.wait(60)
            return Turn(text=prompt.text)

        def step(self, text: str) -> Turn:
            return Turn(done=True)

    with EnvironmentPool(Together, 8, workers=4, timeout_s=None) as pool:
        openings = pool.reset([Prompt(str(row)) for row in range(8)])
    assert [opening.text for opening in openings] == [str(row) for row in range(8)]


def test_errors_of_the_run_are_raised_where_the_answer_is_awaited() -> None:
    @final
    class Misconfigured(Environment):
        def reset(self, prompt: Prompt) -> Turn:
            return Turn()

        def step(self, text: str) -> Turn:
            raise ConfigError("no such key")

    with EnvironmentPool(Misconfigured, 1, workers=1, timeout_s=None) as pool:
        pool.reset([Prompt("a")])
        pool.submit(0, "x")
        with pytest.raises(ConfigError, match="no such key"):
            pool.reply(0)


@final
class Jittering(Environment):
    """Answers after a random time, so that no two runs have one order."""

    def reset(self, prompt: Prompt) -> Turn:
        self.num_steps = 0
        return Turn()

    def step(self, text: str) -> Turn:
        time.sleep(random.uniform(0, 0.01))
        self.num_steps += 1
        return Turn(text=f"{len(text)} two red", reward=float(len(text)), done=self.num_steps == 3)


def rolled_out(workers: int) -> Rollout:
    plan = Plan(environment=Jittering, environment_workers=workers)
    policy = terse("llama", max_new_tokens=120, batch=3)
    return policy.rollout(prompts_of("llama"), group_size=8, seed=SEED, plan=plan)


@pytest.mark.nightly
def test_samples_do_not_depend_on_the_number_of_workers() -> None:
    first, *others = [rolled_out(workers) for workers in (1, 2, 32)]
    assert max(len(sample.turn_ends) for sample in first.samples) == 3
    for other in others:
        assert [sample.tokens for sample in other.samples] == [sample.tokens for sample in first.samples]
        assert bool((other.old_logprob_BT == first.old_logprob_BT).all())
        assert [sample.turn_rewards for sample in other.samples] == [sample.turn_rewards for sample in first.samples]


def test_environments_are_closed_when_a_rollout_fails() -> None:
    def fail(samples: object) -> None:
        raise RuntimeError("no room")

    plan = Plan(environment=Slow, on_samples=fail)
    with pytest.raises(RuntimeError, match="no room"):
        terse("llama").rollout(prompts_of("llama"), group_size=2, seed=SEED, plan=plan)
    assert len(Slow.closed) == 4
