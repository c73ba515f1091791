"""A run whose scorer fails and recovers: nothing is lost, and the run continues or stops as configured."""

from __future__ import annotations

import json
import math
import multiprocessing
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.examples.pipelines import digits_pipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness
from mmgrpo.rewards.judges.remote_reward import RemoteReward

from mmgrpo.errors import RewardError
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.serving.loopback import ServerProcess, serving

EVERY = range(4)  # samples of a step
AWAY = (1, 2)  # calls during which there is no server
CALL = {"height": 8, "width": 8, "num_inference_steps": 2, "guidance_scale": 1.0, "max_sequence_length": 1}


class ComesAndGoes:
    """Asks a server that is stopped before the first of the calls ``AWAY`` and started again after the last."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings
        self._servers = ExitStack()
        self._port, self._calls = 0, 0

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Any]:
        if self._calls == AWAY[0]:
            self._servers.close()
        if self._calls in (0, AWAY[-1] + 1):
            url = self._servers.enter_context(serving({"bright": Brightness()}, port=self._port))
            self._port = int(url.rpartition(":")[2])
        self._calls += 1
        return RemoteReward(f"http://127.0.0.1:{self._port}", retries=0, **self._settings)(samples)

    def __enter__(self) -> ComesAndGoes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._servers.close()


class FailsByItself:
    """The local reward, which fails on the given samples of each of the first calls."""

    def __init__(self, *failing: Sequence[int]) -> None:
        self._failing = list(failing)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        failing = self._failing.pop(0) if self._failing else ()
        return [math.nan if row in failing else value for row, value in enumerate(Brightness()(samples))]


class HangsOnce:
    """A served reward that hangs at its fourth call, whichever process it lives in, and says so."""

    def __init__(self) -> None:
        forked = multiprocessing.get_context("fork")
        self.hangs, self._calls = forked.Event(), forked.Value("i", 0)

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        with self._calls.get_lock():
            self._calls.value += 1
            number = self._calls.value
        if number == 4:
            self.hangs.set()
            time.sleep(600)
        return Brightness()(samples)


class Asks:
    """Asks a server process, which is started again before the given call."""

    def __init__(self, server: ServerProcess, restart_at: int, **settings: Any) -> None:
        self._remote = RemoteReward(server.url, batch_size=2, retries=0, **settings)
        self._server, self._restart_at, self._calls = server, restart_at, 0

    def __call__(self, samples: Sequence[Sample]) -> Sequence[Any]:
        if self._calls == self._restart_at:
            self._server.start()
        self._calls += 1
        return self._remote(samples)


def killed_when(reward: HangsOnce, server: ServerProcess, *, start_again: bool = False) -> threading.Thread:
    """A thread that kills the server in the middle of the call in which the reward hangs."""

    def kill() -> None:
        reward.hangs.wait(120)
        server.kill()
        if start_again:
            server.start()

    thread = threading.Thread(target=kill)
    thread.start()
    return thread


def trained(output: Path, reward: Any, **changes: Any) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Weights after a run of four steps, and its metrics."""
    pipeline = digits_pipeline()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    policy = DenoisingPolicy(pipeline, {"call": CALL})
    config = {"output": str(output), "steps": 4, "rollout": {"prompts_per_step": 2, "group_size": 2}, **changes}
    trainer = Trainer(policy, {"bright": reward}, digit_prompts(), {"update": {"optimizer": {"lr": 1e-3}}, **config})
    trainer.train()
    lines = (trainer.folder.path / "metrics.jsonl").read_text().splitlines()
    weights = torch.cat([parameter.detach().flatten() for parameter in policy.trainable])
    return weights, [json.loads(line) for line in lines]


def test_a_run_continues_without_its_scorer(tmp_path: Path):
    with ComesAndGoes(when_down="fail") as reward:
        weights, metrics = trained(tmp_path / "remote", reward, runtime={"max_reward_failure_frac": 1.0})
    local = FailsByItself((), EVERY, EVERY)
    local_weights, local_metrics = trained(tmp_path / "local", local, runtime={"max_reward_failure_frac": 1.0})
    assert [line["reward/bright/failed_frac"] for line in metrics] == [0, 1, 1, 0]
    assert torch.equal(weights, local_weights)
    for place in (0, 3):
        assert metrics[place]["reward/bright/mean"] == local_metrics[place]["reward/bright/mean"]
        assert metrics[place]["reward/bright/std"] > 0


@pytest.mark.nightly
def test_a_run_stops_with_the_cause(tmp_path: Path):
    with ComesAndGoes(when_down="stop") as reward, pytest.raises(RewardError, match="ConnectionRefusedError"):
        trained(tmp_path / "stop", reward, runtime={"max_reward_failure_frac": 1.0})
    with ComesAndGoes(when_down="fail") as reward, pytest.raises(RewardError, match=r"failed on 4 of 4 samples"):
        trained(tmp_path / "fail", reward)
    (metrics,) = (tmp_path / "fail").rglob("metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 1


def counted(metrics: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """What the run's metrics say of the reward and of the groups, without the times."""
    return [{n: v for n, v in line.items() if n.startswith(("reward/", "groups/", "samples/"))} for line in metrics]


@pytest.mark.nightly
def test_a_killed_scorer_loses_only_its_running_requests(tmp_path: Path):
    """Killed in the middle of the second request of step 2, away at step 3, back at step 4."""
    reward = HangsOnce()
    with ServerProcess({"bright": reward}) as server:
        killer = killed_when(reward, server)
        asks = Asks(server, restart_at=3, when_down="fail")
        weights, metrics = trained(tmp_path / "remote", asks, runtime={"max_reward_failure_frac": 1.0})
        killer.join()
    assert [line["step"] for line in metrics] == [1, 2, 3, 4]
    assert [line["reward/bright/failed_frac"] for line in metrics] == [0, 0.5, 1, 0]
    assert [line["reward/bright/applies_frac"] for line in metrics] == [1, 0.5, 0, 1]
    local = FailsByItself((), (2, 3), EVERY)
    local_weights, local_metrics = trained(tmp_path / "local", local, runtime={"max_reward_failure_frac": 1.0})
    assert counted(metrics) == counted(local_metrics)
    assert torch.equal(weights, local_weights)


@pytest.mark.nightly
def test_a_killed_scorer_that_is_started_again_is_not_noticed(tmp_path: Path):
    """The client asks until it is back, so that the run is the one that was never disturbed."""
    reward = HangsOnce()
    with ServerProcess({"bright": reward}) as server:
        killer = killed_when(reward, server, start_again=True)
        client = RemoteReward(server.url, batch_size=2, retries=10, backoff=0.02)
        weights, metrics = trained(tmp_path / "remote", client)
        killer.join()
    local_weights, local_metrics = trained(tmp_path / "local", FailsByItself())
    assert reward.hangs.is_set()
    assert counted(metrics) == counted(local_metrics)
    assert torch.equal(weights, local_weights)


@pytest.mark.nightly
def test_a_killed_scorer_stops_the_run_as_configured(tmp_path: Path):
    for when_down, cause in [("stop", "did not answer in 1 attempts"), ("fail", "failed on 2 of 4 samples")]:
        reward = HangsOnce()
        with ServerProcess({"bright": reward}) as server:
            killer = killed_when(reward, server)
            with pytest.raises(RewardError, match=cause):
                trained(tmp_path / when_down, Asks(server, restart_at=-1, when_down=when_down))
            killer.join()
        (metrics,) = (tmp_path / when_down).rglob("metrics.jsonl")
        assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [1]
