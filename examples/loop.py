"""All of GRPO in one loop, from the parts that mmgrpo exports: what ``mmgrpo train`` does, without a run folder.

Critics and numbers that move over a run are left out.

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

LEFT_OUT = ("critic", "schedules", "controllers", "stages", "runs")
"""Sections that change what is learned and are not in the loop."""


def _require_supported(config: RunConfig) -> RunConfig:
    """The configuration. Raises ConfigError for one that the loop would leave a part of out."""
    if unsupported := [section for section in LEFT_OUT if getattr(config, section)]:
        raise ConfigError(f"the loop has no {', '.join(unsupported)}: train with mmgrpo train")
    return config


def train(name: str, overrides: Sequence[str] = ()) -> Policy:
    """Trains the policy of a configuration, printing a line per update, and gives it back."""
    config = _require_supported(mmgrpo.load_config(name, overrides))
    job = mmgrpo.Job(Accelerator())
    policy = mmgrpo.build_policy(config, job.accelerator.device)
    rewards = mmgrpo.build_rewards(config.rewards)
    scorer = mmgrpo.Scorer(rewards)
    objective, planner = mmgrpo.build_objective(config.objective), mmgrpo.build_planner(config.rollout)
    contexts, views = mmgrpo.build_contexts(config), mmgrpo.build_views(config, policy)
    assert config.prompts is not None
    stream = mmgrpo.stream_of(mmgrpo.load_prompts_of(config.prompts), config)
    memory = stream.memory
    optimizer = mmgrpo.optimizer_of(config, policy.trainable, job=job)
    auxiliaries = mmgrpo.Auxiliaries(policy, config.auxiliary, seed=config.seed, job=job)

    if config.warmup:
        for done in mmgrpo.Warmup(policy, config.warmup, seed=config.seed, job=job).run(0, lambda: False):
            print(f"warm-up {done.step}: loss {done.loss:.4f}")

    for step in range(config.steps):
        prompts = stream.at_step(step, memory)
        setting = mmgrpo.build_setting(config, step, memory, prompts.key)
        value = partial(mmgrpo.valued, rewards=rewards, config=config.advantage, step=step)
        plan = mmgrpo.build_plan(config, policy, step)
        reads = config.rollout.decisions == "read"
        told = {"setting": setting, "plan": plan, "value": value, "contexts": contexts, "reads": reads}
        experience = mmgrpo.gather(policy, planner, prompts.prompt, scorer, job=job, **told)
        verdict = mmgrpo.judge(experience, rewards, step=step, job=job)
        known = partial(mmgrpo.remembered, memory, verdict.root_N, prompts.key)
        told = {"truncated": config.objective.truncated, "step": step, "remembered": known, "views": views}
        batch = mmgrpo.estimate(policy, experience, verdict, config.advantage, job=job, **told)
        passes = {name: getattr(config.update, name) for name in ("epochs", "minibatches", "cycle_masks")}
        beside = auxiliaries.beside(config.auxiliary, batch, step * passes["epochs"] * passes["minibatches"])
        for update in mmgrpo.learn(policy, batch, objective, optimizer, **passes, job=job, beside=beside):
            reward = float(batch.credit.total_B.mean())
            print(f"step {step + 1}.{update.number}: reward {reward:.3f}, gradient {update.applied.grad_norm:.3g}")
        told = {"step": step, "replay": planner.replay, "requests": experience.requests}
        facts = mmgrpo.step_facts(verdict, batch, prompts.key, job=job, **told)
        memory = mmgrpo.remember(memory, facts, stream.learners, replay=planner.replay)
    return policy


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit((__doc__ or "").strip())
    train(sys.argv[1], sys.argv[2:])
