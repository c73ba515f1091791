"""Steps per hour with a reward that waits, called during the rollout and after it, alternating in one process.

python -m benchmarks.overlap [--wait-ms 5 20] [--repeat 5]

The digits model draws ``groups`` groups, one per pipeline run; the reward waits this long per sample, like a judge at
an endpoint, and computes nothing. A step is a rollout and its scores, without the update.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from statistics import median

import torch
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.examples.pipelines import digits_pipeline
from mmgrpo.policies.diffusion import DenoisingPolicy

from mmgrpo.scoring import NamedReward, Scorer
from mmgrpo.types import Plan, Sample

CALL = {"height": 8, "width": 8, "num_inference_steps": 10, "guidance_scale": 1.0, "max_sequence_length": 1}
GROUP_SIZE = 16


def main() -> None:
    """Prints a line per waiting time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wait-ms", type=float, nargs="+", default=[0.0, 2.0, 5.0, 20.0], help="per sample")
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policy = DenoisingPolicy(digits_pipeline(), {"call": CALL, "rollout_batch": GROUP_SIZE})
    step_s(policy, 0.0, concurrent=False)
    print(f"{'wait per sample':>16} {'rollout':>9} {'after':>9} {'alongside':>9} {'after / alongside':>15}")
    for wait_ms in arguments.wait_ms:
        sampling_s, after, alongside = [], [], []
        for _ in range(arguments.repeat):
            after.append(step_s(policy, wait_ms / 1000, concurrent=False))
            alongside.append(step_s(policy, wait_ms / 1000, concurrent=True))
            sampling_s.append(step_s(policy, 0.0, concurrent=False))
        ratio = median(alongside_s / other for alongside_s, other in zip(after, alongside, strict=True))
        times = " ".join(f"{median(times):7.2f} s" for times in (sampling_s, after, alongside))
        print(f"{wait_ms:>13g} ms {times} {ratio:15.2f}", flush=True)


def step_s(policy: DenoisingPolicy, wait_s: float, *, concurrent: bool) -> float:
    """Seconds of a rollout with its scores."""

    def waiting(samples: Sequence[Sample]) -> list[float]:
        time.sleep(wait_s * len(samples))
        return [0.0] * len(samples)

    prompts = digit_prompts()
    group_sizes = dict.fromkeys(range(len(prompts)), GROUP_SIZE)
    pending = Scorer([NamedReward("waiting", waiting, concurrent=concurrent)]).open(group_sizes=group_sizes)
    began = time.perf_counter()
    rollout = policy.rollout(prompts, group_size=GROUP_SIZE, seed=0, plan=Plan(on_samples=pending.submit))
    pending.collect(rollout.samples)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
