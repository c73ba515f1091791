"""GRPO in one loop from the public components of mmgrpo: ``mmgrpo train`` without a run folder.

Critics, schedules and mixed runs are not supported.

python -m mmgrpo.examples.loop quickstart/arithmetic-text steps=5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from operator import attrgetter

from accelerate import Accelerator

import mmgrpo
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy

LEFT_OUT = ("critic", "schedules", "phases", "update.reference", "runs", "tasks")
"""Keys that the loop does not support."""


def train(name: str, overrides: Sequence[str] = ()) -> Policy:
    """Trains the policy of a configuration, prints a line per update, and returns the policy."""
    config = mmgrpo.load_config(name, overrides)
    if unsupported := [key for key in LEFT_OUT if attrgetter(key)(config)]:
        raise ConfigError(f"the loop has no {', '.join(unsupported)}: train with mmgrpo train")
    assert config.prompts is not None
    job = mmgrpo.Job(Accelerator())
    device = job.accelerator.device
    policy, rewards = mmgrpo.build_policy(config, device), mmgrpo.build_rewards(config.rewards)
    prompts = mmgrpo.load_prompts_of(config.prompts)
    algorithm = mmgrpo.Algorithm.of(config)
    loop = mmgrpo.Loop.of(algorithm, policy, rewards, prompts, job=job, device=device)
    memory = loop.stream.memory

    if config.warmup:
        for done in mmgrpo.Warmup(policy, config.warmup, seed=config.seed, job=job).run(0, lambda: False):
            print(f"warm-up {done.step}: loss {done.loss:.4f}")

    for number in range(config.steps):
        step = loop.at(number, memory)
        rollouts = step.rollout()
        rewards = step.score(rollouts)
        advantages = step.compute_advantages(rollouts, rewards)
        stats = step.prompt_stats(rollouts, rewards, advantages)
        for update in step.update(advantages):
            reward, norm = float(advantages.credit.total_B.mean()), update.applied.grad_norm
            print(f"step {number + 1}.{update.number}: reward {reward:.3f}, gradient {norm:.3g}")
        memory = step.updated_memory(stats)
    return policy


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").strip())
    train(sys.argv[1], sys.argv[2:])
