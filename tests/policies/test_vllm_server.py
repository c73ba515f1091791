"""A server that is started for a run answers, ends with the run, and explains its failures by its log."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.engines.engine import EngineModel, EngineWeights
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.engines.vllm_server import ServerCommand, VllmServer

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.explain.explanation import explanation
from mmgrpo.runs.trust import untrusted_settings
from mmgrpo.types import Sample
from tests.policies import relay
from tests.policies.test_engine import server, trainer_of, vowels, weights
from tests.policies.token_server import TokenServer
from tests.test_process_guard import alive, wait_until_ended

__all__ = ["server"]

FAILURE = """
echo 'INFO: starting'
echo '(Worker pid=2) ERROR 11-28 17:22:38 [executor.py:1063] RuntimeError: no heads of size 24'
echo '(Worker pid=2) ERROR 11-28 17:22:38 [executor.py:1064] RuntimeError: no heads of size 24'
echo '(EngineCore pid=3) ERROR 11-28 17:22:38 [core.py:9]   File "core.py", line 1'
echo '(EngineCore pid=3) ERROR 11-28 17:22:38 [core.py:9] vllm.v1.EngineDeadError: see above'
echo 'INFO: ended'
exit 1
"""


def program(folder: Path, script: str) -> str:
    """A program with the place of a Python of vLLM."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def started(
    folder: Path, script: str, *, timeout_s: float = 60.0, options: Sequence[str] = (), **variables: Any
) -> VllmServer:
    command = ServerCommand(python=program(folder, script), options=options, variables=variables, timeout_s=timeout_s)
    model = EngineModel(
        num_tokens=5,
        dtype="float32",
        head_size=8,
        device=torch.device("cpu"),
        weights=EngineWeights(save=lambda folder: None, tensors=dict),
    )
    return VllmServer(command, model, folder / "engine.log")


def test_server_that_ends_early_is_explained_by_its_log(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("ValueError: of an earlier start\n")
    with pytest.raises(EngineError, match="does not start: the server has ended; errors in") as failure:
        started(tmp_path, FAILURE)
    assert str(failure.value).endswith("log: RuntimeError: no heads of size 24 | vllm.v1.EngineDeadError: see above")
    with pytest.raises(EngineError, match=r"has ended without an error; .*log: usage \| no such option$"):
        started(tmp_path, "echo usage; echo no such option; exit 2")


def test_command_has_options_and_variables_without_those_of_torchrun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    with pytest.raises(EngineError) as failure:
        started(
            tmp_path,
            "echo $*; echo mode $VLLM_SERVER_DEV_MODE rank $RANK$TORCHELASTIC_RUN_ID space $SPACE",
            options=["--max-model-len", "64"],
            SPACE=1,
        )
    command, variables = str(failure.value).partition("log: ")[2].split(" | ")
    assert command.startswith("-m vllm.entrypoints.openai.api_server --model ")
    assert " --dtype float32 --host 127.0.0.1 --port " in command
    assert command.endswith(" --enable-scale-out --logprobs-mode processed_logprobs --max-model-len 64")
    assert variables == "mode 1 rank space 1"


@pytest.mark.nightly
def test_server_that_does_not_answer_in_time_ends(tmp_path: Path) -> None:
    script = f"echo $$ > {tmp_path}/pids; setsid sleep 1000 & echo $! >> {tmp_path}/pids; exec sleep 1000"
    with pytest.raises(EngineError, match=r"does not answer within start_timeout_s=0\.3 seconds; .*log: none$"):
        started(tmp_path, script, timeout_s=0.3)
    assert wait_until_ended([int(pid) for pid in (tmp_path / "pids").read_text().split()]) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "either url, .* or python"),
        ({"url": "http://127.0.0.1:1", "python": sys.executable}, "either url, .* or python"),
        (
            {"url": "http://127.0.0.1:1", "options": ["--foo"]},
            "options and variables are those of a server",
        ),
        ({"python": sys.executable, "options": "--foo"}, "options is a list of texts"),
        ({"python": sys.executable, "start_timeout_s": 0.0}, r"start_timeout_s is above 0, got 0\.0"),
    ],
)
def test_invalid_settings_raise_errors(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VllmEngine(**settings)


def test_program_and_folder_are_needed_where_the_server_starts_alone(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "policy": {"name": "language", "model": "no/such/model"},
        "prompts": {"source": "rows.jsonl"},
        "rewards": [{"name": "exact_match"}],
        "rollout": {"engine": {"name": "vllm", "python": "no/such/python"}},
    }
    assert "vllm, started by no/such/python, generates the samples" in explanation(validated(values))
    message = r"there is no program no/such/python; .*vllm-env/bin/python \(https://.*/how-to/engines/\)"
    with pytest.raises(ConfigError, match=message):
        Trainer(None, None, ["a"], values)
    values["rollout"]["engine"] = {"name": "vllm", "url": "http://127.0.0.1:1", "weights_folder": str(tmp_path / "no")}
    assert "vllm, http://127.0.0.1:1, generates the samples" in explanation(validated(values))
    with pytest.raises(ConfigError, match="weights_folder: there is no folder"):
        Trainer(None, None, ["a"], values)


def test_program_of_configuration_of_other_user_needs_trust() -> None:
    values = {"rollout": {"engine": {"name": "vllm", "python": "/tmp/python"}}}
    assert list(untrusted_settings(values)) == ["rollout.engine.python: '/tmp/python'"]


@pytest.mark.nightly
def test_run_starts_its_server_and_resumes_after_it_was_killed(server: TokenServer, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    python = program(
        tmp_path,
        f'echo $$ >> {pids}; exec {sys.executable} -S {relay.__file__} {server.server_port} "$@"',
    )

    def killing(samples: list[Sample]) -> list[float]:
        if len(broken.folder.lines("metrics.jsonl")) == 1:
            os.kill(int(pids.read_text()), signal.SIGKILL)
        return vowels(samples)

    broken = trainer_of({"python": python}, tmp_path / "broken", reward=killing)
    with pytest.raises(EngineError, match=r"does not answer /weight_info .*: the server has ended .*run/engine\.log: "):
        broken.train()
    resumed = trainer_of({"python": python}, tmp_path / "broken", resume=broken.folder.path)
    resumed.train()
    lines = resumed.folder.lines("metrics.jsonl")
    assert [(line["step"], line["rollout/engine_mismatch"] < 1e-4) for line in lines] == [
        (1, True),
        (2, True),
        (3, True),
    ]
    complete = trainer_of({"url": server.url}, tmp_path / "complete")
    complete.train()
    assert torch.equal(weights(resumed), weights(complete))
    assert [alive(int(pid)) for pid in pids.read_text().split()] == [False, False]
