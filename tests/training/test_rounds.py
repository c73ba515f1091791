"""Steps of several rounds on a tiny language model and a tiny pipeline."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.examples.digits import digit_prompts
from torch import Tensor

from mmgrpo import Job, Plan, Prompt, Sample, Scorer, Trainer
from mmgrpo.algorithm import AdvantageChain
from mmgrpo.config import AdvantageConfig
from mmgrpo.data.history import NOTHING, PromptTemplate
from mmgrpo.data.prompt_templates import solution_prefix, template
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.strategies import Answer, Request, Round, Setting, Strategy, fixed, refill
from mmgrpo.maths.strategies.resample import on_failure, two_stage_scouts, with_answer, with_replay
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.methods.off_policy.meml_grpo import systems
from mmgrpo.methods.strategies.guide_grpo import column_hint
from mmgrpo.scoring import NamedReward
from mmgrpo.training.compute_advantages import combine_rewards
from mmgrpo.training.rollout_rounds import Rollouts, collect_rollouts
from mmgrpo.training.score_rollouts import score_rollouts
from mmgrpo.types import OffPolicySample, Rollout, Source
from tests.policies.tiny_language import measured_policy_of, prompts_of
from tests.test_trainer import make_policy

PROMPTS = [
    replace(prompt, columns={"hint": "it is two", "solution": "the answer is two"}) for prompt in prompts_of("llama")
]


def gathered(
    strategy: Strategy,
    reward: Any,
    *,
    policy: Any = None,
    memory: Memory | None = None,
    by_itself: Any = None,
    **more: Any,
) -> Rollouts:
    rewards = [NamedReward("reward", reward), *([NamedReward("by_itself", by_itself)] if by_itself else [])]

    def value(scores: Any, group_B: Tensor) -> Any:
        return combine_rewards(
            scores, group_B, reward_functions=rewards, chain=AdvantageChain.of(AdvantageConfig()), step=0
        )

    return collect_rollouts(
        policy or measured_policy_of("llama", max_new_tokens=4),
        strategy,
        lambda number: PROMPTS[number % len(PROMPTS)],
        Scorer(rewards),
        setting=Setting(step=0, num_prompts=2, group_size=2, seed=7, memory=memory or Memory(), key_of=str),
        plan=Plan(),
        job=Job(Accelerator(cpu=True)),
        value=value,
        **more,
    )


def even_prompts_differ(samples: Sequence[Sample]) -> list[float]:
    return [float(sample.member if sample.group % 2 == 0 else 0) for sample in samples]


def test_refilled_groups_are_those_of_their_numbers() -> None:
    rollouts = gathered(refill(), even_prompts_differ)
    assert rollouts.num_rounds == 2
    assert rollouts.rollout.prompt_index_B.tolist() == [0, 0, 1, 1, 2, 2]
    assert rollouts.keep_B.tolist() == [True, True, False, False, True, True]
    alone = measured_policy_of("llama", max_new_tokens=4).rollout(
        [PROMPTS[2 % len(PROMPTS)]], group_size=2, seed=7, plan=Plan(prompt_ids=(2,))
    )
    assert [s.tokens for s in rollouts.samples[4:]] == [s.tokens for s in alone.samples]
    width = alone.shape[1]
    assert torch.allclose(rollouts.rollout.old_logprob_BT[4:, :width], alone.old_logprob_BT, atol=1e-6)
    assert rollouts.rollout.on_policy


def test_minibatches_share_the_groups_that_are_kept(tmp_path: Path) -> None:
    rollout = {"prompts_per_step": 2, "group_size": 2, "strategy": "refill"}
    values = {"output": str(tmp_path), "steps": 1, "rollout": rollout, "update": {"minibatches": 2}}
    policy = measured_policy_of("llama", max_new_tokens=4)
    trainer = Trainer(policy, {"even": even_prompts_differ}, PROMPTS, values | {"runtime": {"device": "cpu"}})
    trainer.train()
    lines = [json.loads(text) for text in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["rollout/groups"] for line in lines] == [3, 3]
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)  # groups 0 and 2, one each; 1 has no gradient


def test_an_answer_with_a_hint_is_trained_with_the_unchanged_prompt() -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    hint = {"hint": column_hint(column="hint")}
    rollouts = gathered(
        on_failure(members=1, prompt_template="hint"),
        lambda samples: [0.0] * len(samples),
        policy=policy,
        prompt_templates=hint,
    )
    rollout = rollouts.rollout
    assert [(s.group, s.member) for s in rollouts.samples[4:]] == [(0, 2), (1, 2)]
    assert rollouts.keep_B.tolist() == [True, False, True, False, True, True]
    assert all(sample.prompt in PROMPTS for sample in rollouts.samples)
    assert rollout.source_B is not None
    assert rollout.source_B.tolist() == [0, 0, 0, 0, Source.DEMONSTRATION, Source.DEMONSTRATION]
    assert not rollout.on_policy
    hinted = policy.rollout(
        [apply_template(hint["hint"], PROMPTS[0], 2)], group_size=1, seed=7, plan=Plan(prompt_ids=(0,), members=((2,),))
    )
    assert rollouts.samples[4].tokens == hinted.samples[0].tokens
    T = len(hinted.samples[0].tokens or ())
    assert torch.allclose(rollout.old_logprob_BT[4, :T], hinted.old_logprob_BT[0, :T], atol=1e-6)
    now_BT = scored(policy, rollout)
    read = policy.read([OffPolicySample(sample=rollouts.samples[4])], seed=0)
    assert torch.allclose(now_BT[4, :T], read.old_logprob_BT[0, :T], atol=1e-6)  # after the bare prompt
    assert not torch.allclose(now_BT[4, :T], rollout.old_logprob_BT[4, :T], atol=1e-4)


def scored(policy: Any, rollout: Rollout) -> Tensor:
    """Log-probabilities under the current weights, of every part of a joined rollout."""
    result_BT, start = torch.zeros(rollout.shape), 0
    with torch.no_grad():
        for part in rollout.trace.rollouts:
            for slice_ in policy.evaluate(part):
                result_BT[slice_.rows[:, None] + start, torch.tensor(slice_.columns)[None]] = slice_.logprob_BT
            start += len(part.samples)
    return result_BT


def in_context(rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
    """The fixed groups, every member under a prompt template."""
    return [replace(request, prompt_template="same") for request in fixed().ask(rounds, setting)]


def test_a_context_without_effect_equals_none() -> None:
    plain = gathered(fixed(), even_prompts_differ)
    templated = gathered(
        Strategy(ask=in_context), even_prompts_differ, prompt_templates={"same": template(text="{prompt}")}
    )
    assert [s.tokens for s in templated.samples] == [s.tokens for s in plain.samples]
    assert torch.allclose(templated.rollout.old_logprob_BT, plain.rollout.old_logprob_BT, atol=1e-6)
    assert templated.rollout.mask_BT.equal(plain.rollout.mask_BT)


def test_a_replayed_row_of_the_current_policy_has_the_ratio_one() -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    replayed = gathered(fixed(), even_prompts_differ, policy=policy)
    sample, T = replayed.samples[0], len(replayed.samples[0].tokens or ())
    row = ReplayRow(
        key="0",
        text=sample.text,
        tokens=torch.tensor(list(sample.tokens or ())),
        finished=sample.finished,
        old_logprob_T=replayed.rollout.old_logprob_BT[0, :T],
        reward=1.0,
        advantage=1.0,
        step=0,
    )
    memory = Memory().with_replay([row], per_prompt=1, total=1)
    rollouts = gathered(with_replay(num=1), even_prompts_differ, policy=policy, memory=memory)
    assert rollouts.rollout.prompt_index_B.tolist() == [0, 0, 1, 1, 0]
    assert rollouts.rollout.source_B is not None
    assert rollouts.rollout.source_B.tolist() == [0, 0, 0, 0, Source.REPLAY]
    assert torch.allclose(scored(policy, rollouts.rollout)[4, :T], replayed.rollout.old_logprob_BT[0, :T], atol=1e-6)


def test_an_answer_of_the_row_is_a_member() -> None:
    rollouts = gathered(with_answer(column="solution"), even_prompts_differ)
    assert [s.text for s in rollouts.samples[4:]] == ["the answer is two"] * 2
    assert [s.member for s in rollouts.samples[4:]] == [2, 2]
    with pytest.raises(DataError, match="column 'gold' must have a text"):
        gathered(with_answer(column="gold"), even_prompts_differ)


@pytest.mark.nightly
def test_scouts_of_fewer_steps_choose_the_members_to_sample_exactly(tmp_path: Path) -> None:
    strategy = {
        "name": "two_stage_scouts",
        "scouts": 3,
        "best": 1,
        "worst": 1,
        "settings": {"call": {"num_inference_steps": 3}},
    }
    rollout = {"prompts_per_step": 2, "group_size": 2, "strategy": strategy}
    values = {"output": str(tmp_path), "steps": 1, "rollout": rollout, "runtime": {"device": "cpu"}}
    trainer = Trainer(make_policy(), {"brightness": brightness}, digit_prompts(), values)
    trainer.train()
    (line,) = [json.loads(text) for text in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert line["rollout/rounds"] == 2
    assert line["rollout/kept_frac"] == pytest.approx(4 / 10)  # 3 scouts and 2 exact ones of each of 2 groups
    assert line["policy/on_policy_gap"] < 1e-5
    assert line["optimizer/grad_norm"] > 0


def lowest_sum(samples: Sequence[Sample]) -> list[float]:
    """A reward of groups: the sum of the numbers of all members, less 10."""
    return [float(sum(other.member for other in samples if other.group == sample.group)) - 10 for sample in samples]


@pytest.mark.parametrize(
    ("replace_failed", "expected"),
    [
        (False, [3.0] * 6),  # 0 + 1 + 2
        (True, [2.0, 1.0, 2.0, 1.0, 2.0, 2.0]),  # members 0 and 2; number 1 is as it was in the first round
    ],
)
def test_a_reward_of_groups_is_called_again_once_they_are_complete(replace_failed: bool, expected: list[float]) -> None:
    strategy = on_failure(members=1, settings={"temperature": 1.5}, replace_failed=replace_failed)
    scored: list[int] = []

    def by_itself(samples: Sequence[Sample]) -> list[float]:
        scored.append(len(samples))
        return [0.0] * len(samples)

    vars(by_itself)["deterministic"] = True
    rollouts = gathered(strategy, lowest_sum, by_itself=by_itself)
    scores = rollouts.scored.collected()
    assert scores.value_BR[:, 0].tolist() == [value - 10 for value in expected]
    assert sum(scored) <= len(rollouts.samples)  # what depends on the sample alone is not asked again
    rewards = [NamedReward("reward", lowest_sum), NamedReward("by_itself", by_itself)]
    verdict = score_rollouts(rollouts, rewards, step=0, job=Job(Accelerator(cpu=True)))
    assert verdict.scores.value_BR.equal(scores.value_BR)


def test_a_reward_of_complete_groups_is_called_once() -> None:
    calls: list[int] = []

    def counted(samples: Sequence[Sample]) -> list[float]:
        calls.append(len(samples))
        time.sleep(0.02)
        return even_prompts_differ(samples)

    rollouts = gathered(refill(), counted)
    scores = rollouts.scored.collected()
    assert scores.value_BR[:, 0].tolist() == [0.0, 1.0, 0.0, 0.0, 0.0, 1.0]
    assert scores.duration_s["reward"] >= 0.04  # the seconds of both rounds
    assert calls == [4, 2]


def test_scouts_count_among_the_forwards_alone() -> None:
    policy, exact = measured_policy_of("llama", max_new_tokens=4), measured_policy_of("llama", max_new_tokens=4)
    strategy = two_stage_scouts(scouts=3, best=1, worst=1, settings={"temperature": 0.5})
    rollouts = gathered(strategy, lambda samples: [float(s.member) for s in samples], policy=policy)
    assert [(s.group, s.member) for s in rollouts.samples] == [(0, 0), (0, 2), (1, 0), (1, 2)]
    assert rollouts.scored.collected().value_BR[:, 0].tolist() == [0.0, 2.0, 0.0, 2.0]
    assert rollouts.keep_B.tolist() == [True] * 4
    plan = Plan(prompt_ids=(0, 1), members=((0, 2), (0, 2)))
    rollout = exact.rollout([PROMPTS[0], PROMPTS[1]], group_size=2, seed=7, plan=plan)
    cheap = exact.rollout(
        [PROMPTS[0], PROMPTS[1]], group_size=3, seed=7, plan=Plan(prompt_ids=(0, 1), settings={"temperature": 0.5})
    )
    assert [s.tokens for s in rollouts.samples] == [s.tokens for s in rollout.samples]
    assert rollouts.rollout.num_forwards == rollout.num_forwards + cheap.num_forwards


def brightness(samples: Sequence[Sample]) -> list[float]:
    return [sum(sample.image.tobytes()) / 64 for sample in samples if sample.image is not None]


def apply_template(prompt_template: PromptTemplate, prompt: Prompt, member: int = 0) -> Prompt:
    prompt_of_member = prompt_template(prompt, member, NOTHING)
    assert prompt_of_member is not None
    return prompt_of_member


def test_contexts() -> None:
    prompt = Prompt("how many", columns={"hint": "two", "solution": "a b c d"})
    assert apply_template(template(text="Q: {prompt}"), prompt).text == "Q: how many"
    assert apply_template(column_hint(column="hint", text="{prompt} ({hint})"), prompt).text == "how many (two)"
    answer = apply_template(systems(texts=["be brief", "be kind"]), prompt, 3).messages
    assert answer == [{"role": "system", "content": "be kind"}, {"role": "user", "content": "how many"}]
    assert apply_template(solution_prefix(share=0.5), prompt).prefix == "a b "
    assert apply_template(solution_prefix(share=0.0), prompt) is prompt
    with pytest.raises(DataError, match="column 'hint'"):
        apply_template(column_hint(column="hint"), Prompt("q"))
    for wrong in (lambda: template(text="no place"), lambda: systems(texts=[]), lambda: solution_prefix(share=2)):
        with pytest.raises(ConfigError):
            wrong()
    assert Answer("solution").column == "solution"
