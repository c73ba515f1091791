"""Information about the machine of a run, and the version of the code."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch

from mmgrpo.system.folders import PACKAGE


def machine(device: torch.device, num_processes: int) -> dict[str, Any]:
    """Returns hardware and software facts; ``gpus`` are the visible ones if the run computes on GPUs.

    Args:
        device: device of the main process.
        num_processes: number of processes of the job.

    Returns:
        JSON values; None for unknown ones.
    """
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": device.type,
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "processes": num_processes,
        "threads": torch.get_num_threads(),
        "commit": _imported_commit(),
    }


def commit(package: Path) -> str | None:
    """Returns the commit of the checkout that contains a package at its top, and whether files changed since.

    None without such a checkout: a virtual environment inside another checkout does not count.
    """
    top = _git(package, "rev-parse", "--show-toplevel")
    if not top or Path(top).resolve() != package.parent:
        return None
    head = _git(package, "rev-parse", "HEAD")
    changed = _git(package, "status", "--porcelain", "--untracked-files=no")
    return head and f"{head}, with changes" if changed else head


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        command = ["git", "-C", folder, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() if result.returncode == 0 else None


@cache
def _imported_commit() -> str | None:
    """Returns the commit of this package when the process first needs it: later edits are not imported."""
    return commit(PACKAGE) or _installed_commit()


def _installed_commit() -> str | None:
    """Returns the commit that pip installed, if it installed from a repository."""
    try:
        url_info = json.loads(distribution("mmgrpo").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    return url_info.get("vcs_info", {}).get("commit_id")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()
