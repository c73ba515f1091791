#!/bin/bash
# Several nodes under Slurm: sbatch docs/deploy/slurm.sh recipes/sd3.5-flow-grpo-fast output=/shared/runs
# To go on:                  sbatch docs/deploy/slurm.sh --resume /shared/runs/sd3.5-flow-grpo-fast
#SBATCH --job-name=mmgrpo
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=USR1@120
#SBATCH --requeue
set -euo pipefail

# One task a node; each starts a process a GPU of its node. The run folder, the model and the data lie on a disk that all
# nodes see. USR1 comes 120 s before the end of the time to every process: the step at hand is given up and the one before saved.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_ADDR MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export HF_HUB_OFFLINE=${HF_HUB_OFFLINE:-0} OMP_NUM_THREADS=8

srun --kill-on-bad-exit=1 mmgrpo train "$@" --accelerate "${ENGINE:-gpus}"
