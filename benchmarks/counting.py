"""Counts the forwards of one step of a published method on the tiny SD3 pipeline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import find_config, merge, read_layers, shipped, validated
from mmgrpo.explain.forward_counts import SampleForwards, forwards_per_sample
from mmgrpo.maths.aggregates import count
from mmgrpo.scoring import NamedReward, score
from mmgrpo.training.build import plan_at
from mmgrpo.training.compute_advantages import SampleAdvantages, group_advantages
from mmgrpo.training.gradients import accumulate_gradient
from mmgrpo.types import Prompt, Rollout
from tests.tiny.pipelines import PIPELINES

GUIDANCE = 4.5
RUN_STEPS = 1000  # long enough for a moving window to pass over the schedule


@dataclass(slots=True)
class Rows:
    """Rows that went through the denoiser, seen from outside.

    Attributes:
        with_grad: to be followed by a backward.
        without_grad: not so.
    """

    with_grad: int = 0
    without_grad: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """Denoiser rows of one sample in one step of the method, each guided pass two of them.

    Attributes:
        sample: of the rollout.
        trained: with grad.
        reference: of the update, without grad: the frozen reference, or the values a coupled objective needs.
        reported: all of them as ``Rollout.num_forwards`` and ``Evaluation.num_forwards`` have it.
    """

    sample: float
    trained: float
    reference: float
    reported: float

    def cost(self, weight: int) -> float:
        """In F, where a forward with its backward costs ``weight``."""
        return self.sample + weight * self.trained + self.reference


def denoising_methods() -> list[str]:
    """Names of the shipped methods of denoising policies alone."""
    layers = {include.removeprefix("methods/"): read_layers(find_config(include)) for include in shipped("methods")}
    return [name for name, values in layers.items() if values["about"]["method"]["applies_to"] == "denoising"]


def method_config(include: str, changes: Mapping[str, Any]) -> RunConfig:
    """A method at the scale of its published run, but with no more prompts than its minibatches ask for.

    Args:
        include: its shipped name.
        changes: overrides of its ``rollout`` section.

    Returns:
        A complete configuration whose policy has no model yet.
    """
    values = read_layers(find_config(include))
    values = merge(values, values["about"]["method"].get("paper_hparams", {}))
    rollout = {"prompts_per_step": values.get("update", {}).get("minibatches", 1), **changes}
    return validated(merge(values, {"policy": {"name": "denoising"}, "rollout": rollout}))


def tiny_policy(config: RunConfig, *, guided: bool) -> DenoisingPolicy:
    """The tiny SD3 pipeline, with the sampling settings of the method and small adapters.

    Raises: pydantic's ValidationError for a method of another kind of policy.
    """
    tiny, numbers = PIPELINES["sd3"], config.policy.settings if config.policy else {}
    steps = {key: value for key, value in numbers.get("call", {}).items() if key == "num_inference_steps"}
    return DenoisingPolicy(
        tiny.build(),
        {
            **numbers,
            "call": {**tiny.call, "guidance_scale": GUIDANCE if guided else 1.0, **steps},
            "lora": {"rank": 2, "alpha": 2.0},
            "rollout_batch": 64,
            "update_batch": 64,
        },
    )


def spend_step(config: RunConfig, policy: DenoisingPolicy, step: int = 0) -> Spending:
    """Rollout, reward and every gradient of one step, counted; the first rollout, which checks the replay, is not."""
    prompts = [Prompt(f"a red cat and {number} dogs") for number in range(config.rollout.prompts_per_step)]
    plan = plan_at(Algorithm.of(config), policy, step)
    group_size, B = config.rollout.group_size, len(prompts) * config.rollout.group_size
    policy.rollout(prompts, group_size=group_size, seed=step, plan=plan)
    with _counted(policy) as drawing:
        rollout = policy.rollout(prompts, group_size=group_size, seed=step, plan=plan)
    scores = score(rollout.samples, [NamedReward("brightness", Brightness())])
    with _counted(policy) as updating:
        num_forwards = _update(
            config, policy, rollout, group_advantages(scores, rollout.prompt_index_B, Algorithm.of(config).advantages)
        )
    return Spending(
        sample=(drawing.without_grad + drawing.with_grad) / B,
        trained=updating.with_grad / B,
        reference=updating.without_grad / B,
        reported=(rollout.num_forwards + num_forwards) / B,
    )


def predicted(config: RunConfig, num_steps: int, *, guided: bool) -> Spending:
    """The same on average over a long run, by the formula of ``mmgrpo explain``."""
    config = config.model_copy(update={"steps": RUN_STEPS})
    forwards: SampleForwards = forwards_per_sample(Algorithm.of(config), num_steps)
    branches = 2 if guided else 1
    assert forwards.rollout is not None
    sample, trained = branches * forwards.rollout.at(num_steps), branches * forwards.update.at(num_steps)
    reference = branches * (forwards.views + forwards.values).at(num_steps)
    return Spending(sample=sample, trained=trained, reference=reference, reported=sample + trained + reference)


def _update(config: RunConfig, policy: DenoisingPolicy, rollout: Rollout, credit: SampleAdvantages) -> float:
    update, objective, num_forwards = config.update, Algorithm.of(config).objective, 0
    for number in range(update.epochs * update.minibatches):
        part = number % update.minibatches
        rows = (rollout.prompt_index_B % update.minibatches == part).nonzero().flatten().tolist()
        gradient = accumulate_gradient(
            policy,
            rollout,
            credit.advantage_B[:, None].expand(rollout.shape),
            objective,
            rows=rows,
            totals=count(rollout.mask_BT[rows]),
        )
        num_forwards += gradient.num_forwards
        rollout = rollout.aged()
    for parameter in policy.trainable:
        parameter.grad = None
    return num_forwards


@contextmanager
def _counted(policy: DenoisingPolicy) -> Iterator[Rows]:
    rows = Rows()

    def note(module: torch.nn.Module, args: Any, kwargs: Any) -> None:
        states = kwargs["hidden_states"]
        if torch.is_grad_enabled():
            rows.with_grad += len(states)
        else:
            rows.without_grad += len(states)

    hook = policy.pipeline.transformer.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield rows
    finally:
        hook.remove()
