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
from mmgrpo.system.yamls import YamlError, parsed_yaml

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
"""Those that the launcher passes on to its processes; by the last two, with which Slurm warns, it would die."""


def launch(accelerate: str, arguments: Sequence[str], *, processes: int | None) -> NoReturn:
    """Becomes ``accelerate launch`` of ``mmgrpo train``.

    Under ``srun`` with a task a node, and ``MASTER_ADDR`` set, it starts the processes of its own node.

    Args:
        accelerate: a file that ``accelerate config`` wrote, or the name of one that comes with the package.
        arguments: of ``train``.
        processes: how many, on all nodes; None: as the file says, else one a GPU.

    Raises:
        ConfigError: there is no such file, it is no YAML or asks for what is not there, or nobody says which node is
            the first.
        MissingPackageError: it asks for DeepSpeed, which is not installed.
    """
    asked = ["--accelerate", accelerate, *([] if processes is None else ["--processes", str(processes)])]
    file, nodes = _file(accelerate), int(os.environ.get("SLURM_STEP_NUM_NODES", "1"))
    settings = _settings(file)
    if str(settings.get("distributed_type", "")).upper() == "DEEPSPEED" and not is_installed("deepspeed"):
        raise missing("deepspeed", f"--accelerate {accelerate}")
    if settings.get("distributed_type") == "MULTI_CPU" and "mpirun_config" not in settings:
        raise ConfigError(
            f"--accelerate {accelerate}: accelerate starts distributed_type MULTI_CPU by mpirun alone, and one process "
            "without it; write MULTI_GPU there, with use_cpu: true"
        )
    if processes is None and "num_processes" not in settings:
        processes = nodes * _num_gpus()
    command = [sys.executable, "-m", "mmgrpo.cli.accelerate_entry", "--config_file", str(file)]
    command += [] if processes is None else ["--num_processes", str(processes)]
    command += _of_node(nodes) if nodes > 1 else []
    command += ["-m", "mmgrpo.cli", "train", *arguments]
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", SIGNALS)
    os.environ[LAUNCHED] = shlex.join(asked)
    number = "the processes" if processes is None else f"{processes} processes"
    PlainConsole(stderr=True).say(f"starting {number} of {accelerate} by accelerate launch ...")
    os.execv(sys.executable, command)


def _of_node(nodes: int) -> list[str]:
    """What accelerate is told of the nodes of a Slurm job's step."""
    address = os.environ.get("MASTER_ADDR")
    if address is None:
        raise ConfigError(
            f"--accelerate on {nodes} nodes of Slurm needs to know the first: export MASTER_ADDR before srun, as "
            "docs/deploy/slurm.sh does"
        )
    rank, port = os.environ["SLURM_NODEID"], os.environ.get("MASTER_PORT", "29500")
    told = {"num_machines": str(nodes), "machine_rank": rank, "main_process_ip": address, "main_process_port": port}
    return [part for name, value in told.items() for part in (f"--{name}", value)]


def _file(name: str) -> Path:
    for path in (Path(name), LAUNCHES / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in LAUNCHES.glob("*.yaml")))
    raise ConfigError(
        f"--accelerate {name}: no such file; {known} come with the package, accelerate config writes others"
    )


def _settings(file: Path) -> Mapping[str, Any]:
    try:
        found = parsed_yaml(file.read_text(encoding="utf-8"))
        return found if isinstance(found, Mapping) else {}
    except (YamlError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--accelerate {file}: {error}; accelerate config writes such a file") from error


def _num_gpus() -> int:
    import torch

    return max(torch.cuda.device_count(), 1)
