"""GRPO in one loop from the public components of mmgrpo: ``mmgrpo train`` without a run folder.

Mixed runs are not supported.

python -m mmgrpo.examples.loop quickstart/arithmetic-text steps=5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from accelerate import Accelerator

import mmgrpo
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy


def train(name: str, overrides: Sequence[str] = ()) -> Policy:
    """Trains the policy of a configuration, prints a line per update, and returns the policy."""
    config = mmgrpo.load_config(name, overrides)
    if config.tasks:
        raise ConfigError("the loop has no tasks: train with mmgrpo train")
    assert config.prompts is not None
    job = mmgrpo.Job(Accelerator())
    device = job.accelerator.device
    policy, reward_functions = mmgrpo.build_policy(config, device), mmgrpo.build_rewards(config.rewards)
    prompts, algorithm = mmgrpo.load_prompts_of(config.prompts), mmgrpo.Algorithm.of(config)
    components = mmgrpo.Components.of(algorithm, policy, reward_functions, prompts, job=job, device=device)

    for warmup in components.warm_up():
        print(f"warm-up {warmup.step}: loss {warmup.loss:.4f}")

    memory = components.stream.memory
    for number in range(config.steps):
        step = mmgrpo.Step.of(components, number, memory)
        rollouts = step.rollout()
        rewards = step.score(rollouts)
        advantages = step.compute_advantages(rollouts, rewards)
        for update in step.update(advantages):
            reward, norm = float(advantages.reward_N.mean()), update.applied.grad_norm
            print(f"step {number + 1}.{update.number}: reward {reward:.3f}, gradient {norm:.3g}")
        memory = step.updated_memory(rollouts, rewards, advantages)
    return policy


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").strip())
    train(sys.argv[1], sys.argv[2:])
