"""Processes of this machine: the identity of this one, and whether another one runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""On Linux, another one after every start of a machine: host names repeat among machines that share a disk."""


def process_record() -> dict[str, Any]:
    """Machine and id of this process, as JSON values."""
    return {**_machine_record(), "pid": os.getpid()}


def is_gone(record: Mapping[str, Any]) -> bool:
    """Whether the process of a record ran on this machine and does not run any more; False if that is unknown."""
    here, pid = _machine_record(), record.get("pid")
    return all(record.get(key) == value for key, value in here.items()) and isinstance(pid, int) and not is_running(pid)


def _machine_record() -> dict[str, Any]:
    return {"host": platform.node(), "boot": BOOT_ID.read_text(encoding="ascii").strip() if BOOT_ID.exists() else None}


def is_running(pid: int) -> bool:
    """Whether a process of this machine runs or is stopped; False for a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except OSError:
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
