"""Weights that are broadcast to a server: every tensor of the model's files, once, between start and finish.

NCCL needs two GPUs; gloo broadcasts in its place.
"""

from __future__ import annotations

import pickle
from base64 import b64decode
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.engines import weight_transfer
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.merging import checkpoint_tensors, merged_state, save_with_state
from safetensors.torch import load_file

from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.values import SAMPLER_LOGPROB
from tests.policies import gloo
from tests.policies.contract import move
from tests.policies.test_engine import rollout_of, served
from tests.policies.test_router_replay import moe_policy
from tests.policies.tiny_language import policy_of
from tests.policies.token_server import TokenServer

PROTOCOL = ("/start_weight_update", "/update_weights", "/finish_weight_update", "/update_weight_version", "/resume")


@pytest.fixture
def server() -> Iterator[TokenServer]:
    server = TokenServer(policy_of("llama").model)
    server.transfer = "nccl"
    yield server
    server.end()


@pytest.fixture
def broadcast(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The engine's settings, with gloo in place of NCCL."""
    monkeypatch.setattr(weight_transfer, "NcclCommunicator", gloo.GlooCommunicator)
    return {"transfer": "nccl"}


@pytest.mark.parametrize("lora", [None, {"rank": 2, "init": "gaussian"}], ids=["full", "lora"])
def test_changed_weights_are_broadcast_once(
    server: TokenServer, broadcast: dict[str, Any], lora: dict[str, Any] | None
) -> None:
    policy = served(server, engine=broadcast, lora=lora)
    rollout_of(policy)
    move(policy.trainable)
    server.requests.clear()
    rollout = rollout_of(policy)
    rollout_of(policy)
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    paths = [path for path, _ in server.requests if path in PROTOCOL]
    assert paths == ["/update_weight_version", *PROTOCOL]  # the version is that of no run meanwhile
    (update,) = server.bodies("/update_weights")
    sent = checkpoint_tensors(policy.model, merged_state(policy.model))
    shapes = {name: list(tensor.shape) for name, tensor in sent.items()}
    assert dict(zip(update["update_info"]["names"], update["update_info"]["shapes"], strict=True)) == shapes


def test_a_restarted_server_is_connected_to_again(server: TokenServer, broadcast: dict[str, Any]) -> None:
    policy = served(server, engine=broadcast)
    rollout_of(policy)
    server.version, server.model = "default", policy_of("llama").model
    del server.group
    move(policy.trainable)
    rollout = rollout_of(policy)
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    assert len(server.bodies("/init_weight_transfer_engine")) == 2


def test_a_transfer_is_requested_once(server: TokenServer, broadcast: dict[str, Any]) -> None:
    """A second request would wait for tensors that were broadcast to the first one."""
    reply = server.reply

    def fails(path: str, body: Any) -> tuple[int, Any]:
        return (503, {"error": "busy"}) if path == "/start_weight_update" else reply(path, body)

    server.reply = fails  # pyrefly: ignore[bad-assignment]
    with pytest.raises(EngineError, match=r"did not do /start_weight_update \(after 1 attempts: HTTP 503"):
        served(server, engine={**broadcast, "retries": 2})


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2.5-vl", "qwen3-moe"])
def test_tensors_are_those_of_the_files(name: str, tmp_path: Path) -> None:
    """Experts, which transformers merges, are separate in the files."""
    lora = {"rank": 2, "init": "gaussian"}
    policy = moe_policy("qwen3_moe", lora=lora) if name == "qwen3-moe" else policy_of(name, lora=lora)
    save_with_state(policy.model, merged_state(policy.model), tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    sent = checkpoint_tensors(policy.model, merged_state(policy.model))
    assert sent.keys() == stored.keys()
    assert all(torch.equal(sent[name], stored[name]) for name in stored)


def test_a_server_without_the_option_is_an_error_before_the_run(server: TokenServer, broadcast: dict[str, Any]) -> None:
    server.transfer = None
    with pytest.raises(ConfigError, match=r"is started with --weight-transfer-config '{\"backend\": \"nccl\"}'"):
        served(server, engine={**broadcast, "timeout_s": 10.0})


def test_a_failed_transfer_is_an_error_and_leaves_no_version(
    server: TokenServer, broadcast: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = served(server, engine=broadcast)
    rollout_of(policy)
    move(policy.trainable)

    def fails(communicator: gloo.GlooCommunicator, tensor: torch.Tensor) -> None:
        raise RuntimeError("connection closed by peer")

    with monkeypatch.context() as patch:
        patch.setattr(gloo.GlooCommunicator, "broadcast", fails)
        with pytest.raises(EngineError, match=r"not transferred \(connection closed by peer\): resume the run"):
            rollout_of(policy)
    assert server.version == "loading"


@pytest.mark.parametrize("transfer", ["nccl", "ipc"])
def test_a_policy_on_a_cpu_is_an_error(server: TokenServer, transfer: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"transfer: {transfer} needs a policy on a GPU, not on cpu: set it to files"
    ):
        served(server, engine={"transfer": transfer})


def test_invalid_settings_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="transfer is one of files, nccl, ipc, got 'rdma'"):
        VllmEngine(url="http://127.0.0.1:1", transfer="rdma")  # pyrefly: ignore[bad-argument-type]
    with pytest.raises(ConfigError, match="weights_folder has no effect with transfer: nccl"):
        VllmEngine(url="http://127.0.0.1:1", transfer="nccl", weights_folder=str(tmp_path))
    VllmEngine(url="http://127.0.0.1:1", transfer="nccl", weights_folder=str(tmp_path), load_adapters=True)


def test_handles_of_shared_memory_are_sent_by_the_gpus_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU and its driver do is replaced; the request has vLLM's form (``IPCWeightTransferUpdateInfo``)."""
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    monkeypatch.setattr(weight_transfer, "_uuid", lambda tensor: "GPU-1")
    monkeypatch.setattr(
        torch.multiprocessing.reductions, "reduce_tensor", lambda tensor: (None, ("handle", tensor.numel()))
    )
    posted: list[tuple[str, Any]] = []
    control = weight_transfer.ServerControl(
        get=lambda path: None,
        post=lambda path, body: None,
        post_once=lambda path, body: posted.append((path, body)),
        replacing=nullcontext,
        timeout_s=1.0,
    )
    tensors = {"a.weight": torch.zeros(2, 3), "b": torch.zeros(5, dtype=torch.bfloat16)}
    weights = weight_transfer.EngineWeights(save=lambda folder: None, tensors=lambda: tensors)
    transfer = weight_transfer.transfer_of("ipc", None)
    transfer.send(control, weights)
    (_, (path, update), _), information = posted, posted[1][1]["update_info"]
    assert (path, sorted(update)) == ("/update_weights", ["update_info"])
    handles = pickle.loads(b64decode(information.pop("ipc_handles_pickled")))
    assert handles == [{"GPU-1": ("handle", 6)}, {"GPU-1": ("handle", 5)}]
    assert information == {
        "names": ["a.weight", "b"],
        "dtype_names": ["float32", "bfloat16"],
        "shapes": [[2, 3], [5]],
    }
    assert transfer.variables == {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}
    assert transfer.options == ("--weight-transfer-config", '{"backend": "ipc"}')
