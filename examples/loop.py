"""GRPO in one loop from the public components of mmgrpo: ``mmgrpo train`` on one process, without a run folder.

python -m mmgrpo.examples.loop quickstart/arithmetic-text steps=5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import mmgrpo
from mmgrpo.config.parts import require_single


def train(name: str, overrides: Sequence[str] = ()) -> mmgrpo.Policy:
    """Trains the policy of a configuration, prints a line per update, and returns the policy."""
    config = mmgrpo.load_config(name, overrides)
    require_single(config)
    algorithm, job = mmgrpo.Algorithm.of(config), mmgrpo.Job.of(config)
    policy, reward_functions = mmgrpo.build_policy(config, job.device), mmgrpo.build_rewards(config.rewards)
    prompts = mmgrpo.load_prompts_of(config.prompts)
    components = mmgrpo.Components.of(algorithm, policy, reward_functions, prompts, job=job)
    for warmup in components.warm_up():
        print(f"warm-up {warmup.step}: loss {warmup.loss:.4f}")
    memory = components.stream.memory
    for number in range(config.steps):
        step = mmgrpo.Step.of(components, number, memory)
        rollouts = step.rollout()
        rewards = step.score(rollouts)
        advantages = step.compute_advantages(rollouts, rewards)
        for update in step.update(advantages):
            reward, norm = advantages.reward_N.mean(), update.applied.grad_norm
            print(f"step {number + 1}.{update.number}: reward {reward:.3f}, gradient {norm:.3g}")
        memory = step.updated_memory(rollouts, rewards, advantages)
    return policy


if __name__ == "__main__":
    name, *overrides = sys.argv[1:] or ["quickstart/arithmetic-text"]
    train(name, overrides)
