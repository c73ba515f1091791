"""Kill trials with real vLLM servers: killed, hung or replaced in a rollout, without memory, or with a killed run.

Each run is interrupted in its third step, and resumes with another server to the weights of the uninterrupted run.
"""

from __future__ import annotations

import copy
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from mmgrpo.examples.language_models import arithmetic_lm
from mmgrpo.policies.engines.vllm_server import VllmServer

from mmgrpo import Trainer
from mmgrpo.errors import EngineError
from mmgrpo.types import Sample
from tests.forked import on_processes
from tests.policies.test_engine_vllm import PROMPTS, PYTHON, VARIABLES, policy_of, pytestmark, started
from tests.policies.test_vllm_server import program
from tests.test_process_guard import wait_until_ended

__all__ = ["pytestmark"]

RUN_MODULE = "tests.policies.test_engine_kill_trials"
OPTIONS = ["--enforce-eager", "--max-model-len", "32"]


def digits(samples: list[Sample]) -> list[float]:
    return [sum(letter in "13579" for letter in sample.text or "") / 4 for sample in samples]


def trainer_of(output: Path, *, resume: Path | None = None, steps: int = 3, **engine: Any) -> Trainer:
    """A run of ``policy_of``; one step ahead of its update if the engine is, with weights for it."""
    policy = policy_of()
    ahead = {"advantage": {"estimators": [{"name": "sampler_weight_truncated"}]}} if "steps_ahead" in engine else {}
    config = {
        **ahead,
        "output": str(output),
        "steps": steps,
        "rollout": {"prompts_per_step": 2, "group_size": 8, "engine": {"name": "vllm", "retries": 0, **engine}},
        "update": {"optimizer": {"lr": 1e-3}},
        "runtime": {"device": "cpu"},
    }
    return Trainer(policy, {"digits": digits}, PROMPTS, config, resume=resume)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmServer]:
    model, processor = arithmetic_lm()
    with started(model, processor, tmp_path_factory.mktemp("server") / "log", "--max-model-len", "32") as server:
        yield server


@pytest.fixture(scope="module")
def expected(server: VllmServer, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights of the uninterrupted run."""
    trainer = trainer_of(tmp_path_factory.mktemp("complete"), url=server.url)
    trainer.train()
    return weights(trainer)


def main_of(server: VllmServer) -> psutil.Process:
    """The process of a server that takes requests."""
    return psutil.Process(server._process.pid).children()[0]


def workers_of(server: VllmServer) -> list[psutil.Process]:
    """The processes of a server that compute: started by one that the main process has started."""
    main = main_of(server)
    workers = [process for process in main.children(recursive=True) if process.ppid() != main.pid]
    assert workers
    return workers


def interrupt(trainer: Trainer, act: Callable[[VllmServer], None], *, after: int = 2, skip: int = 0) -> None:
    """At a request after so many steps, and after others, the server stops; ``act`` follows in two seconds."""
    engine = trainer.algorithm.engine
    submit, requests = engine.submit, itertools.count(1)

    def interrupted(request: Any) -> Future[Any]:
        if len(trainer.folder.lines("metrics.jsonl")) == after and next(requests) == skip + 1:
            for worker in workers_of(engine._server):
                worker.suspend()
            threading.Timer(2.0, act, [engine._server]).start()
        return submit(request)

    engine.submit = interrupted


def kill_server(server: VllmServer) -> None:
    main_of(server).kill()


def kill_workers(server: VllmServer) -> None:
    for worker in workers_of(server):
        worker.kill()


def suspend_server(server: VllmServer) -> None:
    main_of(server).suspend()


def leave_suspended(server: VllmServer) -> None:
    assert all(worker.status() == psutil.STATUS_STOPPED for worker in workers_of(server))


def require_resumed(trainer: Trainer, server: VllmServer, expected: torch.Tensor) -> None:
    """The run resumes after its second step to the weights of the uninterrupted one."""
    folder = trainer.folder.path
    assert [line["step"] for line in trainer.folder.lines("metrics.jsonl")] == [1, 2]
    resumed = trainer_of(folder.parent, resume=folder, url=server.url, python=None)
    assert resumed.step == 2
    resumed.train()
    assert torch.equal(weights(resumed), expected)


@pytest.mark.parametrize("kill", [kill_server, kill_workers])
def test_server_that_is_killed_in_a_rollout_costs_no_step(
    kill: Callable[[VllmServer], None], server: VllmServer, expected: torch.Tensor, tmp_path: Path
) -> None:
    trainer = trainer_of(tmp_path, python=PYTHON, options=OPTIONS, variables=VARIABLES)
    interrupt(trainer, kill)
    with pytest.raises(EngineError, match=r"did not do /inference/v1/generate .*: the server has ended"):
        trainer.train()
    require_resumed(trainer, server, expected)


@pytest.mark.parametrize(
    ("hang", "retries", "error"),
    [
        (leave_suspended, 1, r"did not do /inference/v1/generate \(after 2 attempts: TimeoutError: timed out\)"),
        (suspend_server, 100, r"does not answer /health \(after 1 attempts: TimeoutError: timed out\)"),
    ],
)
def test_server_that_hangs_in_a_rollout_costs_no_step(
    hang: Callable[[VllmServer], None],
    retries: int,
    error: str,
    server: VllmServer,
    expected: torch.Tensor,
    tmp_path: Path,
) -> None:
    limits = {"timeout_s": 30.0, "retries": retries}
    trainer = trainer_of(tmp_path, python=PYTHON, options=OPTIONS, variables=VARIABLES, **limits)
    processes: list[int] = []

    def act(server: VllmServer) -> None:
        processes.extend(process.pid for process in [main_of(server), *workers_of(server)])
        hang(server)

    interrupt(trainer, act)
    with pytest.raises(EngineError, match=error):
        trainer.train()
    assert len(processes) >= 2
    assert wait_until_ended(processes) == []
    require_resumed(trainer, server, expected)


@pytest.mark.parametrize("kill", [kill_server, suspend_server])
def test_server_that_ends_in_an_update_costs_no_step(
    kill: Callable[[VllmServer], None], server: VllmServer, tmp_path: Path
) -> None:
    """One step ahead: the checkpoint of the step has no samples, so the next one has those of the current weights."""
    resumed = resumed_ahead(kill, server, tmp_path, skip=2)
    assert resumed.step == 2
    resumed.train()
    assert [line["rollout/staleness"] for line in resumed.folder.lines("metrics.jsonl")] == [0, 1, 0]


def test_server_that_ends_before_an_update_costs_that_step(server: VllmServer, tmp_path: Path) -> None:
    """At the first of two requests that check its weights."""
    complete = trainer_of(tmp_path / "complete", url=server.url, steps_ahead=1)
    complete.train()
    resumed = resumed_ahead(kill_server, server, tmp_path, skip=0)
    assert resumed.step == 1
    resumed.train()
    assert torch.equal(weights(resumed), weights(complete))


def resumed_ahead(kill: Callable[[VllmServer], None], server: VllmServer, folder: Path, *, skip: int) -> Trainer:
    """A run whose server ends in the second step, after so many requests."""
    engine = {"python": PYTHON, "options": OPTIONS, "variables": VARIABLES, "timeout_s": 30.0}
    trainer = trainer_of(folder, steps_ahead=1, **engine)
    interrupt(trainer, kill, after=1, skip=skip)
    with pytest.raises(EngineError, match=r"the server has ended|does not answer /health"):
        trainer.train()
    return trainer_of(folder, resume=trainer.folder.path, url=server.url, python=None, steps_ahead=1)


def outcome(folder: Path, _names: Sequence[str]) -> torch.Tensor:
    """The trained weights of a run that starts a server."""
    trainer = trainer_of(folder, python=PYTHON, options=OPTIONS, variables=VARIABLES)
    trainer.train()
    return weights(trainer)


def test_processes_share_a_server_that_one_of_them_starts(expected: torch.Tensor, tmp_path: Path) -> None:
    trained = on_processes(tmp_path, [], module=RUN_MODULE, function="outcome")
    assert float((trained - expected).norm() / expected.norm()) < 1e-6


def replace_server(trainer: Trainer, url: str, *, labeled: bool) -> None:
    """After the second step another server has the address; ``labeled`` with the version of the run's weights."""
    engine = trainer.algorithm.engine
    load = engine.load_weights

    def replaced(*args: Any, **kwargs: Any) -> None:
        load(*args, **kwargs)
        if len(trainer.folder.lines("metrics.jsonl")) == 2 and engine._url != url:
            engine._url = url
            engine._post("/update_weight_version", {"new_version": engine._version if labeled else "default"})
            if not labeled:
                load(*args, **kwargs)

    engine.load_weights = replaced


def test_server_that_is_replaced_is_noticed_before_the_update(
    server: VllmServer, expected: torch.Tensor, tmp_path: Path
) -> None:
    model, processor = arithmetic_lm(seed=1)
    with started(model, processor, tmp_path / "log", "--max-model-len", "32") as other:
        trainer = trainer_of(tmp_path / "labeled", url=server.url)
        replace_server(trainer, other.url, labeled=True)
        with pytest.raises(EngineError, match=rf"{other.url} differ by .* its weights are not the current ones"):
            trainer.train()
        require_resumed(trainer, server, expected)
        trainer = trainer_of(tmp_path / "other weights", url=server.url)
        replace_server(trainer, other.url, labeled=False)  # which the trainer sends its weights
        trainer.train()
        assert torch.equal(weights(trainer), expected)


def test_server_of_another_model_is_an_error(server: VllmServer, expected: torch.Tensor, tmp_path: Path) -> None:
    model, processor = arithmetic_lm()
    config = copy.deepcopy(model.config)
    config.num_hidden_layers, config.intermediate_size = 3, 192
    with started(type(model)(config), processor, tmp_path / "log", "--max-model-len", "32") as other:
        trainer = trainer_of(tmp_path, url=server.url)
        replace_server(trainer, other.url, labeled=False)
        with pytest.raises(EngineError, match=rf"{other.url} differ by"):  # it loads the layers that it has
            trainer.train()
        require_resumed(trainer, server, expected)


def test_server_without_memory_does_not_start(tmp_path: Path) -> None:
    python = program(tmp_path, f'ulimit -v 2000000; exec {PYTHON} "$@"')
    trainer = trainer_of(tmp_path / "run", python=python, options=OPTIONS, variables=VARIABLES)
    with pytest.raises(EngineError, match=r"does not start: the server has ended.*(emory|ENOMEM|alloc|map segment)"):
        trainer.train()


def test_server_ends_with_a_killed_run(server: VllmServer, expected: torch.Tensor, tmp_path: Path) -> None:
    command = [sys.executable, "-m", RUN_MODULE, str(tmp_path)]
    with subprocess.Popen(command, start_new_session=True) as run:
        metrics = tmp_path / "run" / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            assert run.poll() is None
            time.sleep(0.05)
        processes = [process.pid for process in psutil.Process(run.pid).children(recursive=True)]
        run.send_signal(signal.SIGKILL)
    assert len(processes) >= 4
    assert wait_until_ended(processes) == []
    resumed = trainer_of(tmp_path, resume=tmp_path / "run", url=server.url, python=None)
    resumed.train()
    assert torch.equal(weights(resumed), expected)


def test_memory_of_trainer_and_server_does_not_grow(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, steps=30, python=PYTHON, options=OPTIONS, variables=VARIABLES)
    engine, megabytes = trainer.algorithm.engine, []
    load = engine.load_weights

    def measured(*args: Any, **kwargs: Any) -> None:
        load(*args, **kwargs)
        processes = {"trainer": [psutil.Process()], "server": [main_of(engine._server), *workers_of(engine._server)]}
        sizes = {name: sum(each.memory_info().rss for each in group) / 2**20 for name, group in processes.items()}
        megabytes.append(sizes)

    engine.load_weights = measured
    trainer.train()
    assert len(megabytes) > 30
    for name in megabytes[0]:
        growth = [sizes[name] - megabytes[10][name] for sizes in megabytes]
        assert growth[-1] < 2 * len(growth[10:]), growth  # vLLM takes up to 1 MB a step


if __name__ == "__main__":
    trainer_of(Path(sys.argv[1]), python=PYTHON, options=OPTIONS, variables=VARIABLES).train()
