"""A run whose scorer goes away and comes back: nothing of the run is lost, and it goes on or stops as it was told."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.errors import RewardError
from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policies.quickstart import digits_pipeline
from mmgrpo.rewards.digits import digit_prompts
from mmgrpo.rewards.pixels import Brightness
from mmgrpo.rewards.remote import Remote
from mmgrpo.trainer import Trainer
from mmgrpo.types import Sample
from tests.serving.loopback import serving

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
        return Remote(f"http://127.0.0.1:{self._port}", retries=0, **self._settings)(samples)

    def __enter__(self) -> ComesAndGoes:
        return self

    def __exit__(self, *raised: object) -> None:
        self._servers.close()


class FailsByItself:
    """The local reward, which fails at the same calls."""

    def __init__(self) -> None:
        self._calls = 0

    def __call__(self, samples: Sequence[Sample]) -> list[float | None]:
        self._calls += 1
        return [math.nan] * len(samples) if self._calls - 1 in AWAY else Brightness()(samples)


def trained(output: Path, reward: Any, **changes: Any) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    """Weights after a run of four steps, and its metrics."""
    pipeline = digits_pipeline()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in pipeline.transformer.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    policy = DenoisingPolicy(pipeline, {"call": CALL})
    config = {"output": str(output), "steps": 4, "rollout": {"prompts_per_step": 2, "group_size": 2}, **changes}
    trainer = Trainer(policy, {"bright": reward}, digit_prompts(), {"update": {"lr": 1e-3}, **config})
    trainer.train()
    lines = (trainer.folder.path / "metrics.jsonl").read_text().splitlines()
    weights = torch.cat([parameter.detach().flatten() for parameter in policy.trainable])
    return weights, [json.loads(line) for line in lines]


def test_a_run_goes_on_without_its_scorer(tmp_path: Path):
    with ComesAndGoes(when_down="fail") as reward:
        weights, metrics = trained(tmp_path / "remote", reward, max_reward_failure_frac=1.0)
    local_weights, local_metrics = trained(tmp_path / "local", FailsByItself(), max_reward_failure_frac=1.0)
    assert [line["reward/bright/failed_frac"] for line in metrics] == [0, 1, 1, 0]
    assert torch.equal(weights, local_weights)
    for place in (0, 3):
        assert metrics[place]["reward/bright/mean"] == local_metrics[place]["reward/bright/mean"]
        assert metrics[place]["reward/bright/std"] > 0


def test_a_run_stops_with_the_cause(tmp_path: Path):
    with ComesAndGoes(when_down="stop") as reward, pytest.raises(RewardError, match="ConnectionRefusedError"):
        trained(tmp_path / "stop", reward, max_reward_failure_frac=1.0)
    with ComesAndGoes(when_down="fail") as reward, pytest.raises(RewardError, match=r"failed on 4 of 4 samples"):
        trained(tmp_path / "fail", reward)
    (metrics,) = (tmp_path / "fail").rglob("metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 1
