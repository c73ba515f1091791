"""``mmgrpo train --accelerate``: the same command on several processes, by ``accelerate launch``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mmgrpo.config.loading import LAUNCHES
from mmgrpo.errors import ConfigError
from mmgrpo.system.yamls import YamlError, parsed_yaml

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"
"""Those that the launcher passes on to its processes; by the last two, with which Slurm warns, it would die."""


def launch(accelerate: str, arguments: Sequence[str], *, processes: int | None) -> NoReturn:
    """Becomes ``accelerate launch`` of ``mmgrpo train``.

    Args:
        accelerate: a file that ``accelerate config`` wrote, or the name of one that comes with the package.
        arguments: of ``train``.
        processes: how many; None: as the file says, else one a GPU.

    Raises:
        ConfigError: there is no such file, or it is no YAML.
    """
    file = _file(accelerate)
    if processes is None and not _says_how_many(file):
        processes = _num_gpus()
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(file)]
    command += [] if processes is None else ["--num_processes", str(processes)]
    command += ["-m", "mmgrpo.cli", "train", *arguments]
    os.environ.setdefault("PET_SIGNALS_TO_HANDLE", SIGNALS)
    os.execv(sys.executable, command)


def _file(name: str) -> Path:
    for path in (Path(name), LAUNCHES / f"{name}.yaml"):
        if path.is_file():
            return path
    known = ", ".join(sorted(path.stem for path in LAUNCHES.glob("*.yaml")))
    raise ConfigError(
        f"--accelerate {name}: no such file; {known} come with the package, accelerate config writes others"
    )


def _says_how_many(file: Path) -> bool:
    try:
        return "num_processes" in (parsed_yaml(file.read_text()) or {})
    except (YamlError, OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--accelerate {file}: {error}; accelerate config writes such a file") from error


def _num_gpus() -> int:
    import torch

    return max(torch.cuda.device_count(), 1)
