"""GRPO in one loop from the public components of mmgrpo: ``mmgrpo train`` without a run folder.

Critics and schedules are not supported.

python -m mmgrpo.examples.loop quickstart/arithmetic-text steps=5
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from accelerate import Accelerator

import mmgrpo
from mmgrpo.config import RunConfig
from mmgrpo.errors import ConfigError
from mmgrpo.policy import Policy

LEFT_OUT = ("critic", "schedules", "controllers", "phases", "runs")
"""Sections that the loop does not support."""


def _require_supported(config: RunConfig) -> RunConfig:
    """The configuration. Raises ConfigError for unsupported sections."""
    if unsupported := [section for section in LEFT_OUT if getattr(config, section)]:
        raise ConfigError(f"the loop has no {', '.join(unsupported)}: train with mmgrpo train")
    return config


def train(name: str, overrides: Sequence[str] = ()) -> Policy:
    """Train the policy of a configuration, print a line per update, and return the policy."""
    config = _require_supported(mmgrpo.load_config(name, overrides))
    job = mmgrpo.Job(Accelerator())
    policy = mmgrpo.build_policy(config, job.accelerator.device)
    scorer = mmgrpo.Scorer(rewards := mmgrpo.build_rewards(config.rewards))
    algorithm = mmgrpo.Algorithm.of(config)
    views = mmgrpo.build_views(algorithm, policy)
    assert config.prompts is not None
    stream = algorithm.prompt_stream(mmgrpo.load_prompts_of(config.prompts))
    memory = stream.memory
    optimizer = mmgrpo.optimizer_of(config, policy.trainable, job=job)
    auxiliaries = mmgrpo.Auxiliaries(policy, config.auxiliary, seed=config.seed, job=job)

    if config.warmup:
        for done in mmgrpo.Warmup(policy, config.warmup, seed=config.seed, job=job).run(0, lambda: False):
            print(f"warm-up {done.step}: loss {done.loss:.4f}")

    for step in range(config.steps):
        prompts = stream.at_step(step, memory)
        setting = algorithm.step_setting(step, memory, prompts.key)
        value = partial(mmgrpo.combine_rewards, reward_functions=rewards, chain=algorithm.advantages, step=step)
        plan, reads = mmgrpo.plan_at(algorithm, policy, step), config.rollout.training_states == "renoised"
        rollouts = mmgrpo.collect_rollouts(
            policy, algorithm.strategy, prompts.prompt, scorer, setting=setting, job=job,
            contexts=algorithm.prompt_templates, plan=plan, value=value, reads=reads)  # fmt: skip
        scored = mmgrpo.score_rollouts(rollouts, rewards, step=step, job=job)
        batch = mmgrpo.compute_advantages(
            policy, rollouts, scored, algorithm.advantages, job=job, step=step, views=views,
            truncated=config.objective.truncated,
            remembered=partial(mmgrpo.read_prompt_stats, memory, scored.root_N, prompts.key))  # fmt: skip
        passes = {name: getattr(config.update, name) for name in ("epochs", "minibatches", "cycle_masks")}
        terms = auxiliaries.beside(algorithm, batch, step * passes["epochs"] * passes["minibatches"])
        given = {**passes, "job": job, "beside": terms}
        for update in mmgrpo.update_policy(policy, batch, algorithm.objective, optimizer, **given):
            reward = float(batch.credit.total_B.mean())
            print(f"step {step + 1}.{update.number}: reward {reward:.3f}, gradient {update.applied.grad_norm:.3g}")
        replay = algorithm.strategy.replay
        stats = mmgrpo.step_prompt_stats(
            scored, batch, prompts.key, job=job, step=step, replay=replay, requests=rollouts.requests)  # fmt: skip
        memory = mmgrpo.update_prompt_stats(memory, stats, stream.learners, replay=replay)
    return policy


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").strip())
    train(sys.argv[1], sys.argv[2:])
