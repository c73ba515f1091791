"""Rows that are sampled over several steps, on a tiny language model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.examples.digits import digit_prompts
from mmgrpo.policies.temperature_schedule import TemperatureSchedule

from mmgrpo import Job, Prompt, Step, Trainer
from mmgrpo.data.stream import PromptStream
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.strategies import Setting, fixed
from mmgrpo.memory import Memory, PartialRollouts, PartialRow
from mmgrpo.methods.strategies.t_ppo import partial_rollouts
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.prompt_stats import PromptStats, step_partial_rollouts, update_prompt_stats
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.types import Sample
from mmgrpo.values import VALUE
from tests.policies.contract import largest_difference, move, values
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.test_trainer import BASE, brightness, make_policy
from tests.training.test_critic import config_of
from tests.training.test_rounds import gathered

WINDOW, LENGTH = 3, 8
"""Tokens of a step, and of a row: three steps a row."""
REPLIES = "tests.test_doctor_conversations:Replies"
SMALL = {"rollout.strategy.window": WINDOW, "update.minibatches": 1, "advantage.critic.optimizer.lr": 1e-2}


def row_of(group: int, member: int, key: str = "a") -> PartialRow:
    return PartialRow(key=key, group=group, member=member, tokens=torch.tensor([5, 6]), num_forced=0, seed=9)


def memory_of(*rows: PartialRow, num_prompts: int = 2) -> Memory:
    return Memory(partial=PartialRollouts(rows=rows, num_prompts=num_prompts))


def test_new_groups_take_the_places_of_complete_rows() -> None:
    strategy, setting = partial_rollouts(window=3), Setting(step=1, num_prompts=3, group_size=2)
    assert [(request.prompt, request.members, request.window) for request in strategy.ask((), setting)] == [
        (0, (0, 1), 3),
        (1, (0, 1), 3),
        (2, (0, 1), 3),
    ]
    rows = row_of(0, 1), row_of(4, 0), row_of(4, 1)
    requests = strategy.ask((), replace(setting, memory=memory_of(*rows)))
    # six rows in all: three are unfinished, and a group of two fits besides them
    assert [(request.prompt, request.members, tuple(request.partial_rows)) for request in requests] == [
        (0, (1,), rows[:1]),
        (1, (0, 1), rows[1:]),
        (2, (0, 1), ()),
    ]


def test_new_prompts_are_the_next_ones_in_the_order() -> None:
    prompts = [Prompt(text) for text in "abcdefg"]
    stream = PromptStream(prompts, num_per_step=3, seed=1)
    order = [index for step in range(3) for index, _ in stream.take(step)]
    memory = memory_of(row_of(0, 1, stream.keys[6]), row_of(2, 0, stream.keys[1]), num_prompts=4)
    step = stream.at_step(7, memory)
    assert [step.prompt(number).text for number in range(5)] == ["g", "b", *("abcdefg"[index] for index in order[4:7])]
    assert stream.at_step(0, memory_of(num_prompts=0)).prompt(0) is prompts[order[0]]
    with pytest.raises(DataError, match="resume with the prompts of the run"):
        stream.at_step(7, memory_of(row_of(0, 0, "gone")))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        pytest.param({"top_k": 9}, marks=pytest.mark.nightly),
        pytest.param({"rescore": True}, marks=pytest.mark.nightly),
    ],
    ids=str,
)
def test_rows_of_three_windows_are_those_of_one(settings: dict[str, Any]) -> None:
    """Under unchanged weights: token t of a row has the t-th random number of its seed, in any step."""
    policy = measured_policy_of("llama", max_new_tokens=LENGTH, **settings)
    whole = gathered(fixed(), lengths, policy=policy)
    tokens = {sample.identity: list(sample.tokens or ()) for sample in whole.samples}
    assert all(len(row) == LENGTH for row in tokens.values())  # so that no group ends before its last window
    memory, job = Memory(), Job(Accelerator(cpu=True))
    for start, end in ((0, 3), (3, 6), (6, 8)):
        scored: list[Sample] = []
        rollouts = gathered(
            partial_rollouts(window=WINDOW),
            lambda samples, scored=scored: scored.extend(samples) or lengths(samples),
            policy=policy,
            memory=memory,
        )
        rollout = rollouts.rollout
        assert {sample.identity: list(sample.tokens or ()) for sample in rollouts.samples} == {
            identity: row[:end] for identity, row in tokens.items()
        }
        position_T = torch.arange(end)
        assert torch.equal(rollout.mask_BT, ((position_T >= start) & (position_T < end)).expand(4, end))
        if start:
            assert rollout.earlier_BT is not None
            assert torch.equal(rollout.earlier_BT, (position_T < start).expand(4, end))
        expected_BT = whole.rollout.old_logprob_BT[:, :end]
        assert largest_difference(rollout.old_logprob_BT, expected_BT, rollout.mask_BT) < 2e-6
        assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
        assert rollout.on_policy
        is_last = end == LENGTH
        assert all(sample.is_partial != is_last and sample.is_truncated == is_last for sample in rollouts.samples)
        assert all(sample.num_forced == 0 for sample in rollouts.samples)
        rollouts.scored.collected()
        assert len(scored) == (4 if is_last else 0)
        arguments: dict[str, Any] = {"requests": rollouts.requests, "seed": rollouts.seed, "job": job}
        partial = step_partial_rollouts(rollouts.samples, str, **arguments)
        nothing_B = torch.zeros(0)
        stats = PromptStats(keys=[], reward_B=nothing_B, valid_B=nothing_B.bool(), step=0, partial=partial)
        memory = update_prompt_stats(memory, stats)
        restored = Memory().restored(memory.state_dict()).partial
        assert restored is not None
        assert [row.tokens.tolist() for row in restored.rows] == (
            [] if is_last else [row[:end] for row in tokens.values()]
        )
        assert restored.num_prompts == 2


def lengths(samples: Sequence[Sample]) -> list[float]:
    return [float(len(sample.tokens or ())) for sample in samples]


@dataclass(frozen=True, slots=True)
class TrainedStep:
    """A step of a run, with the samples that its rewards were called with."""

    rollouts: Rollouts
    advantages: Advantages
    scored: Sequence[Sample]
    line: dict[str, Any]


def steps_of(trainer: Trainer, scored: list[Sample], num: int) -> Iterator[TrainedStep]:
    components, memory = trainer.components, trainer.components.stream.memory
    components.start()
    for number in range(num):
        scored.clear()
        step = Step.of(components, number, memory)
        rollouts = step.rollout()
        rewards = step.score(rollouts)
        advantages = step.compute_advantages(rollouts, rewards)
        for _ in step.update(advantages):
            pass
        assert step.log is not None
        yield TrainedStep(rollouts, advantages, list(scored), step.log.last)
        memory = step.updated_memory(rollouts, rewards, advantages)


def test_every_window_trains_and_the_critic_waits_for_the_reward(tmp_path: Path) -> None:
    scored: list[Sample] = []

    def reward(samples: Sequence[Sample]) -> list[float]:
        assert samples
        scored.extend(samples)
        return [1.0] * len(samples)

    policy = measured_policy_of("llama", max_new_tokens=LENGTH)
    trainer = Trainer(policy, reward, prompts_of("llama"), config_of(tmp_path, "t-ppo", **{"steps": 4, **SMALL}))
    assert trainer.critic is not None
    move(trainer.critic.parameters)
    steps = list(steps_of(trainer, scored, 4))
    for step in steps:
        rollout, mask_BT = step.rollouts.rollout, step.advantages.rollout.mask_BT
        assert torch.equal(mask_BT, rollout.mask_BT)  # rows with and without a reward train
        assert int(mask_BT.sum(1).max()) <= WINDOW
        lengths_B = [len(sample.tokens or ()) for sample in rollout.samples]
        complete = [sample.finished or n == LENGTH for sample, n in zip(rollout.samples, lengths_B, strict=True)]
        assert sorted(map(id, step.scored)) == sorted(map(id, compress(rollout.samples, complete)))
        assert step.line["policy/on_policy_gap"] < 1e-5
        assert step.line["optimizer/grad_norm"] > 0
        # of complete rows the mean of (V - 1)^2 / 2 over the tokens of all their steps
        row_BT = mask_BT if rollout.earlier_BT is None else mask_BT | rollout.earlier_BT
        value_M = rollout.values[VALUE][row_BT & torch.tensor(complete)[:, None]]
        assert len(value_M) == sum(compress(lengths_B, complete))
        loss = (value_M.double() - 1).square().mean() / 2 if len(value_M) else None
        assert step.line.get("critic/loss") == (None if loss is None else pytest.approx(float(loss), rel=1e-5))
    assert [step.line["rollout/partial_rows"] for step in steps][:2] == [4, 4]
    assert [step.line["rollout/continued_rows"] for step in steps] == [
        0,
        *(step.line["rollout/partial_rows"] for step in steps[:-1]),
    ]
    assert [len(step.scored) for step in steps][:3] == [0, 0, 4]
    for step in steps:
        assert step.line.get("reward/mean") == (1.0 if step.scored else None)
        assert ("reward/std" in step.line) == bool(step.scored)
    assert steps[2].line["completions/clipped_frac"] == 1.0
    assert steps[1].line["completions/clipped_frac"] == 0.0
    assert steps[3].line["completions/max_length"] == WINDOW  # new rows
    expected = [sample.tokens for sample in steps[1].rollouts.samples]
    assert [list(sample.tokens or ())[: 2 * WINDOW] for sample in steps[2].rollouts.samples] == expected


@pytest.mark.nightly
def test_a_run_resumes_in_the_middle_of_its_rows(tmp_path: Path) -> None:
    config = config_of(tmp_path, "t-ppo", **{"steps": 4, "checkpoint.every": 1, "checkpoint.keep": None, **SMALL})

    def trainer_of(resume: Path | None = None) -> Trainer:
        policy = measured_policy_of("llama", max_new_tokens=LENGTH)
        return Trainer(policy, lengths, prompts_of("llama"), config, resume=resume)

    uninterrupted = trainer_of()
    folder = uninterrupted.train()
    before = (folder / "metrics.jsonl").read_text().splitlines()
    resumed = trainer_of(folder / "checkpoints" / "step-000002")
    partial = resumed.session.memory.partial
    assert partial is not None
    assert {len(row.tokens) for row in partial.rows} == {2 * WINDOW}
    resumed.train()
    after = (folder / "metrics.jsonl").read_text().splitlines()
    assert resumed.critic is not None
    assert uninterrupted.critic is not None
    for ours, theirs in (
        (resumed.parameters, uninterrupted.parameters),
        (resumed.critic.parameters, uninterrupted.critic.parameters),
    ):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    untimed = [
        [{key: value for key, value in json.loads(line).items() if "time" not in key} for line in lines]
        for lines in (before, after)
    ]
    assert untimed[0] == untimed[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rollout.strategy.window": LENGTH}, r"window of 8 tokens is not below policy\.max_new_tokens=8"),
        ({"rollout.strategy.window": 0}, "a window of at least 1 token"),
        ({"rollout.environment": {"name": f"python:{REPLIES}"}}, "remove rollout.environment"),
        (
            {"about.method": None, "advantage.estimators": [{"name": "gae"}]},
            r"set advantage.estimators: \[\{name: extended_gae\}\]",
        ),
    ],
)
def test_settings_without_an_effect_raise_before_the_run(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    policy = measured_policy_of("llama", max_new_tokens=LENGTH)
    with pytest.raises(ConfigError, match=message):
        Trainer(policy, lengths, prompts_of("llama"), config_of(tmp_path, "t-ppo", **{**SMALL, **changes}))
    with pytest.raises(ConfigError, match=r"policy\.temperature_schedule counts the tokens of a rollout"):
        policy.check_window(WINDOW, {"temperature_schedule": TemperatureSchedule()})


def test_a_denoiser_cannot_continue_its_rows(tmp_path: Path) -> None:
    values: dict[str, Any] = {**BASE, "output": str(tmp_path)}
    values["rollout"] = {**values.get("rollout", {}), "strategy": {"name": "partial_rollouts", "window": 1}}
    values["advantage"] = {"estimators": ["extended_gae"]}
    with pytest.raises(ConfigError, match="continues texts at later steps, which DenoisingPolicy does not support"):
        Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), values)


def test_unfinished_rows_need_a_strategy_that_continues_them(tmp_path: Path) -> None:
    policy = measured_policy_of("llama", max_new_tokens=LENGTH)
    trainer = Trainer(policy, lengths, prompts_of("llama"), config_of(tmp_path, "ppo"))
    memory = replace(trainer.components.stream.memory, partial=memory_of(row_of(0, 0, trainer.stream.keys[0])).partial)
    with pytest.raises(ConfigError, match=r"1 rows of earlier steps are unfinished, and rollout\.strategy fixed"):
        Step.of(trainer.components, 0, memory).rollout()
