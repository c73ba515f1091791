"""The requests of the strategy of a shipped method, round by round, and the prompts that it samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmgrpo.algorithm import Algorithm, prompt_sampler
from mmgrpo.data.history import History
from mmgrpo.maths.strategies import Answer, Request, Round, Setting, Strategy
from mmgrpo.memory import Memory
from mmgrpo.types import Prompt, Sample
from tests.configs.method_steps import config_of
from tests.data.test_samplers import after, pool
from tests.maths.round_rows import round_of
from tests.maths.test_strategies import keep_masks

TWO_OF_TWO = Setting(step=0, num_prompts=2, group_size=2)
"""Two prompts in groups of two."""


@dataclass(frozen=True, slots=True)
class ExpectedRounds:
    """Rounds of two prompts in groups of two.

    Attributes:
        rewards: of each round's rows, in the order of requests and members.
        requests: of each round after the first: (prompt, first member, number of members, context) of each.
        trained: of each round, 1 for the rows that train.
    """

    rewards: Sequence[Sequence[float]]
    requests: Sequence[Sequence[tuple[int, int, int, str | None]]]
    trained: Sequence[Sequence[int]]


def strategy_of(name: str, step: int = 0) -> Strategy:
    """The strategy of a method at a step."""
    return Algorithm.of(config_of(name)).at(step, Memory()).strategy


def request_row(request: Request) -> tuple[int, int, int, str | None]:
    """(prompt, first member, number of members, context) of a request."""
    return request.prompt, request.members[0], len(request.members), request.prompt_template


def assert_rounds(name: str, expected: ExpectedRounds) -> None:
    """The requests of a method and the rows that train."""
    strategy, rounds = strategy_of(name), list[Round]()
    for rewards, rows in zip(expected.rewards, (None, *expected.requests), strict=True):
        requests = strategy.ask(rounds, TWO_OF_TWO)
        assert rows is None or [request_row(request) for request in requests] == list(rows)
        rounds.append(round_of(requests, rewards))
    assert strategy.ask(rounds, TWO_OF_TWO) == ()
    assert [keep_B.int().tolist() for keep_B in strategy.keep(rounds, TWO_OF_TWO)] == list(map(list, expected.trained))


def assert_refilled(name: str) -> None:
    """Of two groups one has rewards that differ: one further prompt is requested, and the other group is left out."""
    strategy = strategy_of(name)
    first = round_of(strategy.ask((), TWO_OF_TWO), [1, 1, 1, 0])
    assert strategy.ask([first], TWO_OF_TWO) == (Request(prompt=2, members=(0, 1)),)
    assert strategy.keep([first], TWO_OF_TWO)[0].tolist() == [False, False, True, True]


def assert_prompt_templates(
    name: str, prompt_templates: Sequence[str | None], *, train_without_template: bool = False
) -> None:
    """A group of 24 in equal parts, each with its context; a row of another context may train after the bare prompt."""
    size = 24 // len(prompt_templates)
    assert strategy_of(name).ask((), Setting(step=0, num_prompts=1, group_size=24)) == tuple(
        Request(
            prompt=0,
            members=tuple(range(part * size, (part + 1) * size)),
            prompt_template=prompt_template,
            train_without_template=train_without_template and prompt_template is not None,
            as_on_policy=train_without_template and prompt_template is not None,
        )
        for part, prompt_template in enumerate(prompt_templates)
    )


def assert_answers_replace_failures(name: str, columns: Sequence[str]) -> None:
    """Answers of the data take the place of the last rows of a group that failed."""
    strategy, setting = strategy_of(name), Setting(step=0, num_prompts=2, group_size=4)
    first = round_of(strategy.ask((), setting), [1, 0, 0, 0, 0, 0, 0, 0])
    (request,) = strategy.ask([first], setting)
    assert (request.prompt, request.off_policy_rows) == (1, tuple(Answer(column) for column in columns))
    sampled = [True] * (8 - len(columns)) + [False] * len(columns)
    rounds = [first, round_of([request], [1] * len(columns))]
    assert keep_masks(strategy, rounds, setting) == [sampled, [True] * len(columns)]


def sampled_prompts(name: str, rates: Mapping[str, float], num: int) -> list[int]:
    """The prompts that a method's sampler returns once each prompt was seen and had that success rate."""
    prompts = config_of(name).prompts
    assert prompts is not None
    assert prompts.sampler is not None
    sampler = prompt_sampler(prompts.sampler)
    memory = after(Memory().declared(sampler.columns), 0, dict(rates))
    return sampler.draw(memory, 1, pool(len(rates)), num, 0)


def template_text(name: str, prompt_template: str, history: History, member: int = 0, **columns: Any) -> str:
    """The text of a member's prompt under a prompt template of a method; the question is 2 + 2."""
    prompt = Prompt("2 + 2?", columns={"answer": "4", "solution": "abcdefgh", **columns})
    result = Algorithm.of(config_of(name)).prompt_templates[prompt_template](prompt, member, history)
    assert result is not None
    return result.text


def history_of(*texts: str, rewards: Sequence[float | None]) -> History:
    """Texts of a group so far, with their rewards."""
    samples = [Sample(Prompt("2 + 2?"), 0, member, text=text) for member, text in enumerate(texts)]
    return History(samples=samples, rewards=rewards)
