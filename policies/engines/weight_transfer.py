"""How weights get to a vLLM server: by files that it reads, between GPUs by NCCL, or on one GPU by shared memory (IPC).

The last two are vLLM's weight transfer protocol: init, start, update, finish.

Source: vLLM 0.32, ``distributed/weight_transfer`` and ``entrypoints/rl/online``.
"""

from __future__ import annotations

import base64
import json
import pickle
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import Future, as_completed
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.system.lazy import torch

from .engine import EngineWeights

if TYPE_CHECKING:
    from torch import Tensor

Transfer = Literal["files", "nccl", "ipc"]

CONFIG_OPTION = "--weight-transfer-config"
RANK = 0
"""The trainer's rank among the processes that weights are broadcast to; those of the server follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerControl:
    """What a transfer asks a server for.

    Attributes:
        get: reads a path.
        post: sends a body to a path, again if it fails for a passing reason.
        post_once: sends a body to a path once: other processes take part in what it starts.
        replacing: a context in which the server is paused and has no version of weights that a run accepts.
        timeout_s: seconds that loading weights may take.
    """

    get: Callable[[str], Any]
    post: Callable[[str, Mapping[str, Any]], Any]
    post_once: Callable[[str, Mapping[str, Any]], Any]
    replacing: Callable[[], AbstractContextManager[None]]
    timeout_s: float


class WeightTransfer(ABC):
    """Sends weights to a server."""

    @property
    @abstractmethod
    def options(self) -> tuple[str, ...]:
        """Options of the server."""

    @property
    @abstractmethod
    def variables(self) -> Mapping[str, str]:
        """Environment variables of the server."""

    @abstractmethod
    def connect(self, server: ServerControl, device: torch.device) -> None:
        """Prepares the transfer; once, before the first one.

        Args:
            server: the server.
            device: where the weights are.

        Raises:
            ConfigError: the device or the server does not support it.
        """

    @abstractmethod
    def send(self, server: ServerControl, weights: EngineWeights) -> None:
        """Replaces the weights of the server.

        Args:
            server: the server.
            weights: the weights.

        Raises:
            EngineError: the server does not load them.
        """


@final
class FileTransfer(WeightTransfer):
    """Safetensors files in a folder that the server sees under the same path."""

    def __init__(self, parent: str | None) -> None:
        """Args: parent: existing folder for the files; None: a temporary one."""
        self._parent = parent

    @property
    def options(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def variables(self) -> Mapping[str, str]:
        """None."""
        return {}

    def connect(self, server: ServerControl, device: torch.device) -> None:
        """Needs no preparation."""

    def send(self, server: ServerControl, weights: EngineWeights) -> None:
        """Writes the files before it pauses the server."""
        with tempfile.TemporaryDirectory(prefix="mmgrpo-weights-", dir=self._parent) as folder:
            weights.save(Path(folder))
            with server.replacing():
                server.post(
                    "/collective_rpc",
                    {"method": "reload_weights", "kwargs": {"weights_path": folder}, "timeout": server.timeout_s},
                )


class TransferBackend(ABC):
    """Sends the tensors of an update, between its start and its finish."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Its name in vLLM."""

    @property
    @abstractmethod
    def variables(self) -> Mapping[str, str]:
        """Environment variables of the server."""

    @abstractmethod
    def connect(self, server: ServerControl, device: torch.device) -> None:
        """Introduces trainer and server to each other. Raises ConfigError for another device, EngineError."""

    @abstractmethod
    def update(self, server: ServerControl, tensors: Mapping[str, Tensor], information: Mapping[str, Any]) -> None:
        """Sends contiguous tensors.

        Args:
            server: the server.
            tensors: tensors by name.
            information: their names, dtypes and shapes, in the names of vLLM.
        """


@final
class ProtocolTransfer(WeightTransfer):
    """vLLM's protocol: init, start, update, finish."""

    def __init__(self, backend: TransferBackend) -> None:
        """Args: backend: sends the tensors of an update."""
        self._backend = backend

    @property
    def options(self) -> tuple[str, ...]:
        """The option that names the backend."""
        return (CONFIG_OPTION, json.dumps({"backend": self._backend.name}))

    @property
    def variables(self) -> Mapping[str, str]:
        """Those of the backend."""
        return self._backend.variables

    def connect(self, server: ServerControl, device: torch.device) -> None:
        """Introduces trainer and server to each other."""
        try:
            self._backend.connect(server, device)
        except EngineError as error:
            raise ConfigError(
                f"{error}. A server for rollout.engine.transfer: {self._backend.name} is started with "
                f"{CONFIG_OPTION} '{self.options[1]}'"
            ) from error

    def send(self, server: ServerControl, weights: EngineWeights) -> None:
        """Starts an update, transfers the tensors, and finishes it."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in weights.tensors().items()}
        information = {
            "names": list(tensors),
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()],
            "shapes": [list(tensor.shape) for tensor in tensors.values()],
        }
        with server.replacing():
            server.post_once("/start_weight_update", {})
            self._backend.update(server, tensors, information)
            server.post_once("/finish_weight_update", {})


class Communicator(ABC):
    """Broadcasts tensors from this process to those of a server."""

    @property
    @abstractmethod
    def init_info(self) -> Mapping[str, Any]:
        """What the server needs for joining, in the names of vLLM."""

    @abstractmethod
    def join(self, world_size: int) -> None:
        """Joins as rank ``RANK``; returns when all have joined."""

    @abstractmethod
    def broadcast(self, tensor: Tensor) -> None:
        """Sends a contiguous tensor; may return before it has arrived."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when all tensors have been sent."""


@final
class NcclCommunicator(Communicator):
    """NCCL of torch, without a process group."""

    def __init__(self, device: torch.device) -> None:
        """Creates an id for the group. Args: device: the GPU that tensors are sent from."""
        if device.type != "cuda":
            raise ConfigError(
                f"rollout.engine.transfer: nccl needs a policy on a GPU, not on {device}: set it to files"
            )
        self._device, self._id = device, torch.cuda.nccl.unique_id()
        self._group: Any = None

    @property
    def init_info(self) -> Mapping[str, Any]:
        """The id of the group."""
        return {"nccl_unique_id_b64": base64.b64encode(self._id).decode()}

    def join(self, world_size: int) -> None:
        """Joins, and sums one number over all, as vLLM does after joining."""
        with torch.cuda.device(self._device):
            self._group = torch.cuda.nccl.init_rank(world_size, self._id, RANK)
            torch.cuda.nccl.all_reduce([torch.zeros(1, device=self._device)], comms=[self._group])
            torch.cuda.synchronize()

    def broadcast(self, tensor: Tensor) -> None:
        """Sends a tensor on the current stream."""
        with torch.cuda.device(self._device):
            torch.cuda.nccl.broadcast([tensor], RANK, comms=[self._group])

    def wait(self) -> None:
        """Waits for the device."""
        torch.cuda.synchronize(self._device)


@final
class NcclBackend(TransferBackend):
    """Tensors are broadcast to the processes of a server on other GPUs."""

    def __init__(self) -> None:
        """Joins no group yet."""
        self._communicator: Communicator | None = None

    @property
    def name(self) -> str:
        """NCCL."""
        return "nccl"

    @property
    def variables(self) -> Mapping[str, str]:
        """None."""
        return {}

    def connect(self, server: ServerControl, device: torch.device) -> None:
        """Trainer and server join a group."""
        communicator = NcclCommunicator(device)
        world_size = int(server.get("/get_world_size")["world_size"]) + 1
        init_info = {**communicator.init_info, "rank_offset": RANK + 1, "world_size": world_size}
        _concurrently(
            lambda: server.post_once("/init_weight_transfer_engine", {"init_info": init_info}),
            lambda: communicator.join(world_size),
            server.timeout_s,
        )
        self._communicator = communicator

    def update(self, server: ServerControl, tensors: Mapping[str, Tensor], information: Mapping[str, Any]) -> None:
        """Broadcasts each tensor while the server receives them."""
        communicator = self._communicator
        assert communicator is not None

        def broadcast() -> None:
            for tensor in tensors.values():
                communicator.broadcast(tensor)
            communicator.wait()

        _concurrently(
            lambda: server.post_once("/update_weights", {"update_info": information}), broadcast, server.timeout_s
        )


@final
class IpcBackend(TransferBackend):
    """The server reads the tensors where they are, on the same GPU.

    Handles of tensors are pickled, which vLLM reads only with ``VLLM_ALLOW_INSECURE_SERIALIZATION=1``.
    """

    @property
    def name(self) -> str:
        """Memory that processes share."""
        return "ipc"

    @property
    def variables(self) -> Mapping[str, str]:
        """Permission to unpickle the handles."""
        return {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

    def connect(self, server: ServerControl, device: torch.device) -> None:
        """States that each tensor has a handle."""
        if device.type != "cuda":
            raise ConfigError(f"rollout.engine.transfer: ipc needs a policy on a GPU, not on {device}: set it to files")
        server.post_once("/init_weight_transfer_engine", {"init_info": {"packed": False}})

    def update(self, server: ServerControl, tensors: Mapping[str, Tensor], information: Mapping[str, Any]) -> None:
        """Sends the handles."""
        torch.cuda.synchronize()
        handles = [
            {_uuid(tensor): torch.multiprocessing.reductions.reduce_tensor(tensor)[1]} for tensor in tensors.values()
        ]
        pickled = base64.b64encode(pickle.dumps(handles)).decode()
        server.post_once("/update_weights", {"update_info": {**information, "ipc_handles_pickled": pickled}})


def transfer_of(name: Transfer, folder: str | None) -> WeightTransfer:
    """The transfer of a name; ``folder`` is the parent of its files. Raises ConfigError for an unknown name."""
    transfers: dict[str, Callable[[], WeightTransfer]] = {
        "files": lambda: FileTransfer(folder),
        "nccl": lambda: ProtocolTransfer(NcclBackend()),
        "ipc": lambda: ProtocolTransfer(IpcBackend()),
    }
    if name not in transfers:
        raise ConfigError(f"rollout.engine.transfer is one of {', '.join(transfers)}, got {name!r}")
    return transfers[name]()


def _uuid(tensor: Tensor) -> str:
    """The GPU of a tensor, in the name that all processes have for it."""
    return str(torch.cuda.get_device_properties(tensor.device).uuid)


def _in_thread(function: Callable[[], Any]) -> Future[Any]:
    """The result of a function in a daemon thread, which may never end if the server does."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except Exception as error:  # raised where the result is read
            future.set_exception(error)

    threading.Thread(target=run, name="weights", daemon=True).start()
    return future


def _concurrently(request: Callable[[], Any], work: Callable[[], None], timeout_s: float) -> None:
    """Does work while the server does its part; if one fails, waits for the other no longer. Raises EngineError."""
    try:
        for future in as_completed([_in_thread(request), _in_thread(work)], timeout_s):
            future.result()
    except TimeoutError as error:
        raise EngineError(
            f"rollout.engine: weights were not transferred within timeout_s={timeout_s:g} seconds: resume the run"
        ) from error
    except RuntimeError as error:
        raise EngineError(f"rollout.engine: weights were not transferred ({error}): resume the run") from error
