"""Processes that share the sequence of each sample: the same run as on one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from torch import Tensor

from mmgrpo import Sample, Trainer
from mmgrpo.distributed.job import Job
from mmgrpo.errors import ConfigError
from mmgrpo.explain.memory_meter import MemoryMeter
from mmgrpo.types import Score
from tests.forked import on_processes
from tests.policies import tiny_policies
from tests.policies.contract import gradients
from tests.policies.tiny_language import policy_of
from tests.test_sharding import untimed
from tests.test_world_sizes import outcome

pytestmark = pytest.mark.nightly  # `.ci/run` has ten minutes

MODULE = "tests.test_context_parallel"
RELATIVE = 1e-6
PIPELINES = ("wan", "flux", "flux-kontext", "flux2", "flux2-klein")
"""Those of the tiny ones of which diffusers has a plan, but Qwen-Image, whose texts are of any length, and LTX."""

ROUNDED = 1e-4
"""Of numbers in the log."""


def brightness(samples: Sequence[Sample]) -> list[Score]:
    """Asked by the first process of a seat alone."""
    num_scored.append(len(samples))
    frames = [sample.video[0] if sample.video is not None else sample.image for sample in samples]
    return [Score(sum(frame.tobytes()) / 64) for frame in frames if frame is not None]


num_scored: list[int] = []


def trained(output: Path, name: str, *, context_parallel: int = 1, lora: bool = True, **changes: Any) -> Trainer:
    """Two steps of two updates, with a reference, an average, an evaluation and checkpoints."""
    torch.manual_seed(0)
    values: dict[str, Any] = {
        "output": str(output),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 2, "window": {"name": "fixed", "start": 0, "size": 2}},
        "objective": {"kl": {"divergence": "gaussian", "beta": 0.1}},
        "update": {"minibatches": 2, "optimizer": {"lr": 1e-3, "eps": 1e-2}, "ema": {"decay": 0.5}},
        "evaluation": {"prompts": {"source": "python:mmgrpo.examples.digits:digit_prompts", "limit": 2}, "every": 2},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu", "context_parallel": context_parallel},
        **changes,
    }
    settings = {} if lora else {"lora": None}
    policy = tiny_policies.policy_of(name, gradient_checkpointing=True, update_batch=2, **settings)
    trainer = Trainer(policy, {"brightness": brightness}, tiny_policies.prompts_of(name), values)
    trainer.train()
    return trainer


def runs(folder: Path, names: Sequence[str]) -> dict[str, tuple[Tensor, list[dict[str, Any]], int]]:
    """Pairs of processes that share sequences: the weights and the log, and how often this one asked the rewards."""
    result = {}
    for name in names:
        num_scored.clear()
        pipeline, _, trains = name.partition(" ")
        trainer = trained(folder / name, pipeline, context_parallel=2, lora=trains != "all")
        result[name] = *outcome(trainer), sum(trainer.job.gather_processes(sum(num_scored)))
    return result


def ended(folder: Path, names: Sequence[str]) -> str:
    """How a run ends in which one process without rewards gets a signal to end."""
    job = Job(Accelerator(), context_parallel=2)
    pids = job.gather_processes(os.getpid())

    def ending(samples: Sequence[Sample]) -> list[float]:
        os.kill(pids[1], signal.SIGTERM)
        return [0.0 for _ in samples]

    values: dict[str, Any] = {"output": str(folder), "rollout": {"prompts_per_step": 2, "group_size": 2}}
    values["runtime"] = {"device": "cpu", "context_parallel": 2}
    trainer = Trainer(tiny_policies.policy_of("flux"), {"ending": ending}, tiny_policies.prompts_of("flux"), values)
    trainer.train()
    return trainer.status


def _same(name: str, result: tuple[Tensor, list[dict[str, Any]], int], output: Path) -> None:
    num_scored.clear()
    pipeline, _, trains = name.partition(" ")
    weights, lines = outcome(trained(output, pipeline, lora=trains != "all"))
    assert float((result[0] - weights).norm() / weights.norm()) < RELATIVE, name
    assert result[2] == sum(num_scored), name  # no reward was asked twice
    assert len(lines) == len(result[1]) == 6  # two updates of each of two steps, and two evaluations
    for line, other in zip(lines, result[1], strict=True):
        numbers = {key: value for key, value in untimed(line).items() if isinstance(value, float)}
        assert {key: other[key] for key in numbers} == pytest.approx(numbers, rel=1e-3, abs=ROUNDED), name


EVERYDAY = ("wan",)
"""A video, with adapters; training of all weights is tried nightly, on more pipelines."""


@pytest.mark.parametrize("names", [EVERYDAY, pytest.param(("flux all",), marks=pytest.mark.nightly)], ids=" ".join)
def test_two_that_share_a_sequence_make_the_updates_of_one(names: Sequence[str], tmp_path: Path) -> None:
    result = on_processes(tmp_path, names, function="runs", module=MODULE)
    for name in names:
        _same(name, result[name], tmp_path / "alone" / name)


@pytest.mark.nightly
def test_pairs_that_share_sequences_make_the_updates_of_one(tmp_path: Path) -> None:
    """Four processes: each pair draws and trains its own groups."""
    names = (*PIPELINES, "wan all")
    result = on_processes(tmp_path, names, function="runs", module=MODULE, processes=4)
    for name in names:
        _same(name, result[name], tmp_path / "alone" / name)


@pytest.mark.nightly
def test_a_process_without_rewards_can_be_terminated(tmp_path: Path) -> None:
    assert on_processes(tmp_path, (), function="ended", module=MODULE) == "terminated"


def peak(folder: Path, names: Sequence[str]) -> int:
    """Bytes that an update of a video of nine latent frames takes at the most on this process."""
    job = Job(Accelerator(cpu=True), context_parallel=int(os.environ.get("WORLD_SIZE", "1")))
    call = {"num_frames": 33, "height": 64, "width": 64, "num_inference_steps": 3}
    policy = tiny_policies.policy_of("wan", call=call, update_batch=1, rollout_batch=1)
    job.distribute(policy)
    rollout = policy.rollout(tiny_policies.prompts_of("wan")[:1], group_size=2, seed=1)
    gradients(policy, rollout)  # what is tried first is not measured
    with MemoryMeter(policy.weights.modules["transformer"].parameters()) as meter:
        gradients(policy, rollout)
    return meter.peak


@pytest.mark.nightly
def test_two_that_share_a_sequence_have_half_of_its_activations(tmp_path: Path) -> None:
    shared = on_processes(tmp_path, (), function="peak", module=MODULE)
    assert 0.5 < shared / peak(tmp_path, ()) < 0.6


def refused(folder: Path, names: Sequence[str]) -> list[str]:
    """The error for three processes that cannot share a sequence."""
    job, messages = Job(Accelerator(), context_parallel=3), []
    for policy in (tiny_policies.policy_of("sd3"), tiny_policies.policy_of("wan"), policy_of("llama")):
        with pytest.raises(ConfigError) as error:
            job.distribute(policy)
        messages.append(str(error.value))
    policy = tiny_policies.policy_of("flux", compile=True)
    with pytest.raises(ConfigError, match=r"policy\.compile does not support context-parallel denoisers"):
        job.distribute(policy)
    return messages


@pytest.mark.nightly
def test_unsupported_sequence_sharing_raises(tmp_path: Path) -> None:
    key = "runtime.context_parallel"
    assert on_processes(tmp_path, (), function="refused", module=MODULE, processes=3) == [
        f"{key}: diffusers has no plan (_cp_plan) to split the sequence of SD3Transformer2DModel, the transformer; "
        "remove the setting",
        f"{key}: 3 does not divide the 2 heads of WanTransformer3DModel, the transformer",
        f"LanguagePolicy cannot split sequences: leave out {key}",
    ]


def indivisible(folder: Path, names: Sequence[str]) -> str:
    """The error for two processes and a sequence of odd length."""
    job = Job(Accelerator(), context_parallel=2)
    policy = tiny_policies.policy_of("flux", call={"max_sequence_length": 7})
    job.distribute(policy)
    with pytest.raises(ConfigError) as error:
        policy.rollout(tiny_policies.prompts_of("flux")[:1], group_size=2, seed=1)
    return str(error.value)


@pytest.mark.nightly
def test_an_indivisible_length_raises(tmp_path: Path) -> None:
    messages = on_processes(tmp_path, (), function="indivisible", module=MODULE)
    assert "runtime.context_parallel: 2 does not divide the length of a sequence of FluxTransformer2DModel" in messages


def test_processes_divide_into_those_that_share() -> None:
    with pytest.raises(ConfigError, match=r"context_parallel=2 does not divide the 1 processes .* --processes N"):
        Job(Accelerator(cpu=True), context_parallel=2)
