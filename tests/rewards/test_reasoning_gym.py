"""Tasks of reasoning-gym: their prompts, seeds that share no task, and their verifiers."""

from __future__ import annotations

from typing import Any

import pytest
from mmgrpo.rewards.code.procedural_tasks import ReasoningGym

from mmgrpo.data.prompt_loading import load_prompts
from mmgrpo.errors import DataError
from mmgrpo.types import Prompt, Sample
from tests.rewards.sandboxed import needs_sandbox

pytest.importorskip("reasoning_gym")


def scores(prompts: list[Prompt], answers: list[str]) -> list[float | None]:
    samples = [
        Sample(prompt=prompt, group=row, member=0, text=f"<answer>{answer}</answer>")
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True))
    ]
    values: list[Any] = ReasoningGym()(samples)
    return [None if value is None else value.value for value in values]


def test_sources_generate_their_tasks_by_size_seed_and_settings() -> None:
    prompts = load_prompts("reasoning_gym:chain_sum?size=3&seed=0&min_terms=2&max_terms=2&max_digits=1")
    assert len(prompts) == 3
    first = prompts[0]
    assert first.text.startswith("State the final answer to the following arithmetic problem: ")
    expression = first.text.partition(": ")[2].removesuffix(" =")
    left, sign, right = expression.split()
    assert int(first.columns["answer"]) == int(left) + (1 if sign == "+" else -1) * int(right)


def test_seeds_share_no_task() -> None:
    texts = [[p.text for p in load_prompts(f"reasoning_gym:chain_sum?size=50&seed={seed}")] for seed in (0, 1, 0)]
    assert texts[0] == texts[2]
    assert not set(texts[0]) & set(texts[1])


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("reasoning_gym:chain_sums", "no dataset 'chain_sums'; it has .*chain_sum"),
        ("reasoning_gym:chain_sum?terms=3", "no setting terms; it has min_terms"),
        ("reasoning_gym:chain_sum?size=0", "size must be an integer from 1"),
        ("reasoning_gym:chain_sum?seed=x", "seed must be an integer from 0"),
        ("reasoning_gym:chain_sum?min_terms=5&max_terms=2", "cannot be made of these settings"),
    ],
)
def test_bad_sources_are_errors(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_prompts(source)


@pytest.mark.nightly
@needs_sandbox
def test_verifiers_score_answers() -> None:
    sums = load_prompts("reasoning_gym:chain_sum?size=2&seed=3")
    games = load_prompts("reasoning_gym:countdown?size=2&seed=3")
    prompts = [*sums, *games, Prompt("no task")]
    answers = [p.columns.get("answer", "") for p in prompts]
    assert scores(prompts, answers) == [1.0, 1.0, 1.0, 1.0, None]
    hostile = ["x", "", "9**9**9**9**9", "__import__('os').system('sleep 1')"]
    values = scores([*sums, *games], hostile)
    assert all(value is not None and value < 0.1 for value in values)
