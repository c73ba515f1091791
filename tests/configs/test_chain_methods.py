"""Shipped methods whose rows continue others: requests, rewards, advantages, and a training run."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from mmgrpo.rewards.text.tagged import Tagged

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.data.history import History
from mmgrpo.maths.aggregates import count
from mmgrpo.maths.feedback import SampleColumn, Scoped
from mmgrpo.maths.strategies import Round, Setting
from mmgrpo.scoring import NamedReward
from mmgrpo.training.build import build_rewards
from mmgrpo.training.compute_advantages import combine_rewards
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample, Scope, Score, Scores
from mmgrpo.values import of_view
from tests.configs.mechanisms import CHAINS
from tests.configs.method_steps import config_of
from tests.maths.feedback_rows import feedback_of
from tests.maths.round_rows import round_of
from tests.policies.tiny_language import measured_policy_of, prompts_of

After = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Play:
    """Rounds of two prompts in groups of two.

    Attributes:
        rewards: of each round's rows, in the order of requests and members.
        requests: of each round after the first, (prompt, first member, how many, context, after) of its requests.
        unfinished: places of the rows of each round that were cut off.
    """

    rewards: Sequence[Sequence[float]]
    requests: Sequence[Sequence[tuple[int, int, int, str, After]]]
    unfinished: Sequence[Sequence[int]] = ((), (), (), (), ())


PLAYS: dict[str, Play] = {
    # the first prompt is half solved: its right answer is shown, and both problems are solved; the second is easy
    "svs": Play(
        rewards=([0, 1, 1, 1], [0, 0], [0, 0, 1, 1]),
        requests=(
            [(2, 0, 2, "problem", ((0, 1),))],
            [(3, 0, 2, "solution", ((2, 0),)), (4, 0, 2, "solution", ((2, 1),))],
        ),
    ),
    # one answer of the first prompt ends in its second chunk, one of the second is cut off after five
    "delethink": Play(
        rewards=([0, 1, 1, 0], [1, 0], [0], [0], [0]),
        requests=(
            [(0, 2, 1, "chunk", ((0, 0),)), (1, 2, 1, "chunk", ((1, 1),))],
            [(1, 3, 1, "chunk", ((1, 2),))],
            [(1, 4, 1, "chunk", ((1, 3),))],
            [(1, 5, 1, "chunk", ((1, 4),))],
        ),
        unfinished=((0, 3), (1,), (0,), (0,), (0,)),
    ),
    "motif": Play(
        rewards=([0] * 4, [0] * 16, [0] * 16),
        requests=(
            [(2 + n, 0, 4, "second", ((n // 2, n % 2),)) for n in range(4)],
            [(6 + n, 0, 1, "third", ((2 + n // 4, n % 4),)) for n in range(16)],
        ),
    ),
    # of a right and a wrong answer an experience is written, and the prompt tried again with it; else none is
    "mel": Play(
        rewards=([0, 1, 1, 1], [0], [1]),
        requests=([(2, 0, 1, "experience", ((0, 1), (0, 0)))], [(3, 0, 1, "tried_again", ((2, 0),))]),
    ),
    # the first prompt is hard, the second middling
    "clpo": Play(
        rewards=([0, 0, 0, 1], [0], [0], [0, 0], [0, 1]),
        requests=(
            [(2, 0, 1, "simpler", ((0, 0), (0, 1)))],
            [(3, 0, 1, "other", ((1, 0), (1, 1)))],
            [(4, 0, 2, "of_simpler", ((2, 0),))],
            [(5, 0, 2, "of_other", ((3, 0),))],
        ),
    ),
    "canoe": Play(
        rewards=([0] * 4, [0] * 4),
        requests=([(2 + n, 0, 1, "proxy", ((n // 2, n % 2),)) for n in range(4)],),
    ),
    "critique-rl": Play(
        rewards=([0] * 4, [0] * 4),
        requests=([(2 + n, 0, 1, "refined", ((n // 2, n % 2),)) for n in range(4)],),
    ),
    # the second module's calls are a group of each row
    "multi-module-grpo": Play(
        rewards=([0] * 4, [0] * 4),
        requests=([(2 + n // 2, n % 2, 1, "answer", ((n // 2, n % 2),)) for n in range(4)],),
    ),
}


@pytest.mark.parametrize("name", PLAYS)
def test_stages_follow_their_rows(name: str) -> None:
    play, strategy = PLAYS[name], Algorithm.of(config_of(name)).strategy
    setting, rounds, requested = Setting(step=0, num_prompts=2, group_size=2), list[Round](), []
    for rewards, cut_off in zip(play.rewards, play.unfinished, strict=False):
        requests = strategy.ask(rounds, setting)
        requested.append(
            [
                (request.prompt, request.members[0], len(request.members), request.prompt_template, request.after)
                for request in requests
            ]
        )
        rounds.append(round_of(requests, rewards, [place not in cut_off for place in range(len(rewards))]))
    assert requested[1:] == list(play.requests)
    assert strategy.ask(rounds, setting) == ()


COLUMNS = {"answer": "7", "question": "which?", "response": "it is 8", "verdict": "Correct"}


def wrote(text: str, group: int, member: int, prompt_template: str | None = None, *after: tuple[int, int]) -> Sample:
    return Sample(Prompt("q", columns=COLUMNS), group, member, text=text, prompt_template=prompt_template, after=after)


RIGHT, WRONG = r"so \boxed{7}", r"so \boxed{8}"
TAGGED_RIGHT, MISTOLD = "<answer>7</answer>", "<answer>8</answer>"
FORM = "<think>a</think><long_answer>b</long_answer>"

SCORED_ROWS: dict[str, tuple[list[Sample], list[float | None]]] = {
    # of a problem's four solutions one is right, 0.25 of 0.125 to 0.625; another's are all wrong; one was no problem
    "svs": (
        [
            *[wrote(RIGHT, 0, 0), wrote(WRONG, 0, 1)],
            *[wrote("p", 2, m, "problem", (0, 0)) for m in range(3)],
            *[wrote(RIGHT if m == 0 else WRONG, 3, m, "solution", (2, 0)) for m in range(4)],
            *[wrote(WRONG, 4, m, "solution", (2, 1)) for m in range(4)],
        ],
        [1, 0, 1, 0, 0, *[1, 0, 0, 0], *[0] * 4],
    ),
    # the end of each answer
    "delethink": (
        [wrote("so", 0, 0), wrote(RIGHT, 0, 1), wrote(WRONG, 0, 2, "chunk", (0, 0))],
        [None, 1, 0],
    ),
    # two of four trajectories are right: 2 x 1/2, and 1 for the form
    "motif": (
        [
            *[wrote("<reasoning>a</reasoning><answer>b</answer>", 0, 0), wrote("b", 0, 1)],
            *[wrote("b", 1, m, "second", (0, 0)) for m in range(4)],
            *[wrote(RIGHT if m < 2 else WRONG, 2 + m, 0, "third", (1, m)) for m in range(4)],
        ],
        [2, 0, *[None] * 8],
    ),
    # an experience has the reward of the answers that are written with it in the prompt
    "mel": (
        [
            *[wrote(RIGHT, 0, 0), wrote(WRONG, 0, 1), wrote(RIGHT, 1, 0), wrote(WRONG, 1, 1)],
            *[wrote("if", 2, 0, "experience", (0, 0), (0, 1)), wrote(RIGHT, 4, 0, "tried_again", (2, 0))],
            *[wrote("if", 3, 0, "experience", (1, 0), (1, 1)), wrote(WRONG, 5, 0, "tried_again", (3, 0))],
        ],
        [1, 0, 1, 0, 1, None, 0, None],
    ),
    # what is written of prompts earns nothing and does not train
    "clpo": (
        [
            *[wrote(RIGHT, 0, 0, "asked"), wrote("p", 1, 0, "simpler", (0, 0))],
            *[wrote(RIGHT, 2, 0, "of_simpler", (1, 0)), wrote(WRONG, 2, 1, "of_simpler", (1, 0))],
        ],
        [1, None, 1, 0],
    ),
    # right, formed, and rightly answered from its long answer; wrong and formed; right without a long answer
    "canoe": (
        [
            *[wrote(FORM + TAGGED_RIGHT, 0, 0), wrote(FORM + MISTOLD, 0, 1), wrote(TAGGED_RIGHT, 0, 2)],
            *[wrote(TAGGED_RIGHT, 1, 0, "proxy", (0, 0)), wrote(MISTOLD, 2, 0, "proxy", (0, 1))],
        ],
        [3, 1, 1, None, None],
    ),
    # a right verdict, 1.2, and 1 for a right refinement, which a wrong verdict does not have
    "critique-rl": (
        [
            *[wrote("<answer>Correct</answer>", 0, m, "critique") for m in range(2)],
            wrote("<answer>Wrong</answer>", 0, 2, "critique"),
            *[wrote(RIGHT if m != 1 else WRONG, 1 + m, 0, "refined", (0, m)) for m in range(3)],
        ],
        [2.2, 1.2, 0, None, None, None],
    ),
    # both calls of a rollout earn what its answer does
    "multi-module-grpo": (
        [
            *[wrote("n", 0, 0, "notes"), wrote("n", 0, 1, "notes")],
            *[wrote(TAGGED_RIGHT, 1, 0, "answer", (0, 0)), wrote(MISTOLD, 1, 1, "answer", (0, 1))],
        ],
        [1, 0, 1, 0],
    ),
}


@pytest.mark.parametrize("name", SCORED_ROWS)
def test_rewards_of_chain_rows(name: str) -> None:
    (samples, expected), config = SCORED_ROWS[name], config_of(name)
    rewards = build_rewards(config.rewards)
    value_RB = [[number(value) for value in reward.function(samples)] for reward in rewards]
    scores = Scores(
        names=tuple(reward.name for reward in rewards),
        weight_R=torch.tensor([reward.weight for reward in rewards]),
        value_BR=torch.tensor([[value or 0.0 for value in values] for values in value_RB]).T,
        valid_BR=torch.tensor([[value is not None for value in values] for values in value_RB]).T,
    )
    group_B = torch.tensor([sample.group for sample in samples])
    result = combine_rewards(scores, group_B, reward_functions=rewards, chain=Algorithm.of(config).advantages, step=0)
    assert result.valid_B.tolist() == [value is not None for value in expected]
    assert result.reward_B[result.valid_B].tolist() == pytest.approx([value for value in expected if value is not None])


def number(score: float | Score | None) -> float | None:
    return score.value if isinstance(score, Score) else score


@pytest.mark.parametrize(
    ("name", "prompt_template", "text", "expected"),
    [
        ("svs", "solution", "so\n```text\nWhat is 3?\n```", "What is 3? Please reason"),
        ("mel", "tried_again", "If so.", "What was learnt from earlier attempts at this problem:\n\nIf so.\n"),
        ("motif", "second", "<reasoning>a</reasoning><answer>b</answer>", 'q Progress in round 1: "b"'),
        ("motif", "second", "cut off", 'q Progress in round 1: "cut off"'),
        ("motif", "third", "<answer>a</answer> <answer>b", 'q Progress in round 2: "b" Current'),
        ("clpo", "of_simpler", "```text\nWhat is 3?\n```", "What is 3?"),
        ("canoe", "proxy", "<long_answer> It is 3. </long_answer>", "<context>It is 3.</context>\n\nwhich?"),
        ("critique-rl", "refined", "bad", "q\n\nYour solution:\nit is 8\n\nA critique of it:\nbad\n"),
        ("multi-module-grpo", "answer", "three", "q\n\nNotes:\nthree"),
    ],
)
def test_prompts_of_chain_rows(name: str, prompt_template: str, text: str, expected: str) -> None:
    history = History(samples=[wrote(text, 0, 0)], rewards=[None])
    result = Algorithm.of(config_of(name)).prompt_templates[prompt_template](Prompt("q", columns=COLUMNS), 0, history)
    assert result is not None
    assert result.text.startswith(expected)


def test_the_loss_of_delethink_is_the_mean_over_answers_of_their_mean_over_tokens() -> None:
    """An answer of 3 and 1 tokens with the advantage 1, and one of 2 with -1, at the ratio 1: (-1 + 1) / 2.

    At a ratio of 1.1 in the last token of the first alone: -(3 + 1.1) / 4 / 2 + 1 / 2 = -0.0125.
    """
    config = config_of("delethink")
    (estimator,), objective = Algorithm.of(config).advantages.estimators, Algorithm.of(config).objective
    mask_BT = torch.arange(3) < torch.tensor([3, 2, 1])[:, None]
    feedback = feedback_of([0.0, 0.0, 1.0], [0] * 3, mask=mask_BT.int().tolist())
    feedback = replace(feedback, after_B=torch.tensor([-1, -1, 0]))
    input_BT = torch.tensor([0.0, -1.0, 1.0])[:, None].expand(3, 3)
    advantage_BT = estimator.assign(feedback, input_BT)
    weight_BT = objective.mean_weights(mask_BT, count(mask_BT, group_B=feedback.group_B))
    ratio_BT = torch.ones(3, 3)
    assert float(-(weight_BT * ratio_BT * advantage_BT).sum()) == pytest.approx(0.0, abs=1e-7)
    ratio_BT[2, 0] = 1.1
    assert float(-(weight_BT * ratio_BT * advantage_BT).sum()) == pytest.approx(-0.0125, abs=1e-7)


def test_care_gives_likely_answers_more() -> None:
    """Three of four are right and formed, 2; their answers have the probabilities 0.9, 0.5 and 0.99, cut to 0.95.

    Their mean is 0.7833. The first and the third earn 2.5, the second 2, the last 0: mean 1.75, sample std 1.1902381.
    """
    (estimator,) = Algorithm.of(config_of("grpo-care")).advantages.estimators
    answer = Scoped(
        scope_BT=torch.tensor([[-1, 0]] * 4), value_BS=torch.ones(4, 1), valid_BS=torch.ones(4, 1, dtype=torch.bool)
    )
    logprob_BT = torch.tensor([[0.5, 0.9], [0.5, 0.5], [0.5, 0.99], [0.5, 0.99]]).log()
    feedback = feedback_of(
        [2.0, 2.0, 2.0, 0.0],
        [0] * 4,
        mask=[[1, 1]] * 4,
        values={of_view("slow"): logprob_BT},
        scoped={"answer": answer},
    )
    right = SampleColumn(value_B=torch.tensor([1.0, 1.0, 1.0, 0.0]).double(), valid_B=feedback.valid_B)
    result_BT = estimator.assign(replace(feedback, rewards={"accuracy": right}), torch.zeros(4, 2))
    std = 1.1902381 + 1e-4
    assert result_BT[:, 0].tolist() == pytest.approx([0.75 / std, 0.25 / std, 0.75 / std, -1.75 / std], abs=1e-6)


def test_texts_between_tags_are_marked() -> None:
    texts = ("<answer>a</answer> or <answer>bc</answer>.", "<answer></answer>", "</answer> <answer>", "a")
    result = Tagged()([wrote(text, 0, member) for member, text in enumerate(texts)])
    assert [number(score) for score in result] == [1.0, 0.0, 0.0, 0.0]
    marked = [text[s.start : s.end] for text, score in zip(texts, result, strict=True) for s in scopes(score)]
    assert marked == ["bc"]


def scopes(score: float | Score | None) -> Sequence[Scope]:
    return (score.scopes or ()) if isinstance(score, Score) else ()


def half_are_right(samples: Sequence[Sample]) -> list[float]:
    return [float((sample.group + sample.member) % 2 == 0) for sample in samples]


def by_text(samples: Sequence[Sample]) -> list[float]:
    return [float(zlib.crc32((sample.text or "").encode()) % 2) for sample in samples]


def second_half(samples: Sequence[Sample]) -> list[Score]:
    """Marks the second half of each text as its answer."""
    halves = [(len(sample.text or "") // 2, len(sample.text or "")) for sample in samples]
    return [Score(1.0, scopes=[Scope(*half, 1.0)] if half[0] < half[1] else None) for half in halves]


EVERYDAY = ("svs", "delethink", "grpo-care")


@pytest.mark.first_case
@pytest.mark.parametrize(
    "name", [name if name in EVERYDAY else pytest.param(name, marks=pytest.mark.nightly) for name in CHAINS]
)
def test_method_trains(name: str, tmp_path: Path) -> None:
    pattern = {"rollout.prompt_templates.solution.pattern": None} if name == "svs" else {}
    tail = (
        {"rollout.prompt_templates.chunk.head": 1, "rollout.prompt_templates.chunk.tail": 1}
        if name == "delethink"
        else {}
    )
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.optimizer.lr": 1e-3}
    then = config_of(name).rollout.strategy.settings.get("then", ())
    if then:  # settings of drawing are of models with room for long answers
        short = [{key: value for key, value in stage.items() if key != "settings"} for stage in then]
        small = {**small, "rollout.strategy.then": short}
    cut = {"objective.truncated": "keep"} if name == "comas" else {}  # the tiny model ends no text
    config = load_config(f"methods/{name}", {**small, **pattern, **tail, **cut, "output": str(tmp_path), "rewards": []})
    replacing = {
        "grpo-care": ("answer", second_half),
        "critique-rl": ("discrimination", half_are_right),
        "comas": ("interaction", half_are_right),
    }
    rewards = [NamedReward("right", by_text if name == "motif" else half_are_right)]
    if name in replacing:
        rewards += [NamedReward(*replacing[name], from_method=name)]
    prompts = [replace(prompt, columns=COLUMNS) for prompt in prompts_of("llama")]
    policy = measured_policy_of("llama", max_new_tokens=12)
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, rewards, prompts[:2], config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["step"] == 2
    assert lines[0]["policy/on_policy_gap"] < 1e-4
    assert all(line["optimizer/grad_norm"] > 0 for line in lines)
    assert (name == "grpo-care") == ("rollout/rounds" not in lines[0])
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))
