"""Broadcasts by gloo, in place of NCCL, which needs GPUs; without imports of mmgrpo: a vLLM server reads this file."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

TIMEOUT = timedelta(seconds=60)


class Group:
    """A group of processes or threads."""

    def __init__(self, store: dist.TCPStore, rank: int, size: int) -> None:
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, TIMEOUT)

    def broadcast(self, tensor: Tensor, src: int = 0, stream: Any = None) -> None:
        self._group.broadcast(tensor, src).wait()

    def destroy(self) -> None:
        """Nothing to free."""


class GlooCommunicator:
    """The trainer's end, in place of ``NcclCommunicator``."""

    def __init__(self, device: torch.device) -> None:
        self._store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @property
    def init_info(self) -> dict[str, Any]:
        return {"master_address": "127.0.0.1", "master_port": self._store.port}

    def join(self, world_size: int) -> None:
        self._group = Group(self._store, 0, world_size)

    def broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast(tensor)

    def wait(self) -> None:
        """All have arrived."""


def joined(init_info: Any, rank: int = 0) -> Group:
    """The server's end."""
    store = dist.TCPStore(init_info.master_address, init_info.master_port, is_master=False)
    return Group(store, rank + init_info.rank_offset, init_info.world_size)


def register() -> None:
    """Called by vLLM as its plugin: the engine for NCCL receives by gloo."""
    from vllm.distributed.weight_transfer import nccl_engine  # pyrefly: ignore[missing-import]

    nccl_engine.worker_init_process_group = lambda init_info, parallel: joined(init_info, parallel.rank)
    torch.cuda.current_stream = lambda device=None: None  # pyrefly: ignore[bad-assignment]
