"""Roles of a run that take turns: the requests and prompts of each turn, exact log-probabilities, tasks as roles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from mmgrpo.rewards.groups.of_task import OfTask
from mmgrpo.rewards.groups.sample_chains import OfPromptTemplate

from mmgrpo import Job, Plan, Policy, Sample, Scorer
from mmgrpo.config import EvaluationConfig
from mmgrpo.data.history import History, RoleTurn
from mmgrpo.data.prompt_templates import role
from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Setting
from mmgrpo.maths.strategies.chain_stages import take_turns
from mmgrpo.scoring import NamedReward
from mmgrpo.training.evaluation import evaluate
from mmgrpo.training.held_out_sampling import HeldOutSampler
from mmgrpo.training.mixed import MixedTrainer
from mmgrpo.types import Prompt
from tests.maths.round_rows import round_of
from tests.policies.contract import largest_difference
from tests.policies.tiny_language import measured_policy_of, picture, policy_of, prompts_of
from tests.test_trainer import weights
from tests.tiny.language_models import make
from tests.training.test_chain_runs import first_is_right
from tests.training.test_rounds import PROMPTS, gathered, scored

GREEDY = Plan(stochastic=())
SETTING = Setting(step=0, num_prompts=2, group_size=2)
ASKER = {"text": "Ask about: {prompt}", "turn": "They said: {text}"}
TEMPLATES = {"asker": role(**ASKER), "helper": role(text="Help with {hint}")}


def turn_of(name: str, text: str) -> RoleTurn:
    return RoleTurn(name, Sample(Prompt("p"), 0, 0, text=text))


def identities(requests: Sequence[Any]) -> list[tuple[int, tuple[int, ...], str, tuple[tuple[int, int], ...]]]:
    return [(request.prompt, request.members, request.prompt_template, request.after) for request in requests]


def test_each_row_is_continued_and_rows_of_a_turn_are_a_group() -> None:
    strategy = take_turns(roles=["a", "b"], turns=3)
    first = strategy.ask((), SETTING)
    assert identities(first) == [(0, (0, 1), "a", ()), (1, (0, 1), "a", ())]
    rounds = [round_of(first, [1.0, 0.0, 0.0, 1.0])]
    second = strategy.ask(rounds, SETTING)
    assert identities(second) == [
        *[(2, (m,), "b", ((0, m),)) for m in (0, 1)],
        *[(3, (m,), "b", ((1, m),)) for m in (0, 1)],
    ]
    rounds.append(round_of(second, [0.0] * 4))
    third = strategy.ask(rounds, SETTING)
    assert identities(third) == [
        *[(4, (m,), "a", ((2, m),)) for m in (0, 1)],
        *[(5, (m,), "a", ((3, m),)) for m in (0, 1)],
    ]
    assert strategy.ask([*rounds, round_of(third, [0.0] * 4)], SETTING) == ()


def test_the_best_row_of_each_turn_is_continued_by_a_group() -> None:
    """Of equal rows the first is the best, and one without a reward is the worst."""
    strategy = take_turns(roles=["a", "b"], turns=3, follow="best")
    rounds = [round_of(strategy.ask((), SETTING), [0.0, 0.5, None, -1.0])]
    second = strategy.ask(rounds, SETTING)
    assert identities(second) == [(2, (0, 1), "b", ((0, 1),)), (3, (0, 1), "b", ((1, 1),))]
    third = strategy.ask([*rounds, round_of(second, [1.0, 1.0, None, None])], SETTING)
    assert identities(third) == [(4, (0, 1), "a", ((2, 0),)), (5, (0, 1), "a", ((3, 0),))]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"roles": [], "turns": 2}, "take_turns needs roles"),
        ({"roles": ["a"], "turns": 1}, "turns >= 2, got 1"),
        ({"roles": ["a", "b", "c"], "turns": 2}, "c has no turn: 2 turns of 3 roles; raise turns"),
        ({"roles": ["a", "b"], "turns": 2, "follow": "all"}, "follow is one of each, best, got 'all'"),
    ],
)
def test_invalid_turns_raise(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        take_turns(**settings)


CONVERSATION = (turn_of("solver", "<think>2</think>It is 3."), turn_of("critic", "No."), turn_of("judge", "Agreed."))


def test_a_role_reads_its_turns_as_the_assistant_and_others_as_the_user() -> None:
    prompt = Prompt("What is 1 + 1?", images=[picture()], columns={"level": "easy"})
    solver = role(text="Solve this {level} task: {prompt}", without="<think>.*?</think>")
    opened = solver(prompt, 0, History(role="solver"))
    assert opened == replace(prompt, text="Solve this easy task: What is 1 + 1?")
    result = solver(prompt, 0, History(role="solver", turns=CONVERSATION))
    assert result is not None
    assert (result.text, result.images) == ("critic: No.\n\njudge: Agreed.", prompt.images)
    assert result.messages == [
        {
            "role": "user",
            "content": [{"type": "image"}, {"type": "text", "text": "Solve this easy task: What is 1 + 1?"}],
        },
        {"role": "assistant", "content": "<think>2</think>It is 3."},
        {"role": "user", "content": "critic: No.\n\njudge: Agreed."},
    ]


def test_a_role_without_earlier_turns_reads_one_message() -> None:
    system = {"role": "system", "content": "Be short."}
    prompt = Prompt("1 + 1", messages=[system, {"role": "user", "content": "1 + 1"}])
    critic = role(text="Find errors in: {prompt}", turn="{text}", without="<think>.*?</think>")
    result = critic(prompt, 0, History(role="critic", turns=CONVERSATION[:1]))
    assert result is not None
    assert result.messages == [system, {"role": "user", "content": "Find errors in: 1 + 1\n\nIt is 3."}]
    bare = critic(Prompt("1 + 1"), 0, History(role="critic", turns=CONVERSATION[:1]))
    assert bare == Prompt("Find errors in: 1 + 1\n\nIt is 3.")
    partial = role(text="{prompt}", turn="{text}", reads=["critic"])
    assert partial(Prompt("p"), 0, History(role="host", turns=CONVERSATION)) == Prompt("p\n\nNo.")
    again = critic(Prompt("1 + 1"), 0, History(role="critic", turns=CONVERSATION))
    assert again is not None
    assert [message["role"] for message in again.messages or ()] == ["user", "assistant", "user"]


def test_conversations_end_and_no_role_follows_itself() -> None:
    solver = role(text="{prompt}", end="Agreed")
    assert solver(Prompt("p"), 0, History(role="solver", turns=CONVERSATION)) is None
    with pytest.raises(ConfigError, match="'solver' reads no turn after its last one"):
        solver(Prompt("p"), 0, History(role="solver", turns=CONVERSATION[:1]))
    with pytest.raises(ConfigError, match="'solver' reads no turn"):
        role(text="{prompt}", reads=["judge"])(Prompt("p"), 0, History(role="solver", turns=CONVERSATION[:2]))
    with pytest.raises(ConfigError, match="'solver' reads no turn"):
        role(text="{prompt}", same=["critic"])(Prompt("p"), 0, History(role="solver", turns=CONVERSATION[:2]))
    with pytest.raises(ConfigError, match=r"must contain \{text\}"):
        role(text="{prompt}", turn="{role}")
    with pytest.raises(ConfigError, match="no conversation in a view or an auxiliary loss"):
        solver(Prompt("p"), 0, History(samples=[CONVERSATION[0].sample], rewards=[1.0]))


def plain_logprobs(name: str, messages: Sequence[dict[str, Any]], tokens: Sequence[int]) -> torch.Tensor:
    """Log-probabilities of an answer by a plain call of the model on the messages in its chat template."""
    parts: tuple[Any, Any] = make(name)
    model, tokenizer = parts
    prompt = tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
    with torch.no_grad():
        logits_LV = model(input_ids=torch.tensor([[*prompt, *tokens]])).logits[0].float()
    logprob_LV = (logits_LV[len(prompt) - 1 : -1] / 4.0).log_softmax(-1)  # the temperature of the tiny policies
    return logprob_LV[torch.arange(len(tokens)), torch.tensor(tokens)]


@pytest.mark.parametrize("follow", ["each", "best"])
def test_turns_are_groups_with_the_log_probabilities_of_a_plain_call(follow: str) -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    strategy = take_turns(roles=["asker", "helper"], turns=3, follow=follow)
    rollouts = gathered(strategy, first_is_right, prompt_templates=TEMPLATES, policy=policy)
    by_identity = {sample.identity: sample for sample in rollouts.samples}
    assert rollouts.num_rounds == 3
    assert [sample.group for sample in rollouts.samples] == [group for group in range(6) for _ in (0, 1)]
    for row, sample in enumerate(rollouts.samples[8:], 8):
        helper = by_identity[sample.after[0]]
        asker = by_identity[helper.after[0]]
        prompt = PROMPTS[rollouts.root_of[sample.group]]
        assert sample.prompt is prompt  # rewards read the data row
        messages = [
            {"role": "user", "content": f"Ask about: {prompt.text}"},
            {"role": "assistant", "content": asker.text},
            {"role": "user", "content": f"They said: {helper.text}"},
        ]
        expected_T = plain_logprobs("llama", messages, sample.tokens or ())
        stored_T = rollouts.rollout.old_logprob_BT[row, : len(expected_T)]
        assert torch.allclose(stored_T, expected_T, atol=1e-5)
        assert follow == "each" or (helper.member, asker.member) == (0, 0)
    rollout = rollouts.rollout
    assert largest_difference(scored(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-5
    assert rollout.on_policy


SCORED: list[Sample] = []


def length_of(sample: Sample) -> float:
    return len(sample.text or "") + 0.1 * sample.member


def lengths(samples: Sequence[Sample]) -> list[float]:
    return [length_of(sample) for sample in samples]


def longest(samples: Sequence[Sample]) -> list[float]:
    SCORED.extend(samples)
    return lengths(samples)


def of_tasks(output: Path, *, steps: int, resume: Path | None = None) -> MixedTrainer:
    """An asker and a helper, each a policy that is trained; the asker writes a second turn after the helper's."""
    task = {"group_size": 2, "prompts_per_step": 2}
    helper = {"after": "asker", "compare": "prompt", "prompt_template": {"name": "role", "text": "Help: {prompt}"}}
    again = {
        "after": "helper",
        "policy_of": "asker",
        "compare": "prompt",
        "prompt_template": {"name": "role", "same": ["asker"], **ASKER},
    }
    SCORED.clear()
    trainer = MixedTrainer(
        {
            "output": str(output),
            "steps": steps,
            "runtime": {"device": "cpu"},
            "checkpoint": {"every": 1},
            "tasks": {
                "asker": {"rollout": task, "update": {"optimizer": {"lr": 1e-2}}},
                "helper": {"rollout": {"group_size": 2, "task": helper}, "update": {"optimizer": {"lr": 1e-2}}},
                "again": {"rollout": {"group_size": 2, "task": again}},
            },
        },
        policies={
            "asker": measured_policy_of("llama", max_new_tokens=5),
            "helper": policy_of("qwen2", max_new_tokens=5),
        },
        rewards={
            "asker": [NamedReward("of_task", OfTask("helper"))],
            "helper": [NamedReward("of_task", OfTask("again"))],
            "again": {"longest": longest},
        },
        prompts={name: prompts_of("llama") for name in ("asker", "helper", "again")},
        resume=resume,
    )
    trainer.train()
    return trainer


@pytest.mark.nightly
def test_tasks_take_turns_and_a_plain_call_has_their_log_probabilities(tmp_path: Path) -> None:
    trainer = of_tasks(tmp_path, steps=1)
    folders = {name: task.folder.path for name, task in trainer.tasks.items()}
    rows = {
        name: [json.loads(line) for line in (path / "samples" / "train-000001" / "samples.jsonl").open()]
        for name, path in folders.items()
    }
    of_asker, of_helper = ({(row["group"], row["member"]): row for row in rows[name]} for name in ("asker", "helper"))
    assert len(SCORED) == 4
    for sample in SCORED:
        helper = of_helper[sample.after[0]]
        asker = of_asker[sample.group, sample.member]  # compare: prompt follows each sample by one, in their order
        messages = [
            {"role": "user", "content": f"Ask about: {sample.prompt.text}"},
            {"role": "assistant", "content": asker["text"]},
            {"role": "user", "content": f"They said: {helper['text']}"},
        ]
        expected_T = plain_logprobs("llama", messages, sample.tokens or ())
        assert sample.logprob == pytest.approx(float(expected_T.mean()), abs=1e-5)
        assert helper["rewards"]["of_task"] == pytest.approx(length_of(sample), rel=1e-5)


@pytest.mark.nightly
def test_tasks_that_take_turns_resume_exactly(tmp_path: Path) -> None:
    uninterrupted = of_tasks(tmp_path / "whole", steps=2)
    half = of_tasks(tmp_path / "half", steps=1)
    resumed = of_tasks(tmp_path / "half", steps=2, resume=half.folder.path)
    for name, family in (("asker", "llama"), ("helper", "qwen2")):
        result = weights(resumed.tasks[name])
        assert torch.equal(result, weights(uninterrupted.tasks[name]))
        start = torch.cat([parameter.detach().flatten() for parameter in policy_of(family).trainable])
        assert float((result - start).abs().max()) > 1e-4


@pytest.mark.nightly
def test_evaluations_of_a_chain_play_all_turns_before(tmp_path: Path) -> None:
    trainer = of_tasks(tmp_path, steps=0)
    asker, helper, again = (trainer.tasks[name] for name in ("asker", "helper", "again"))
    prompts = prompts_of("llama")
    assert again.task_link is not None
    upstream = again.task_link.held_out(prompts, again.job)
    assert list(upstream.rollouts) == ["helper", "asker"]
    result = again.held_out_sampler(again.policy, prompts, group_size=2, seed=0, plan=GREEDY)
    for number, prompt in enumerate(prompts):
        (opening,) = asker.policy.rollout([prompt], group_size=1, seed=0, plan=GREEDY).samples
        helped = Prompt(f"Help: {prompt.text}\n\nasker: {opening.text}")
        (reply,) = helper.policy.rollout([helped], group_size=1, seed=0, plan=GREEDY).samples
        messages = [
            {"role": "user", "content": f"Ask about: {prompt.text}"},
            {"role": "assistant", "content": opening.text},
            {"role": "user", "content": f"They said: {reply.text}"},
        ]
        last = greedy(again.policy, messages)
        assert [sample.tokens for sample in result.samples if sample.group == number] == [last, last]
    assert [sample.prompt for sample in result.samples] == [prompt for prompt in prompts for _ in (0, 1)]


def greedy(policy: Policy, messages: Sequence[dict[str, Any]]) -> Sequence[int]:
    """The tokens of the likeliest answer to the messages."""
    prompt = Prompt(messages[-1]["content"], messages=list(messages))
    (sample,) = policy.rollout([prompt], group_size=1, seed=0, plan=GREEDY).samples
    assert sample.tokens is not None
    return sample.tokens


def test_an_evaluation_is_a_conversation_with_one_answer_in_each_turn() -> None:
    """Each answer is the likeliest one to its role's messages, also where training continues the best of several."""
    policy = measured_policy_of("llama", max_new_tokens=4)
    strategy = take_turns(roles=["asker", "helper"], turns=3, follow="best")
    sampler = HeldOutSampler(job=Job(Accelerator(cpu=True)), ask=strategy.evaluation, prompt_templates=TEMPLATES)
    rewards = {"asked": OfPromptTemplate(lengths, ["asker"]), "helped": OfPromptTemplate(lengths, ["helper"])}
    scorer = Scorer([NamedReward(name, reward) for name, reward in rewards.items()])
    config = EvaluationConfig.model_validate({"prompts": {"source": "x"}})
    result = evaluate(policy, PROMPTS[:2], scorer, config, sampler)
    assert result is not None
    assert [sample.identity for sample in result.samples] == [(group, 0) for group in range(6)]
    assert [sample.after for sample in result.samples] == [(), (), ((0, 0),), ((1, 0),), ((2, 0),), ((3, 0),)]
    texts = [sample.text for sample in result.samples]
    for number, prompt in enumerate(PROMPTS[:2]):
        asked, helped, answer = (result.samples[row] for row in (number, number + 2, number + 4))
        opening = {"role": "user", "content": f"Ask about: {prompt.text}"}
        assert asked.tokens == greedy(policy, [opening])
        reads = [{"role": "user", "content": f"Help with it is two\n\nasker: {asked.text}"}]
        assert helped.tokens == greedy(policy, reads)
        reads = [
            opening,
            {"role": "assistant", "content": asked.text},
            {"role": "user", "content": f"They said: {helped.text}"},
        ]
        assert answer.tokens == greedy(policy, reads)
        assert asked.prompt is helped.prompt is answer.prompt is prompt
    num_characters = [len(text or "") for text in texts]
    assert result.metrics()["eval/asked/mean"] == pytest.approx(sum(num_characters[:2] + num_characters[4:]) / 4)
    assert result.metrics()["eval/helped/mean"] == pytest.approx(sum(num_characters[2:4]) / 2)
    preview, scores = result.preview(3)
    assert [sample.identity for sample in preview] == [(0, 0), (2, 0), (4, 0)]
    assert scores.value_BR[:, 0].tolist() == [num_characters[0], 0.0, num_characters[4]]


def test_a_conversation_of_an_evaluation_ends_where_its_prompt_template_does_not_apply() -> None:
    policy = measured_policy_of("llama", max_new_tokens=4)
    ends = {"asker": role(**ASKER), "helper": role(text="Help with {hint}", end=".")}
    ask = take_turns(roles=["asker", "helper"], turns=3).evaluation
    sampler = HeldOutSampler(job=Job(Accelerator(cpu=True)), ask=ask, prompt_templates=ends)
    result = sampler(policy, PROMPTS[:2], group_size=2, seed=0, plan=GREEDY)
    assert [sample.identity for sample in result.samples] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert result.num_unshown == 4
