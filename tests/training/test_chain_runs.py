"""Rows sampled after other rows of the step: prompts, groups and rewards; chunks of one answer; complete runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.rewards.groups.sample_chains import AtEnd, OfLater, OfPromptTemplate

from mmgrpo import Plan, Sample, Trainer
from mmgrpo.data.history import History
from mmgrpo.data.prompt_templates import after_answers, role
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Request, Strategy, fixed
from mmgrpo.maths.strategies.chain_stages import stages, take_turns
from mmgrpo.methods.strategies.delethink import carried_over
from mmgrpo.samples import TASK_TEMPLATE
from mmgrpo.training.held_out_sampling import conversations
from mmgrpo.training.pending_rewards import in_chains
from mmgrpo.training.rollout_rounds import Rollouts, _GroupOwners
from mmgrpo.types import Prompt, Scores
from tests.policies.contract import largest_difference
from tests.policies.families import daily
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.training.test_rounds import PROMPTS, gathered, scored

VARIANT = {"prompt_template": "variant", "rows": "right", "most": 1}
POSED = {"prompt_template": "posed"}
TEMPLATES = {"variant": after_answers(text="Vary: {answer}"), "posed": after_answers(text="{answer}")}
CHUNK = {"prompt_template": "tail", "rows": "unfinished", "group": "parent", "members": 1, "times": 2}


def first_is_right(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member == 0) for sample in samples]


def even_is_right(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member % 2 == 0) for sample in samples]


def proposed(**stage: Any) -> Rollouts:
    strategy = stages(then=[VARIANT, {**POSED, **stage}])
    return gathered(strategy, first_is_right, prompt_templates=TEMPLATES)


def test_later_rows_follow_earlier_texts_and_are_separate_groups() -> None:
    rollouts = proposed()
    by_identity = {sample.identity: sample for sample in rollouts.samples}
    assert [sample.identity for sample in rollouts.samples if sample.prompt_template == "variant"] == [
        (group, member) for group in (2, 3) for member in (0, 1)
    ]
    assert by_identity[2, 0].after == ((0, 0),)
    assert by_identity[3, 0].after == ((1, 0),)
    # of each of the two groups of variants the first is right, and followed by a group
    assert {sample.group: sample.after for sample in rollouts.samples if sample.prompt_template == "posed"} == {
        4: ((2, 0),),
        5: ((2, 1),),
        6: ((3, 0),),
        7: ((3, 1),),
    }
    assert rollouts.root_of == {2: 0, 3: 1, 4: 0, 5: 0, 6: 1, 7: 1}
    assert all(
        sample.prompt is PROMPTS[rollouts.root_of.get(sample.group, sample.group)] for sample in rollouts.samples
    )
    policy = measured_policy_of("llama", max_new_tokens=4)
    text = f"Vary: {by_identity[0, 0].text}"
    alone = policy.rollout([replace(PROMPTS[0], text=text)], group_size=2, seed=7, plan=Plan(prompt_ids=(2,)))
    assert [sample.tokens for sample in alone.samples] == [by_identity[2, m].tokens for m in (0, 1)]
    rollout = rollouts.rollout
    assert largest_difference(scored(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    assert rollouts.rollout.on_policy


def test_a_context_without_a_text_samples_no_rows() -> None:
    strategy = stages(then=[VARIANT, POSED])
    prompt_templates = {**TEMPLATES, "posed": after_answers(text="{answer}", pattern="no such text")}
    rollouts = gathered(strategy, first_is_right, prompt_templates=prompt_templates)
    assert {sample.prompt_template for sample in rollouts.samples} == {None, "variant"}
    assert (rollouts.num_rounds, rollouts.num_unshown) == (3, 8)


def test_proposals_are_rewarded_by_their_followers_and_trained_or_not() -> None:
    """Of each group the first member is right: the mean over two solutions is 0.5 everywhere."""
    later = OfLater(first_is_right, prompt_templates=["variant"], later="posed", within=[0.4, 0.6])
    attempts = OfPromptTemplate(first_is_right, prompt_templates=[None, "posed"])

    def reward(samples: Sequence[Sample]) -> Sequence[Any]:
        return [
            attempt if attempt is not None else of_later
            for attempt, of_later in zip(attempts(samples), later(samples), strict=True)
        ]

    strategy = stages(then=[{**VARIANT, "rows": "all", "members": 1}, {**POSED, "trained": False}])
    rollouts = gathered(strategy, reward, prompt_templates=TEMPLATES)
    rows = zip(rollouts.samples, rollouts.scored.collected().value_BR[:, 0].tolist(), strict=True)
    assert [(sample.identity, value) for sample, value in rows] == [
        *[((0, 0), 1.0), ((0, 1), 0.0), ((1, 0), 1.0), ((1, 1), 0.0)],
        *[((2, 0), 1.0), ((3, 0), 1.0)],
    ]


def sample(
    group: int, member: int, prompt_template: str | None = None, after: Sequence[tuple[int, int]] = ()
) -> Sample:
    return Sample(Prompt("p"), group, member, text="t", prompt_template=prompt_template, after=tuple(after))


CHAIN = [
    sample(0, 0),
    sample(0, 1),
    sample(2, 0, "a", [(0, 0)]),
    sample(3, 0, "b", [(2, 0)]),
    sample(3, 1, "b", [(2, 0)]),
]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (OfPromptTemplate(first_is_right, [None, "b"]), [1.0, 0.0, None, 1.0, 0.0]),
        (OfLater(first_is_right, [None], "b"), [0.5, 0.0, None, None, None]),
        (OfLater(first_is_right, [None, "a"], "b", missing=None), [0.5, None, 0.5, None, None]),
        (OfLater(first_is_right, ["a"], "b", within=[0.6, 1.0]), [None, None, 0.0, None, None]),
        (AtEnd(first_is_right), [None, 0.0, None, 1.0, 0.0]),
    ],
)
def test_rewards_of_chains(reward: Any, expected: list[float | None]) -> None:
    assert reward(CHAIN) == expected


def test_samples_after_the_task_before_follow_none_of_their_own_task() -> None:
    """Their groups and members may be those of samples of the other task."""
    of_task = [sample(0, member, TASK_TEMPLATE, [(0, member)]) for member in (0, 1)]
    assert AtEnd(first_is_right)(of_task) == [1.0, 0.0]
    assert in_chains(of_task, {}) == []
    assert conversations(of_task) == [[0], [1]]


def test_a_prompt_template_may_have_any_name() -> None:
    templates = {name: role(text="{prompt}") for name in ("asker", "after")}
    strategy = take_turns(roles=["asker", "after"], turns=2)
    rollouts = gathered(strategy, first_is_right, prompt_templates=templates)
    assert [sample.prompt_template for sample in rollouts.samples] == ["asker"] * 4 + ["after"] * 4


def test_later_groups_are_sampled_on_the_process_of_the_earlier_ones() -> None:
    owners = _GroupOwners({0: 0, 1: 1}, {}, [2, 2])
    owners.assign([Request(prompt=n, members=(0,), prompt_template="a", after=((n - 2, 0),)) for n in (2, 3)])
    assert (owners.root_of, owners.process_of, owners.loads) == ({2: 0, 3: 1}, {0: 0, 1: 1, 2: 0, 3: 1}, [3, 3])
    owners.assign([Request(prompt=4, members=(0,), prompt_template="b", after=((3, 0),))])
    assert (owners.root_of[4], owners.process_of[4], owners.loads) == (1, 1, [3, 4])


def test_groups_of_a_third_task_are_on_the_process_of_those_of_the_second() -> None:
    """Groups 2 and 3 of the second task have the data rows of groups 0 and 1, which are of the first."""
    owners = _GroupOwners({2: 1, 3: 0}, {2: 0, 3: 1}, [0, 0])
    owners.assign([Request(prompt=n + 2, members=(0, 1), prompt_template="after", after=((n, 0),)) for n in (2, 3)])
    assert owners.root_of == {2: 0, 3: 1, 4: 0, 5: 1}
    assert owners.process_of == {2: 1, 3: 0, 4: 1, 5: 0}


def test_tokens_that_an_answer_carries_over() -> None:
    written, ends = replace(sample(0, 0), text="abcdefgh"), (1, 2, 4, 6, 7, 8)  # tokens a b cd ef g h
    shortened = carried_over(tail=2, head=1)(Prompt("p"), 1, History(samples=[written], ends=[ends]))
    assert shortened == Prompt("p", prefix="agh")
    complete = carried_over(tail=5, head=1)(Prompt("p"), 1, History(samples=[written], ends=[ends]))
    assert complete == Prompt("p", prefix="abcdefgh")
    with pytest.raises(ConfigError, match="counts tokens"):
        carried_over(tail=2)(Prompt("p"), 1, History(samples=[written]))


def test_texts_that_answers_insert() -> None:
    first, second = (replace(sample(0, m), text=f"<a>{m}</a> of {{prompt}}") for m in (0, 1))
    prompt_template = after_answers(
        text="{prompt}: {answers}; {answer_2}", pattern="<a>(.*?)</a>", each="[{number}] {answer}"
    )
    assert prompt_template(Prompt("Q"), 0, History(samples=[first, second])) == Prompt("Q: [1] 0\n\n[2] 1; 1")
    plain = after_answers(text="{answer}")
    assert plain(Prompt("Q"), 0, History(samples=[first])) == Prompt("<a>0</a> of {prompt}")  # not looked at for places
    assert plain(Prompt("Q"), 0, History()) is None


def test_chunks_of_an_answer_continue_from_their_tails() -> None:
    policy = measured_policy_of("llama", max_new_tokens=12)
    prompt_templates = {"tail": carried_over(tail=2)}
    rollouts = gathered(stages(then=[CHUNK]), first_is_right, prompt_templates=prompt_templates, policy=policy)
    by_identity = {sample.identity: sample for sample in rollouts.samples}
    assert [sample.after for sample in rollouts.samples][:4] == [()] * 4
    for sample in rollouts.samples[4:]:
        before = by_identity[sample.after[0]]
        ends = policy.text_offsets(before)
        assert not before.finished
        assert (sample.text or "").startswith((before.text or "")[ends[-3] :])
        assert sample.num_forced > 0
    assert rollouts.num_rounds == 3
    assert rollouts.root_of == {}


METHODS: Mapping[str, Mapping[str, Any]] = {
    "proposed": {
        "rollout": {
            "strategy": {"name": "stages", "then": [{**VARIANT, "right": 0.5}, POSED]},
            "prompt_templates": {
                "variant": {"name": "after_answers", "text": "Vary: {answer}"},
                "posed": {"name": "after_answers", "text": "{answer}"},
            },
        }
    },
    "roles": {
        "rollout": {
            "strategy": {"name": "take_turns", "roles": ["asker", "helper"], "turns": 3},
            "prompt_templates": {
                "asker": {"name": "role", "text": "Ask: {prompt}"},
                "helper": {"name": "role", "text": "Help: {prompt}"},
            },
        }
    },
    "chunks": {
        "rollout": {
            "strategy": {"name": "stages", "then": [CHUNK]},
            "prompt_templates": {"tail": {"name": "carried_over", "tail": 2}},
        },
        "advantage": {"estimators": [{"name": "along_chain", "shared": True}]},
        "objective": {"aggregate": {"name": "group_sum"}},
    },
}
REWARDS = {
    "proposed": {
        "own": OfPromptTemplate(first_is_right, prompt_templates=[None, "posed"]),
        "later": OfLater(first_is_right, prompt_templates=["variant"], later="posed"),
    },
    "roles": {
        "own": OfPromptTemplate(even_is_right, ["asker"]),
        "helped": OfPromptTemplate(first_is_right, ["helper"]),
    },
    "chunks": {"end": AtEnd(even_is_right)},
}


def run(output: Path, kind: str, **changes: Any) -> Trainer:
    values = {
        "output": str(output),
        "steps": 2,
        "update": {"optimizer": {"lr": 1e-3}},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu"},
        **METHODS[kind],
        "rollout": {"prompts_per_step": 2, "group_size": 2, **METHODS[kind]["rollout"]},
    } | changes.pop("changes", {})
    trainer = Trainer(
        measured_policy_of("llama", max_new_tokens=12), REWARDS[kind], prompts_of("llama"), values, **changes
    )
    trainer.train()
    return trainer


@pytest.mark.nightly
@pytest.mark.parametrize("kind", daily(METHODS, "chunks"))
def test_runs_train_and_resume_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    uninterrupted = run(tmp_path / "whole", kind)
    half = run(tmp_path / "half", kind, changes={"steps": 1})
    resumed = run(tmp_path / "half", kind, resume=half.folder.path)
    assert all(torch.equal(a, b) for a, b in zip(resumed.policy.trainable, uninterrupted.policy.trainable, strict=True))
    lines = [json.loads(line) for line in (uninterrupted.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/rounds"] for line in lines] == [3, 3]
    assert all(line["policy/on_policy_gap"] < 1e-4 and line["optimizer/grad_norm"] > 0 for line in lines)


def weighted_stage(weights: str) -> dict[str, Any]:
    """Settings of a run whose variants, of rows that there are none of, are sampled with other weights."""
    rollout = METHODS["proposed"]["rollout"]
    stage = {**VARIANT, "right": 2.0, "weights": weights}
    strategy = {"name": "stages", "then": [stage, POSED]}
    return {"steps": 1, "rollout": {"prompts_per_step": 2, "group_size": 2, **rollout, "strategy": strategy}}


def test_a_stage_that_samples_with_the_reference_has_the_weights_before_the_first_step(tmp_path: Path) -> None:
    start = [parameter.detach().clone() for parameter in measured_policy_of("llama", max_new_tokens=12).trainable]
    policy: Any = run(tmp_path, "proposed", changes=weighted_stage("reference")).policy
    with policy.reference():
        (reference,) = policy.weights.active_copies.values()
    assert all(map(torch.equal, reference.parameters(), start))
    assert not all(map(torch.equal, policy.trainable, start))


def test_a_stage_with_weights_that_are_not_stored_raises_before_the_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no weights are kept under 'best'.*store\('best'\) before the run"):
        run(tmp_path, "proposed", changes=weighted_stage("best"))
    assert not list(tmp_path.glob("*/metrics.jsonl"))


def test_weights_that_a_strategy_does_not_declare_raise() -> None:
    strategy = Strategy(ask=lambda rounds, setting: (Request(prompt=0, members=(0,), weights="reference"),))
    with pytest.raises(ConfigError, match="does not declare: reference"):
        gathered(strategy, first_is_right)


def test_stages_without_rows_do_not_change_a_step() -> None:
    """No row is right enough: the rounds end after the first, which is bitwise that of plain groups."""
    never = stages(then=[{**VARIANT, "right": 2.0}])
    rollouts, plain = (gathered(strategy, first_is_right, prompt_templates=TEMPLATES) for strategy in (never, fixed()))
    for name in ("old_logprob_BT", "mask_BT", "state_BT"):
        assert torch.equal(getattr(rollouts.rollout, name), getattr(plain.rollout, name))


def test_scores_of_a_family_are_those_of_the_step_alone() -> None:
    rollouts = proposed(trained=False)
    scores: Scores = rollouts.scored.collected()
    assert len(scores.value_BR) == len(rollouts.samples) == 8
