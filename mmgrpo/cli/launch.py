"""``mmgrpo train --accelerate``: the same command on several processes, by ``accelerate launch``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mmgrpo.config.loading import LAUNCHED, LAUNCHES
from mmgrpo.errors import ConfigError
from mmgrpo.system.console import PlainConsole
from mmgrpo.system.extras import is_installed, missing
from mmgrpo.system.yamls import YamlError, parse_yaml

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
"""Signals that the launcher forwards to its processes; the last two, which Slurm sends, would end it otherwise."""


def launch(accelerate: str, arguments: Sequence[str], *, processes: int | None) -> NoReturn:
    """Replaces this process with ``accelerate launch`` of ``mmgrpo train``.

    Under ``srun`` with one task per node, and ``MASTER_ADDR`` set, it starts the processes of this node.

    Args:
        accelerate: a file that ``accelerate config`` wrote, or the name of one in the package.
        arguments: the arguments of ``train``.
        processes: number of processes on all nodes; None: from the file, else one per GPU.

    Raises:
        ConfigError: the file does not exist, is no YAML or is not supported, or ``MASTER_ADDR`` is not set.
        MissingPackageError: the file uses DeepSpeed, which is not installed.
    """
    options = ["--accelerate", accelerate, *([] if processes is None else ["--processes", str(processes)])]
    file, nodes = _file(accelerate), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    settings = _settings(file)
    if str(settings.get("distributed_type", "")).upper() == "DEEPSPEED" and not is_installed("deepspeed"):
        raise missing("deepspeed", f"--accelerate {accelerate}")
    if settings.get("distributed_type") == "MULTI_CPU" and "mpirun_config" not in settings:
        raise ConfigError(
            f"--accelerate {accelerate}: accelerate needs mpirun for distributed_type MULTI_CPU and starts one process "
            "without it; set distributed_type: MULTI_GPU and use_cpu: true in that file"
        )
    if processes is None and "num_processes" not in settings:
        processes = nodes * _num_gpus()
    command = [sys.executable, "-m", "mmgrpo.cli.accelerate_entry", "--config_file", str(file)]
    command += [] if processes is None else ["--num_processes", str(processes)]
    command += _node_options(nodes) if nodes > 1 else []
    command += ["-m", "mmgrpo.cli", "train", *arguments]
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", SIGNALS)
    os.environ[LAUNCHED] = shlex.join(options)
    number = "the processes" if processes is None else f"{processes} processes"
    PlainConsole(stderr=True).print_line(f"starting {number} with accelerate launch ({accelerate}) ...")
    os.execv(sys.executable, command)


def _node_options(nodes: int) -> list[str]:
    """The options of accelerate for the nodes of a Slurm job step."""
    address = os.environ.get("MASTER_ADDR")
    if address is None:
        raise ConfigError(
            f"--accelerate on {nodes} Slurm nodes needs the address of the first node: export MASTER_ADDR before srun, "
            "as docs/deploy/slurm.sh does"
        )
    rank, port = os.environ["SLURM_NODEID"], os.environ.get("MASTER_PORT", "29500")
    options = {"num_machines": str(nodes), "machine_rank": rank, "main_process_ip": address, "main_process_port": port}
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def _file(name: str) -> Path:
    for path in (Path(name), LAUNCHES / f"{name}.yaml"):
        if path.is_file():
            return path
    valid_names = ", ".join(sorted(path.stem for path in LAUNCHES.glob("*.yaml")))
    raise ConfigError(f"--accelerate {name}: no such file; use {valid_names}, or a file that accelerate config wrote")


def _settings(file: Path) -> Mapping[str, Any]:
    try:
        settings = parse_yaml(file.read_text(encoding="utf-8"))
        return settings if isinstance(settings, Mapping) else {}
    except (YamlError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--accelerate {file}: {error}; create the file with accelerate config") from error


def _num_gpus() -> int:
    import torch

    return max(torch.cuda.device_count(), 1)
