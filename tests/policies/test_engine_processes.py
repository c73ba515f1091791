"""Several processes ask one server: it gets the weights once, and the samples are those of one process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.types import Prompt
from tests.forked import on_processes
from tests.policies import relay
from tests.policies.test_engine import trainer_of, weights
from tests.policies.test_vllm_server import program
from tests.policies.tiny_language import policy_of, prompts_of
from tests.policies.token_server import TokenServer


@pytest.fixture
def server() -> Iterator[TokenServer]:
    server = TokenServer(policy_of("llama").model)
    yield server
    server.end()


def evaluated() -> list[Prompt]:
    return list(prompts_of("llama"))[:1]


def outcome(folder: Path, names: Sequence[str]) -> tuple[torch.Tensor, list[dict[str, Any]], list[str]]:
    """The trained weights, the lines of metrics, and the texts of the first step; ``names`` has the engine."""
    key, value, steps_ahead = names
    source = {"source": "python:tests.policies.test_engine_processes:evaluated"}
    average = {"optimizer": {"lr": 1e-2}, "ema": {"decay": 0.5}}
    engine = {key: value, "steps_ahead": int(steps_ahead)}
    trainer = trainer_of(engine, folder, evaluation={"prompts": source, "every": 1}, update=average)
    trainer.train()
    trainer.job.barrier()
    texts = [path.read_text() for path in sorted(trainer.folder.path.glob("samples/*/samples.jsonl"))]
    return weights(trainer), list(trainer.folder.lines("metrics.jsonl")), texts


@pytest.mark.nightly
@pytest.mark.parametrize("steps_ahead", ["0", "1"])
def test_processes_share_a_server_that_one_of_them_starts(
    server: TokenServer, tmp_path: Path, steps_ahead: str
) -> None:
    expected_weights, expected_lines, expected_texts = outcome(tmp_path / "alone", ["url", server.url, steps_ahead])
    alone = list(server.requests)
    server.requests.clear()
    server.version = "default"
    python = program(
        tmp_path,
        f'echo start >> {tmp_path}/starts; exec {sys.executable} -S {relay.__file__} {server.server_port} "$@"',
    )
    trained, lines, texts = on_processes(
        tmp_path, ["python", python, steps_ahead], module="tests.policies.test_engine_processes", function="outcome"
    )
    assert (tmp_path / "starts").read_text() == "start\n"
    assert (
        len(server.bodies("/collective_rpc"))
        == sum(path == "/collective_rpc" for path, _ in alone)
        == 6 - int(steps_ahead)
    )
    for text, expected in zip(texts, expected_texts, strict=True):
        assert expected.startswith(text)  # groups of the other process are not saved
    assert float((trained - expected_weights).norm() / expected_weights.norm()) < 1e-6
    assert [line["reward/mean"] for line in lines] == [line["reward/mean"] for line in expected_lines]
