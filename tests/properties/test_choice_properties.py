"""Properties of functions that choose steps, numbers, prompts and samples: schedules, controllers, windows, trees,
weights of answers, prompt samplers and strategies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import ceil
from random import Random

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, shuffled
from mmgrpo.errors import ConfigError
from mmgrpo.maths.controllers import SERIES
from mmgrpo.maths.strategies import Request, Round, Setting, Strategy, trained
from mmgrpo.memory import Memory, Outcomes, ReplayRow
from mmgrpo.types import Prompt
from tests.maths.round_rows import round_of
from tests.properties.harness import assert_near, assert_unchanged, checks_as_tests
from tests.properties.registered import Case

MOST_ROUNDS = 14
"""Rounds that a strategy may ask for: two more than any of the shipped files has."""


def schedule_runs_between_its_ends(case: Case, data: st.DataObject) -> None:
    """The first number at step 0, the last one from the last step on, and between them no way back."""
    schedule, numbers = case.bind(), case.numbers
    ramp = max(numbers.get("warmup_steps", 0) - 1, 0)
    if case.name == "step":
        first, last, end = numbers["values"][0], numbers["values"][-1], numbers["at"][-1]
    elif case.name == "constant":
        first = last = numbers.get("value", 1.0)
        end = ramp
    elif case.name == "exponential":
        first, last, end = numbers["start"], max(numbers["low"], 0.0), 100 * numbers.get("every", 1)
    else:
        first, last = numbers["start"], numbers["end"]
        end = max(numbers.get("begin", 0), numbers.get("warmup_steps", 0)) + numbers["steps"]
    assert schedule(ramp) == pytest.approx(first)
    assert schedule(0) == pytest.approx(first / (ramp + 1)) or case.name == "step"
    steps = sorted({ramp, end, *data.draw(st.lists(st.integers(ramp, end + 3), min_size=8, max_size=8))})
    values = [schedule(step) for step in steps]
    assert schedule(end + data.draw(st.integers(0, 100))) == pytest.approx(last)
    assert all(isinstance(value, int | float) and math.isfinite(value) for value in values)
    assert values in (sorted(values), sorted(values, reverse=True)) or case.name == "step"


def controller_stays_within_its_bounds(case: Case, data: st.DataObject) -> None:
    """A finite number within low and high, the same each time."""
    controller, numbers = case.bind(), case.numbers
    low, high = numbers.get("low", -math.inf), numbers.get("high", math.inf)
    finite = st.floats(-100, 100)
    value = data.draw(st.floats(max(low, 0), min(high, 100)))
    measured = data.draw(st.lists(finite, min_size=2, max_size=4)) if case.name in SERIES else data.draw(finite)
    result = controller(value, measured)
    assert math.isfinite(result)
    assert low <= result <= high
    assert controller(value, measured) == result


def controller_rests_at_its_target(case: Case, data: st.DataObject) -> None:
    """A metric at the target, or the same as ever, leaves the number as it is."""
    value = data.draw(st.floats(0.25, 0.5))
    target = case.numbers.get("target", value)
    measured = [target] * data.draw(st.integers(2, 4)) if case.name in SERIES else target
    assert case.bind()(value, measured) == pytest.approx(value)


def window_is_within_the_schedule(case: Case, data: st.DataObject) -> None:
    """Increasing decisions of the schedule, at least one; an error where the numbers do not fit it."""
    num = data.draw(st.integers(1, 30))
    parameters = {"random": ("seed",), "random_subset": ("seed",), "progressive": ("step",)}.get(case.name, ())
    numbers = {name: data.draw(st.integers(0, 1000)) for name in parameters}
    try:
        window = case.bind()(num, **numbers)
    except ConfigError:
        assert num < max(case.numbers.get("size", 1), case.numbers.get("high", 0), case.numbers.get("start", 0) + 1) + 2
        return
    assert window == case.bind()(num, **numbers)
    assert list(window) == sorted(set(window))
    low, high = case.numbers.get("low", 0), case.numbers.get("high", num)
    assert low <= window[0] <= window[-1] < high
    size = case.numbers.get("size", num)
    assert len(window) == (size if size >= 1 else max(1, int(size * num)))


def every_decision_is_in_some_window(case: Case, data: st.DataObject) -> None:
    """Over seeds, or steps, every decision that a window may hold is in one."""
    low, high = case.numbers.get("low", 0), case.numbers.get("high", 14)
    if case.name not in ("random", "random_subset", "progressive"):
        return
    offset = data.draw(st.integers(0, 10**6))
    numbers = [{"step": 20 * n} if case.name == "progressive" else {"seed": offset + n} for n in range(150)]
    decisions = {decision for each in numbers for decision in case.bind()(14, **each)}
    assert decisions == set(range(low, high))


def tree_has_as_many_leaves_as_the_group(case: Case, data: st.DataObject) -> None:
    """Increasing decisions of the schedule, whose factors multiply to the group's size."""
    num, size = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([16, 2, 4, 8, 3]))
    try:
        splits = case.bind()(num, size)
    except ConfigError:
        assert size == 3 or num < 10 or case.name == "at"
        return
    decisions = [split.decision for split in splits]
    assert decisions == sorted(set(decisions))
    assert 0 <= decisions[0] <= decisions[-1] < num
    assert math.prod(split.factor for split in splits) == size


def weight_of_answers_is_elementwise(case: Case, data: st.DataObject) -> None:
    """Each answer's weight is from 0 to 1, of the rates' dtype, by its rate alone, and never rises with it."""
    rates = sorted(data.draw(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=8)))
    for dtype in (torch.float32, torch.float64):
        rate_N = torch.tensor(rates, dtype=dtype)
        results: list[Tensor] = []
        assert_unchanged([rate_N], lambda rate_N=rate_N, results=results: results.append(case.bind()(rate_N)))
        (weight_N,) = results
        assert (weight_N.dtype, weight_N.shape) == (dtype, rate_N.shape)
        assert bool(((weight_N >= 0) & (weight_N <= 1)).all())
        assert weight_N.tolist() == sorted(weight_N.tolist(), reverse=True)
        assert_near(torch.cat([case.bind()(rate_N[n : n + 1]) for n in range(len(rates))]), weight_N)


def sampler_of(case: Case) -> PromptSampler:
    """The sampler; ``mixed`` is one of two others."""
    function = case.bind()
    return function(first=SAMPLERS["weighted"](), second=shuffled()) if case.name == "mixed" else function()


def remembered(sampler: PromptSampler, keys: Sequence[str], random: Random) -> Memory:
    """What is remembered of some prompts after a few steps."""
    memory = Memory().declared(sampler.columns)
    for column in sampler.columns:
        numbers = [random.choice([0, 0, 1, 2, 3]) / (1 if column.dtype == "int64" else 4) for _ in keys]
        memory = memory.write(column.name, keys, torch.tensor(numbers, dtype=getattr(torch, column.dtype)))
    return memory


def sampler_takes_prompts_of_the_pool(case: Case, data: st.DataObject) -> None:
    """As many prompts as a step takes, the same for the same memory, each once where there are enough."""
    sampler, random = sampler_of(case), Random(data.draw(st.integers(0, 2**32)))
    num_prompts, num, step = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 6)), data.draw(st.integers(0, 30))
    keys = tuple(f"prompt {n}" for n in range(num_prompts))
    names = [value for value in case.numbers.values() if isinstance(value, str)]
    prompts = [Prompt(key, columns={name: random.random() for name in names}) for key in keys]
    memory, pool = remembered(sampler, keys, random), Pool(keys, prompts)
    chosen = sampler.draw(memory, step, pool, num, 7)
    assert chosen == sampler.draw(memory, step, pool, num, 7)
    assert len(chosen) == num
    assert set(chosen) <= set(range(num_prompts))
    if num <= num_prompts and num_prompts % num == 0 and case.name != "curriculum":
        assert len(set(chosen)) == num
    if sampler.learn is not None:
        outcomes = outcomes_of([keys[index] for index in dict.fromkeys(chosen)], random, step)
        assert sampler.learn(memory, outcomes) is not None


def outcomes_of(keys: Sequence[str], random: Random, step: int) -> Outcomes:
    num_K = torch.tensor([random.randint(0, 4) for _ in keys])
    sum_K = torch.tensor([random.random() for _ in keys], dtype=torch.float64) * num_K
    return Outcomes(
        keys=tuple(keys), num_K=num_K, reward_sum_K=sum_K, reward_square_sum_K=sum_K, step=step,
        rewards={"explorability": sum_K},
    )  # fmt: skip


def setting_of(strategy: Strategy, case: Case, data: st.DataObject, random: Random) -> Setting:
    """A step of some prompts, with what is remembered of them."""
    size = data.draw(st.sampled_from([4, 12, 8]))
    sizes = case.numbers.get("sizes")
    prompt_templates = len(case.numbers.get("prompt_templates", ())) or 1
    size = sum(sizes) if sizes else size - size % prompt_templates or prompt_templates
    fewest = ceil(1 / (size * case.numbers["limit"])) if case.name == "explore_failed" else 1  # a row of the step
    num_prompts = data.draw(st.integers(fewest, 4))
    keys = [f"{case.numbers.get('source', 'prompt')}/{n}" for n in range(num_prompts)]
    memory = Memory().declared(strategy.memory)
    for column in strategy.memory:
        numbers = [random.choice([0, 0.25, 1, 2]) for _ in keys]
        memory = memory.write(column.name, keys, torch.tensor(numbers, dtype=getattr(torch, column.dtype)))
    if strategy.replay is not None:
        for key in keys[::2]:
            row = ReplayRow(key=key, text="a", tokens=torch.tensor([1, 2]), reward=1.0, advantage=0.5, step=0)
            memory = memory.with_replay([row], per_prompt=2, total=8)
    return Setting(
        step=data.draw(st.sampled_from([0, 60])),
        num_prompts=num_prompts,
        group_size=size,
        seed=data.draw(st.integers(0, 1000)),
        memory=memory,
        key_of=lambda prompt: keys[prompt % len(keys)],
    )


def random_round(requests: Sequence[Request], random: Random, strategy: Strategy) -> Round:
    """A possible outcome of the requests."""
    rows = [request.prompt for request in requests for _ in request.members]
    right = {request.prompt: random.choice([0.0, 0.3, 1.0]) for request in requests}
    places = strategy.places is not None
    return round_of(
        requests,
        [float(random.random() < right[prompt]) if random.random() < 0.9 else None for prompt in rows],
        [random.random() < 0.7 for _ in rows],
        length_B=torch.tensor([random.randint(0, 9) for _ in rows]),
        places_B=[random.sample(range(1, 9), random.randint(0, 3)) if places else [] for _ in rows],
        heights_B=[random.random() for _ in rows],
    )


def played(case: Case, data: st.DataObject) -> tuple[Strategy, Setting, list[Round]]:
    """All rounds of a step."""
    strategy, random = case.bind()(), Random(data.draw(st.integers(0, 2**32)))
    setting = setting_of(strategy, case, data, random)
    rounds: list[Round] = []
    while requests := tuple(strategy.ask(rounds, setting)):
        rounds.append(random_round(requests, random, strategy))
        assert len(rounds) <= max(MOST_ROUNDS, setting.group_size + 1), "the strategy continues to request"
        if not strategy.looks_back:
            break
    return strategy, setting, rounds


def strategy_asks_the_same_again(case: Case, data: st.DataObject) -> None:
    """The same rounds have the same requests and the same kept rows, and are not changed."""
    strategy, setting, rounds = played(case, data)
    requested: list[Sequence[Request]] = []
    assert_unchanged(rounds, lambda: requested.append(strategy.ask(rounds, setting)))
    assert tuple(strategy.ask(rounds, setting)) == tuple(requested[0])
    for before, round_ in enumerate(rounds):
        assert tuple(strategy.ask(rounds[:before], setting)) == tuple(round_.requests)


def strategy_names_its_off_policy_rows(case: Case, data: st.DataObject) -> None:
    """Rows of replay, of the data, or trained without their template are declared; drafts count as sampled now."""
    strategy, _, rounds = played(case, data)
    requests = [request for round_ in rounds for request in round_.requests]
    reads = [bool(request.off_policy_rows) and request.lenience is None for request in requests]
    assert strategy.off_policy or not any((*reads, *(request.train_without_template for request in requests)))


def strategy_keeps_rows_that_train(case: Case, data: st.DataObject) -> None:
    """Flags of the rows of every round, none of rows that are not trained on."""
    strategy, setting, rounds = played(case, data)
    keeps = strategy.keep(rounds, setting)
    assert len(keeps) == len(rounds)
    for keep_B, round_ in zip(keeps, rounds, strict=True):
        assert (keep_B.dtype, keep_B.shape) == (torch.bool, round_.valid_B.shape)
        assert not bool((keep_B & ~trained(round_)).any())


def member_numbers_are_unique(case: Case, data: st.DataObject) -> None:
    """No two rows of a group have one number, which their random numbers follow from; prompts are numbered from 0."""
    _, _, rounds = played(case, data)
    rows = [(request.prompt, member) for round_ in rounds for request in round_.requests for member in request.members]
    assert len(set(rows)) == len(rows)
    assert all(prompt >= 0 and member >= 0 for prompt, member in rows)


def requests_refer_to_earlier_rows(case: Case, data: st.DataObject) -> None:
    """Rows that others continue, or have in their prompts, are of earlier rounds."""
    _, _, rounds = played(case, data)
    earlier_rows: set[tuple[int, int]] = set()
    for round_ in rounds:
        for request in round_.requests:
            assert set(request.after) <= earlier_rows
            assert request.continues is None or (request.prompt, request.continues.member) in earlier_rows
        earlier_rows |= {(request.prompt, member) for request in round_.requests for member in request.members}


def order_of_a_rounds_rows_does_not_matter(case: Case, data: st.DataObject) -> None:
    """Groups of a round come in the order of the processes; another order has the same requests and kept rows."""
    strategy, setting, rounds = played(case, data)
    others: list[Round] = []
    places = data.draw(st.permutations(range(64)))
    orders = [
        torch.tensor([places[prompt % 64] for prompt in each.prompt_B.tolist()]).argsort(stable=True) for each in rounds
    ]
    for round_, order in zip(rounds, orders, strict=True):
        names = ("request_B", "prompt_B", "member_B", "reward_B", "valid_B", "length_B", "finished_B")
        listed = {name: [getattr(round_, name)[row] for row in order.tolist()] for name in ("places_B", "heights_B")}
        others.append(replace(round_, **{name: getattr(round_, name)[order] for name in names}, **listed))  # pyrefly: ignore[bad-argument-type]
        assert _requested(strategy.ask(others, setting)) == _requested(strategy.ask(rounds[: len(others)], setting))
    keeps = zip(strategy.keep(others, setting), strategy.keep(rounds, setting), orders, strict=True)
    assert all(torch.equal(other_B, keep_B[order]) for other_B, keep_B, order in keeps)


def _requested(requests: Sequence[Request]) -> list[str]:
    return [str(request) for request in requests]


CHECKS: dict[str, list[Callable[..., None]]] = {
    "schedules": [schedule_runs_between_its_ends],
    "controllers": [controller_stays_within_its_bounds, controller_rests_at_its_target],
    "window": [window_is_within_the_schedule, every_decision_is_in_some_window],
    "tree": [tree_has_as_many_leaves_as_the_group],
    "weight_by_success": [weight_of_answers_is_elementwise],
    "sampler": [sampler_takes_prompts_of_the_pool],
    "strategy": [
        strategy_asks_the_same_again,
        strategy_names_its_off_policy_rows,
        strategy_keeps_rows_that_train,
        member_numbers_are_unique,
        requests_refer_to_earlier_rows,
        order_of_a_rounds_rows_does_not_matter,
    ],
}

test_properties_hold, test_exemption_is_needed = checks_as_tests(CHECKS)
