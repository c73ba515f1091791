"""The number of processes that a launcher started, from the environment variables that it sets."""

from __future__ import annotations

import os
from collections.abc import Mapping

WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Variables of torchrun, ``accelerate launch`` and the variants of mpirun; the first one that is set counts."""

SRUN_TASKS = "SLURM_STEP_NUM_TASKS"
"""Variable that ``srun`` sets in each of its tasks; it does not connect them."""

LAUNCHER_VARIABLES = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables by which torchrun connects the processes of a job; ``TORCHELASTIC_*`` are its further ones."""


def num_launched() -> int:
    """Returns the number of processes of this process's job; 1 without a launcher."""
    sizes = (os.environ.get(name, "") for name in (*WORLD_SIZES, SRUN_TASKS))
    return next((int(size) for size in sizes if size.isdigit()), 1)


def launched_by() -> str:
    """Returns the launcher and the variable with the number of processes, for error messages."""
    variable = next((name for name in (*WORLD_SIZES, SRUN_TASKS) if os.environ.get(name, "").isdigit()), "")
    launcher = {"WORLD_SIZE": "torchrun or accelerate launch", SRUN_TASKS: "srun"}.get(variable, "mpirun")
    return f"{launcher} ({variable}={os.environ.get(variable, '')})"


def without_launcher(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables of a program that is no process of this job."""
    return {
        name: value
        for name, value in variables.items()
        if name not in LAUNCHER_VARIABLES and not name.startswith("TORCHELASTIC_")
    }
