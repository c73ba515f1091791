"""Recipes whose rewards call a model: rewards from the replies of a local server."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from mmgrpo.config import RewardConfig
from mmgrpo.config.loading import load_config
from mmgrpo.config.parts import runs_of
from mmgrpo.maths.combinations import COMBINATIONS
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.paper_answers.executed import SOLVED
from tests.configs.paper_answers.scripted_judges import SCRIPTED_JUDGES
from tests.rewards.endpoint import Server
from tests.rewards.image_samples import noise
from tests.running import running
from tests.tiny import judges

ASKING = {**SCRIPTED_JUDGES, **SOLVED}


def asking(settings: Any, url: str) -> Any:
    """The settings of a reward, and of rewards within it, with the endpoints of judges replaced."""
    if not isinstance(settings, dict):
        return settings
    connection = {"url": url, "backoff": 0.0}
    inner = {name: asking(value, url) for name, value in settings.items()}
    return inner | ({"endpoint": inner["endpoint"] | connection} if "endpoint" in inner else {})


@pytest.mark.first_case
@pytest.mark.parametrize("name", ASKING)
def test_answers_have_the_score_of_the_judge(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    judge = ASKING[name]
    samples = [
        Sample(Prompt("q", columns=columns), 0, member, text=text, tokens=tuple(range(length)))
        for member, (columns, text, length, _) in enumerate(judge.answers)
    ]
    with running(Server(says=judge.says, first=judge.first)) as server:
        reward_settings = [
            reward.model_dump(exclude_unset=True)
            for reward in runs_of(load_config(f"papers/{name}"))[judge.run].rewards
        ]
        rewards = build_rewards([RewardConfig.model_validate(asking(reward, server.url)) for reward in reward_settings])
        scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    assert scores.valid_BR.all()
    total_B = (scores.value_BR * scores.weight_R).sum(1)
    assert total_B.tolist() == pytest.approx([total for *_, total in judge.answers], abs=1e-6)


@pytest.mark.nightly
def test_edits_have_the_minimum_of_their_scores() -> None:
    """Of 25, in each of four draws: one is done 10 and looks 15, the other 5 and 15; by the code the root of both."""
    questions: list[str] = []

    def says(question: str) -> str:
        questions.append(question)
        return (
            "Score: [25, 15]"
            if "natural" in question
            else "Score: [20, 10]"
            if "a hat" in question
            else "Score: [5, 20]"
        )

    config = load_config("papers/editscore")
    edits = [Sample(Prompt(text, images=[noise(0)]), 0, i, image=noise(1)) for i, text in enumerate(("a hat", "a cap"))]
    with running(Server(says=says)) as server:
        reward_settings = [reward.model_dump(exclude_unset=True) | {"url": server.url} for reward in config.rewards]
        rewards = build_rewards([RewardConfig.model_validate(settings) for settings in reward_settings])
        scores = shape_scores(score(edits, rewards), rewards, 0)[0]
    value_RPG = scores.value_BR.T[:, None]
    total_PG = COMBINATIONS[config.advantage.combine.name](value_RPG, scores.weight_R, scores.valid_BR.T[:, None])
    assert total_PG[0].tolist() == pytest.approx([math.sqrt(0.4 * 0.6), math.sqrt(0.2 * 0.6)])
    assert len(questions) == 16
    assert [len(r["messages"][0]["content"]) for r in server.requests].count(
        3
    ) == 8  # before and after, and the question


def test_meaning_counts_in_addition_to_the_judge(tmp_path: Path) -> None:
    """0.9 times 0.575, 0.375 and 0.05, and 0.1; every answer that is not the reference's is far for this encoder."""
    encoder = str(judges.save_encoder(tmp_path))
    answers = {"tumour": 1.0, "a mass": 0.5175 + 0.045 + 0.1, "lung": 0.045 + 0.1}
    row, form = {"answer": "tumour", "modality": "CT_SCAN"}, "<modality>ct_scan</modality><thinking>so</thinking>"
    samples = [
        Sample(Prompt("q", columns=row), 0, i, text=f"{form}<answer>{answer}</answer>")
        for i, answer in enumerate(answers)
    ]
    with running(Server(says=lambda question: "NO" if "lung" in question else "YES")) as server:
        reward_settings = [reward.model_dump(exclude_unset=True) for reward in load_config("papers/medix-r1").rewards]
        reward_settings[1] |= {"model": encoder, "threshold": 0.999}
        rewards = build_rewards([RewardConfig.model_validate(asking(reward, server.url)) for reward in reward_settings])
        scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    assert (scores.value_BR * scores.weight_R).sum(1).tolist() == pytest.approx(list(answers.values()), abs=1e-6)
