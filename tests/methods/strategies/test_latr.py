"""Groups that begin with a search: the authors' algorithm, written again without a cache, and exact rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from rapidfuzz.distance import Levenshtein

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import load_config
from mmgrpo.errors import ConfigError, PolicyError
from mmgrpo.maths.strategies import STRATEGIES, Request, Setting
from mmgrpo.memory import Memory
from mmgrpo.methods.strategies.latr import SYMBOLS
from mmgrpo.testing import Subject, check_on_policy_gap
from mmgrpo.training.build import plan_at
from mmgrpo.types import Lookahead, Plan, Prompt, Rollout
from tests.policies.letters import letters
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import parameters_of, policy_of, prompts_of
from tests.policies.tiny_policies import policy_of as denoising_policy_of

LENGTH = 16
SIZE = 6
PROMPTS = [*prompts_of("llama"), Prompt("what number is 5 of 35")]
SEARCHES = [
    Lookahead(max_tokens=12, min_probability=0.05, max_gap=0.3, ages=(3, 6), min_distance=0.7, symbols=SYMBOLS),
    Lookahead(max_tokens=14, min_probability=0.02, max_gap=0.5, ages=(2, 5), min_distance=0.8, symbols=""),
    Lookahead(max_tokens=9, min_probability=0.01, max_gap=0.6, ages=(), min_distance=0.4, symbols=""),
]


@dataclass(eq=False)
class Node:
    """A row of the search of the test."""

    tokens: list[int]
    parent: Node | None = None
    birth: int = 0
    dead: bool = False
    children: list[Node] = field(default_factory=list)

    def kill(self) -> None:
        self.dead = True
        for child in self.children:
            child.kill()


def searched(
    policy: LanguagePolicy, prompt: Prompt, lookahead: Lookahead, *, size: int = SIZE, length: int = LENGTH
) -> tuple[list[list[int]], int]:
    """The beginnings of a group's rows, and how many branches were dropped: each token by a forward of its full row."""
    ids, ends = policy._encoder(prompt).ids_P.tolist(), set(policy._end_ids.tolist())
    nodes, num_dropped = [Node([])], 0
    for t in range(min(lookahead.max_tokens, length)):
        active = [node for node in nodes if not ends.intersection(node.tokens)]
        if not active:
            break
        choices = {id(node): _two_likeliest(policy, ids + node.tokens) for node in active}
        for node in active:
            (first, p), (second, q) = choices[id(node)]
            if q > lookahead.min_probability and p - q < lookahead.max_gap and len(nodes) < size:
                nodes.append(Node([*node.tokens, second], node, t))
                node.children.append(nodes[-1])
            node.tokens.append(first)
        for node in nodes:
            age = t + 1 - node.birth
            if node.parent is None or age not in lookahead.ages or len(node.tokens) < t + 1:
                continue
            mine, theirs = node.tokens[-age:], node.parent.tokens[node.birth : t + 1]
            if len(theirs) < age or ends.intersection(mine + theirs):
                continue
            exempt = lookahead.symbols and policy._encoder.text(theirs[:1]).strip() in lookahead.symbols
            if not exempt and Levenshtein.distance(mine, theirs) / age < lookahead.min_distance:
                node.kill()
        num_dropped += sum(node.dead for node in nodes)
        nodes = [node for node in nodes if not node.dead]
        full = len(nodes) == size or all(ends.intersection(node.tokens) for node in nodes)
        if full and all(node.birth + max(lookahead.ages, default=0) < t for node in nodes):
            break
    rows = [node.tokens for node in nodes]
    return rows + [rows[0]] * (size - len(rows)), num_dropped


def _two_likeliest(policy: LanguagePolicy, ids: Sequence[int]) -> list[tuple[int, float]]:
    with torch.no_grad():
        logits_V = policy.model(input_ids=torch.tensor([ids])).logits[0, -1].double()
    allowed_V = logits_V.index_fill(0, policy._rollouts.sampling.suppressed, -torch.inf)
    probability_2, token_2 = (allowed_V / policy._rollouts.sampling.temperature).softmax(-1).topk(2)
    return list(zip(token_2.tolist(), probability_2.tolist(), strict=True))


def rollout_of(policy: LanguagePolicy, lookahead: Lookahead, **plan: Any) -> Rollout:
    return policy.rollout(PROMPTS, group_size=SIZE, seed=3, plan=Plan(lookahead=lookahead, **plan))


@pytest.fixture(scope="module")
def policy() -> LanguagePolicy:
    return policy_of("llama", max_new_tokens=LENGTH, temperature=1.0)


def test_rows_begin_as_the_search_finds(policy: LanguagePolicy) -> None:
    num_branches = num_dropped = num_missing = 0
    for lookahead in SEARCHES:
        rollout = rollout_of(policy, lookahead)
        for group, prompt in enumerate(PROMPTS):
            rows, dropped = searched(policy, prompt, lookahead)
            members = [sample.tokens or () for sample in rollout.samples if sample.group == group]
            assert [list(tokens[: len(row)]) for tokens, row in zip(members, rows, strict=True)] == rows
            num_branches += len({tuple(row) for row in rows}) - 1
            num_missing += SIZE - len({tuple(row) for row in rows})
            num_dropped += dropped
    assert (num_branches > 20, num_dropped > 5, num_missing > 0) == (True, True, True)


def test_models_with_other_states_are_searched_too() -> None:
    policy = policy_of("qwen3.5", max_new_tokens=LENGTH, temperature=1.0)  # linear attention
    rollout = rollout_of(policy, SEARCHES[1])
    for group, prompt in enumerate(PROMPTS):
        rows, _ = searched(policy, prompt, SEARCHES[1])
        members = [sample.tokens or () for sample in rollout.samples if sample.group == group]
        assert [list(tokens[: len(row)]) for tokens, row in zip(members, rows, strict=True)] == rows


def test_all_tokens_train_with_their_log_probabilities() -> None:
    subject = Subject(
        make=lambda batch: policy_of("llama", batch=batch, max_new_tokens=LENGTH),
        parameters=parameters_of,
        prompts=PROMPTS,
        gap=2e-6,
        rounding=2e-6,
    )
    plan = Plan(lookahead=replace(SEARCHES[1], min_probability=0.0))
    check_on_policy_gap(subject, plan)
    rollout = rollout_of(policy_of("llama", max_new_tokens=LENGTH), replace(SEARCHES[1], min_probability=0.0))
    assert max(completion.num_inherited for completion in rollout.trace.completions) > 1
    assert rollout.mask_BT.sum(1).tolist() == [len(sample.tokens or ()) for sample in rollout.samples]


@pytest.mark.parametrize("batch", [1, 3, 64])
def test_rows_do_not_depend_on_batches(policy: LanguagePolicy, batch: int) -> None:
    other = policy_of("llama", max_new_tokens=LENGTH, temperature=1.0, batch=batch)
    alone = [policy.rollout([prompt], group_size=SIZE, seed=3, plan=Plan(lookahead=SEARCHES[0], prompt_ids=(group,)))
             for group, prompt in enumerate(PROMPTS)]  # fmt: skip
    together = rollout_of(other, SEARCHES[0])
    assert [s.tokens for s in together.samples] == [s.tokens for part in alone for s in part.samples]


def test_search_continues_a_prefix_of_the_data(policy: LanguagePolicy) -> None:
    prompt = Prompt("what number is this", prefix="two red")
    rollout = policy.rollout([prompt], group_size=SIZE, seed=3, plan=Plan(lookahead=SEARCHES[1]))
    num_forced = [sample.num_forced for sample in rollout.samples]
    assert num_forced == [len(policy._encoder.encode_text("two red"))] * SIZE
    assert rollout.mask_BT.sum(1).tolist() == [
        len(sample.tokens or ()) - sample.num_forced for sample in rollout.samples
    ]
    assert len({tuple(sample.tokens or ())[:6] for sample in rollout.samples}) > 2


def test_complete_rows_are_not_sampled(policy: LanguagePolicy) -> None:
    lookahead = Lookahead(max_tokens=99, min_probability=0.05, max_gap=0.3, ages=(99,), min_distance=0.4, symbols="")
    rows, _ = searched(policy, PROMPTS[2], lookahead)
    rollout = policy.rollout(PROMPTS[2:], group_size=SIZE, seed=3, plan=Plan(lookahead=lookahead))
    assert [list(sample.tokens or ()) for sample in rollout.samples] == rows
    assert {len(row) for row in rows} == {LENGTH}


def test_second_choice_is_one_that_could_be_sampled() -> None:
    policy = policy_of("llama", max_new_tokens=LENGTH, temperature=1.0, top_k=1)
    rollout = policy.rollout(PROMPTS[:1], group_size=SIZE, seed=3, plan=Plan(lookahead=SEARCHES[1]))
    assert len({tuple(sample.tokens or ()) for sample in rollout.samples}) == 1
    assert float(rollout.old_logprob_BT.abs().max()) == 0


def test_requests_by_the_share() -> None:
    setting = Setting(step=0, num_prompts=2, group_size=8)
    strategy = STRATEGIES["with_lookahead"](share=0.75)
    requests = strategy.ask((), setting)
    assert [(request.prompt, request.members, request.lookahead is None) for request in requests] == [
        (0, (0, 1, 2, 3, 4, 5), False),
        (0, (6, 7), True),
        (1, (0, 1, 2, 3, 4, 5), False),
        (1, (6, 7), True),
    ]
    assert [len(STRATEGIES["with_lookahead"](share=share).ask((), setting)) for share in (0.0, 1.0)] == [2, 2]


def test_share_falls_as_published() -> None:
    algorithm = Algorithm.of(load_config("methods/latr"))
    setting = Setting(step=0, num_prompts=1, group_size=8)
    counts = []
    for step in (0, 9, 10, 19, 20, 79, 80, 199, 200):
        requests = algorithm.at(step, Memory()).strategy.ask((), setting)
        counts.append(sum(len(request.members) for request in requests if request.lookahead is not None))
    assert counts == [8, 8, 6, 6, 4, 4, 2, 2, 0]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"share": 1.5}, "share of a group with a lookahead must be from 0 to 1, got 1.5"),
        ({"max_tokens": 0}, "max_tokens of 1 or more, got 0"),
        ({"min_probability": 0.5}, r"min_probability in \[0, 0.5\)"),
        ({"max_gap": 0.0}, "max_gap above 0"),
        ({"ages": [30, 20]}, r"increasing ages, from 1 token on; got \[30, 20\]"),
        ({"min_distance": 1.1}, "must be from 0 to 1, got 1.1"),
    ],
)
def test_impossible_numbers_raise(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        STRATEGIES["with_lookahead"](**numbers)


def test_requests_of_stored_rows_have_no_lookahead() -> None:
    with pytest.raises(ConfigError, match="samples complete texts from the prompt: leave out"):
        Request(prompt=0, members=(0,), window=3, lookahead=SEARCHES[0])


def test_policies_without_a_lookahead_raise() -> None:
    with pytest.raises(PolicyError, match=r"letters does not support Plan\.lookahead"):
        letters().rollout([Prompt("a")], group_size=2, seed=0, plan=Plan(lookahead=SEARCHES[0]))
    with pytest.raises(PolicyError, match=r"remove .*Plan\.lookahead"):
        denoising_policy_of("sd3").rollout([Prompt("a")], group_size=2, seed=0, plan=Plan(lookahead=SEARCHES[0]))


def test_models_without_a_cache_raise() -> None:
    policy = t5()
    with pytest.raises(ConfigError, match="branches rows of a cache, and this model runs on the plain path"):
        policy.rollout([Prompt("a")], group_size=2, seed=0, plan=Plan(lookahead=SEARCHES[0]))


def test_conversations_raise_before_the_first_sample(policy: LanguagePolicy) -> None:
    environment = {"rollout.environment": {"name": "tools", "functions": ["python:math:sqrt"]}}
    with pytest.raises(ConfigError, match=r"with_lookahead searches texts of one turn: remove rollout\.environment"):
        plan_at(Algorithm.of(load_config("methods/latr", environment)), policy, 0)
