"""Recipes whose rewards run the answers in the sandbox."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mmgrpo.config import RewardConfig
from mmgrpo.config.loading import load_config
from mmgrpo.scoring import score
from mmgrpo.scoring.named_rewards import NamedReward
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.paper_answers import Answer
from tests.configs.paper_answers.executed import MIXED, QUERIES, REFUSED, RUN
from tests.configs.test_judge_papers import asking
from tests.rewards.endpoint import Server
from tests.rewards.sandboxed import needs_sandbox
from tests.running import running


def total_rewards(rewards: Sequence[NamedReward], answers: list[Answer], *, routed: bool = False) -> list[float]:
    samples = [
        Sample(Prompt("q", columns=columns), 0, member, text=text, tokens=tuple(range(length)))
        for member, (columns, text, length, _) in enumerate(answers)
    ]
    scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    assert scores.valid_BR.any(1).all()
    assert scores.valid_BR.all() == (not routed)
    return (scores.value_BR * scores.weight_R).where(scores.valid_BR, 0.0).sum(1).tolist()


@pytest.mark.first_case
@needs_sandbox
@pytest.mark.parametrize("name", RUN)
def test_programs_are_scored_by_their_results(name: str) -> None:
    rewards = build_rewards(load_config(f"papers/{name}").rewards)
    assert total_rewards(rewards, RUN[name]) == pytest.approx([total for *_, total in RUN[name]], abs=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_rewards_without_execution_are_scored(name: str) -> None:
    rewards = build_rewards(load_config(f"papers/{name}").rewards)
    assert total_rewards(rewards, REFUSED[name]) == pytest.approx([total for *_, total in REFUSED[name]], abs=1e-6)


def in_memory(reward: RewardConfig, url: str) -> RewardConfig:
    """The reward as it is, but that its database is made by the row, and where its judge is."""
    settings = {key: value for key, value in reward.model_dump(exclude_unset=True).items() if key != "database"}
    return RewardConfig.model_validate(asking(settings, url))


@needs_sandbox
@pytest.mark.parametrize("name", QUERIES)
def test_queries_are_scored_by_their_results(name: str) -> None:
    with running(Server(first=lambda text: {"yes": 0.9, "no": 0.1})) as server:
        rewards = build_rewards([in_memory(reward, server.url) for reward in load_config(f"papers/{name}").rewards])
        assert total_rewards(rewards, QUERIES[name]) == pytest.approx([total for *_, total in QUERIES[name]], abs=1e-6)


@needs_sandbox
def test_each_kind_of_question_is_verified_in_its_own_way() -> None:
    pytest.importorskip("math_verify")
    with running(Server(first=lambda text: {"yes": 0.9, "no": 0.1})) as server:
        rewards = build_rewards([in_memory(reward, server.url) for reward in load_config("papers/guru").rewards])
        assert total_rewards(rewards, MIXED, routed=True) == pytest.approx([total for *_, total in MIXED], abs=1e-6)
