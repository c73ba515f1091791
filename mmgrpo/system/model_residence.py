"""Models of rewards that leave the accelerator while no reward is called."""

from __future__ import annotations

from threading import RLock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

HOST = torch.device("cpu")

_devices: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_lock = RLock()  # rewards may be called from several threads
_is_offloaded = False


def register_model(model: nn.Module, device: torch.device) -> None:
    """Registers a frozen model of a reward, which is on its device; one on the CPU stays there.

    Args:
        model: the model.
        device: the device on which the reward calls it.
    """
    if device.type != HOST.type:
        _devices[model] = device


def offload_models() -> None:
    """Moves all registered models to the CPU, and frees their memory on the accelerator."""
    global _is_offloaded
    with _lock:
        for model in _devices:
            model.to(HOST)
        _is_offloaded = True
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def restore_models() -> None:
    """Moves all registered models back to their devices, if they were offloaded."""
    global _is_offloaded
    with _lock:
        if not _is_offloaded:
            return
        for model, device in _devices.items():
            model.to(device)
        _is_offloaded = False
