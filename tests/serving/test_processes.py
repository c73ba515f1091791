"""Servers in separate processes that are stopped or killed during their work."""

from __future__ import annotations

import math
import multiprocessing
import threading
import time
from collections.abc import Sequence

import pytest
from mmgrpo.rewards.judges.remote_reward import RemoteReward

from mmgrpo.config.loading import validated
from mmgrpo.errors import RewardError
from mmgrpo.scoring import NamedReward, score
from mmgrpo.serving.server import ignored_settings
from mmgrpo.types import Prompt, Sample
from tests.serving.loopback import ServerProcess

SAMPLES = [Sample(Prompt("q"), 0, i, text="x" * i) for i in range(3)]


class Begins:
    """A reward that says when it is asked, and takes its time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begun = multiprocessing.get_context("fork").Event()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.begun.set()
        time.sleep(self._seconds)
        return [float(len(sample.text or "")) for sample in samples]


def request_scores(client: RemoteReward) -> tuple[threading.Thread, list[float | None]]:
    """A thread that calls the server, and the list that receives the values."""
    result: list[float | None] = []
    thread = threading.Thread(target=lambda: result.extend(None if v is None else float(v) for v in client(SAMPLES)))
    thread.start()
    return thread, result


def test_running_requests_are_scored_before_the_server_ends():
    reward = Begins(0.5)
    with ServerProcess({"slow": reward}) as server:
        thread, result = request_scores(RemoteReward(server.url, retries=0))
        assert reward.begun.wait(20)
        assert server.end() is not None
        thread.join(20)
    assert result == [0, 1, 2]


@pytest.mark.nightly
def test_a_reward_that_is_stuck_does_not_keep_the_server_alive():
    reward = Begins(600)
    with ServerProcess({"stuck": reward}, grace_s=1) as server:
        thread, result = request_scores(RemoteReward(server.url, retries=0, when_down="fail"))
        assert reward.begun.wait(20)
        assert server.end() is not None
        thread.join(20)
    assert result == pytest.approx([math.nan] * 3, nan_ok=True)


@pytest.mark.nightly
def test_a_killed_server_fails_its_requests_and_is_found_again():
    reward = Begins(0.3)
    with ServerProcess({"slow": reward}) as server:
        client = RemoteReward(server.url, retries=0, when_down="fail")
        assert client(SAMPLES) == [0, 1, 2]
        reward.begun.clear()
        thread, result = request_scores(client)
        assert reward.begun.wait(20)
        server.kill()
        thread.join(20)
        assert result == pytest.approx([math.nan] * 3, nan_ok=True)
        with pytest.raises(RewardError, match="did not answer in 1 attempts: ConnectionRefusedError"):
            RemoteReward(server.url, retries=0)(SAMPLES)
        server.start()
        assert client(SAMPLES) == [0, 1, 2]


@pytest.mark.nightly
def test_a_client_that_retries_gets_all_scores():
    reward = Begins(0.3)
    with ServerProcess({"slow": reward}) as server:
        thread, result = request_scores(RemoteReward(server.url, retries=8, backoff=0.02))
        assert reward.begun.wait(20)
        server.kill()
        server.start()
        thread.join(20)
        assert result == [0, 1, 2]


def test_a_reward_that_ends_its_thread_fails_and_the_server_continues():
    def leaves(samples: Sequence[Sample]) -> list[float]:
        raise SystemExit("no licence")

    with ServerProcess({"leaves": leaves, "stays": Begins(0)}) as server:
        for _ in range(2):
            scores = score(SAMPLES, [NamedReward("r", RemoteReward(server.url, "leaves"))], max_failure_frac=1.0)
            assert scores.failures == {"r": 3}
        assert RemoteReward(server.url, "stays")(SAMPLES) == [0, 1, 2]


def test_settings_that_a_server_ignores_are_named():
    counts = {"weight": 2.0, "timeout_s": 3.0, "gate": {"reward": "exact_match", "at_least": 1, "otherwise": "skip"}}
    rewards = [{"name": "number", "label": "n", "relative": 0.1, **counts}, "exact_match"]
    config = validated({"rewards": rewards, "steps": 3, "runtime": {"threads": 1}})
    assert ignored_settings(config) == ["steps", "rewards.n.gate", "rewards.n.timeout_s", "rewards.n.weight"]
    assert ignored_settings(validated({"rewards": ["exact_match"]})) == []
