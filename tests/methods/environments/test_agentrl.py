"""AgentRL: the rows of two policies, their log-probabilities, and advantages of each task, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mmgrpo.algorithm import Algorithm
from mmgrpo.errors import ConfigError
from mmgrpo.explain.view_passes import reads_reference
from mmgrpo.maths.strategies import Branch, Request, Setting
from mmgrpo.training.request_sampling import sample_requests
from mmgrpo.types import Plan
from tests.configs.method_rounds import strategy_of
from tests.configs.method_steps import Step, advantages_of, assert_credit, config_of
from tests.maths.round_rows import round_of
from tests.policies.contract import move, values
from tests.policies.test_language_exchanges import Asking, terse
from tests.policies.tiny_language import prompts_of


def test_advantages_are_standardized_over_the_decisions_of_a_task() -> None:
    """GRPO's are 0.707106 and -0.707106 in both groups, of 2, 1, 1 and 1 decisions.

    Task 0: mean 0.235702, deviation sqrt((2 * 0.471404^2 + 0.942809^2) / 2) = 0.816496. Task 1: mean 0, deviation 1.
    """
    rows = Step(reward=(1, 0, 1, 0), groups=(0, 0, 1, 1), columns={"task": (0, 0, 1, 1)}, lengths=(2, 1, 1, 1))
    assert_credit("agentrl", rows, [[0.577350, 0.577350], [-1.154700, 0.0], [0.707106, 0.0], [-0.707106, 0.0]])


def test_numbers_of_tasks_are_checked() -> None:
    rows = Step(reward=(1, 0), columns={"task": (0, 5)})
    with pytest.raises(ConfigError, match="numbers of tasks from 0 to 4"):
        advantages_of(config_of("agentrl"), rows)


def test_half_of_a_group_has_turns_of_both_policies() -> None:
    """Rows 0 and 1 are the current policy's, 4 the older one's. Row 2 continues 4, and row 3 continues row 0."""
    strategy, setting = strategy_of("agentrl"), Setting(step=0, num_prompts=1, group_size=4)
    requests = strategy.ask((), setting)
    assert [(request.members, request.weights, request.trained) for request in requests] == [
        ((0, 1), None, True),
        ((4,), "reference", False),
    ]
    first = replace(round_of(requests, [1, 0, 0]), places_B=[(5,), (), (3, 7)])
    older, newer = strategy.ask([first], setting)
    assert (older.members, older.weights) == ((2,), None)
    assert older.continues in (Branch(4, 3), Branch(4, 7))
    assert newer == Request(prompt=0, members=(3,), weights="reference", continues=Branch(0, 5))
    assert strategy.ask([first, first], setting) == ()


def test_the_older_policy_is_copied_before_the_first_update() -> None:
    algorithm = Algorithm.of(config_of("agentrl", {"update": {"reference": None}}))
    assert algorithm.strategy.weights == ("reference",)
    assert reads_reference(algorithm)


def test_rows_without_a_second_turn_are_sampled_from_the_prompt() -> None:
    strategy, setting = strategy_of("agentrl"), Setting(step=0, num_prompts=1, group_size=4)
    first = replace(round_of(strategy.ask((), setting), [1, 0, 0]), places_B=[(), (), ()])
    assert strategy.ask([first], setting) == (Request(prompt=0, members=(2,)), Request(prompt=0, members=(3,)))


def test_decisions_have_the_log_probabilities_of_the_policy_that_sampled_them() -> None:
    policy = terse("llama", max_new_tokens=120)
    with policy.reference():  # copies the weights
        pass
    move(policy.trainable)
    prompts, plan = prompts_of("llama"), Plan(environment=Asking, max_turns=3)
    policy.rollout(prompts, group_size=1, seed=3, plan=plan)
    settings = {"prompt_of": prompts.__getitem__, "prompt_templates": {}, "plan": plan, "seed": 3}
    older = Request(prompt=0, members=(0, 1, 2, 3), weights="reference", trained=False)
    first = sample_requests(policy, [older], [0], **settings)
    (rollout,) = first.rollouts
    member = next(sample.member for sample in rollout.samples if len(sample.turn_ends) > 1)
    start = rollout.samples[member].turn_starts[1]
    request = Request(prompt=0, members=(4, 5), continues=Branch(member, start))
    (crossed,) = sample_requests(policy, [request], [0], before=[first], **settings).rollouts
    assert crossed.unchanged_B.tolist() == [False, False]
    gap_BT = (values(policy, crossed) - crossed.old_logprob_BT).abs().where(crossed.mask_BT, 0.0)
    assert float(gap_BT[:, start:].max()) < 3e-6
    assert float(gap_BT[:, :start].max()) > 1e-4
    with policy.weights.using("reference"), torch.no_grad():
        reference_BT = values(policy, crossed)
    older_BT = (reference_BT - crossed.old_logprob_BT).abs().where(crossed.mask_BT, 0.0)
    assert float(older_BT[:, :start].max()) < 3e-6
