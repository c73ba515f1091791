"""Accelerate's view of the processes of a run."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, InitProcessGroupKwargs

from mmgrpo.config import RunConfig
from mmgrpo.errors import ConfigError
from mmgrpo.system.extras import TRACKERS_KEY, require_installed
from mmgrpo.system.launch_environment import launched_by, num_launched


def make_accelerator(config: RunConfig) -> Accelerator:
    """Makes Accelerate's view of the processes, with the run's trackers.

    Processes that a launcher started on a machine without a GPU form a job on the CPU, as with ``runtime.device: cpu``.

    Args:
        config: the run's configuration.

    Returns:
        The accelerator.

    Raises:
        MissingPackageError: a tracker is not installed.
        ConfigError: several processes were launched, and Accelerate does not connect them to one job.
    """
    require_installed(config.runtime.tracker_names, TRACKERS_KEY)
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"  # else transformers loads the weights on one process only
    num_processes, device = num_launched(), config.runtime.device
    accelerator = Accelerator(
        cpu=device == "cpu" or (num_processes > 1 and device is None and not torch.accelerator.is_available()),
        kwargs_handlers=[InitProcessGroupKwargs(timeout=timedelta(seconds=config.runtime.collective_timeout_s))],
        log_with=list(config.runtime.tracker_names) or None,
        project_dir=str(Path(config.output).absolute()),  # Trackers.start replaces it by the run folder
    )
    if accelerator.num_processes != num_processes:
        raise ConfigError(
            f"{launched_by()} started {num_processes} processes, and accelerate connects {accelerator.num_processes} "
            "of them: each would train a separate run. Start them as one job, mmgrpo train CONFIG --accelerate gpus "
            "--processes N (under srun with one task per node and MASTER_ADDR set), on the CPU with "
            "runtime.device=cpu; for separate runs, set WORLD_SIZE=1 in each process"
        )
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        from transformers.integrations import unset_hf_deepspeed_config

        unset_hf_deepspeed_config()  # else transformers shards the weights that it loads, without regard to blocks
    return accelerator
