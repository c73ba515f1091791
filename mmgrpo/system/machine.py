"""The machine that a run is on, and which state of our code it runs."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import torch

from mmgrpo.system.folders import PACKAGE


def machine(device: torch.device, num_processes: int) -> dict[str, Any]:
    """What a reader of times and numbers asks first: ``gpus`` are those in sight where the run computes on such.

    Args:
        device: what the main process computes on.
        num_processes: of the whole job.

    Returns:
        Plain values, as JSON has them; None for what cannot be told.
    """
    gpus = range(torch.cuda.device_count()) if device.type == "cuda" else ()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": device.type,
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
        "processes": num_processes,
        "threads": torch.get_num_threads(),
        "commit": commit(PACKAGE) or _installed_commit(),
    }


def commit(package: Path) -> str | None:
    """The commit of the checkout that a package lies at the top of, and whether files were changed since.

    None where there is no such checkout: a virtual environment within somebody else's is none.
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
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _installed_commit() -> str | None:
    """The commit that pip installed from, if it was given a repository."""
    try:
        told = json.loads(distribution("mmgrpo").read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return None
    return told.get("vcs_info", {}).get("commit_id")


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()
