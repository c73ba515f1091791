"""Processes of this machine: the identity of this one, and whether another one runs."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from typing import Any


def process_record() -> dict[str, Any]:
    """Host and id of this process, as JSON values."""
    return {"host": platform.node(), "pid": os.getpid()}


def is_gone(record: Mapping[str, Any]) -> bool:
    """Whether the process of a record ran on this host and does not run any more; False if that is unknown."""
    pid = record.get("pid")
    return record.get("host") == platform.node() and isinstance(pid, int) and not is_running(pid)


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
