"""How many processes a launcher started, as it says in the environment of each."""

from __future__ import annotations

import os

WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
"""Set by torchrun and ``accelerate launch``, and by the flavors of mpirun; the first that is set counts."""

SRUN_TASKS = "SLURM_STEP_NUM_TASKS"
"""Set by ``srun`` in each of its tasks, which by itself connects none of them."""


def num_launched() -> int:
    """Processes of the job that this one was launched as part of; 1 where nothing launched it."""
    sizes = (os.environ.get(name, "") for name in (*WORLD_SIZES, SRUN_TASKS))
    return next((int(size) for size in sizes if size.isdigit()), 1)


def launched_by() -> str:
    """The launcher and the variable that states the number of processes, for error messages."""
    variable = next((name for name in (*WORLD_SIZES, SRUN_TASKS) if os.environ.get(name, "").isdigit()), "")
    launcher = {"WORLD_SIZE": "torchrun or accelerate launch", SRUN_TASKS: "srun"}.get(variable, "mpirun")
    return f"{launcher} ({variable}={os.environ.get(variable, '')})"
