"""Recipes whose rewards ask a model, paid by the replies of a local server."""

from __future__ import annotations

import pytest

from mmgrpo.config import RewardConfig
from mmgrpo.config.loading import load_config
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shaped
from mmgrpo.train.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.paid.executed import SOLVED
from tests.configs.paid.judged import JUDGED
from tests.rewards.endpoint import Server
from tests.running import running

ASKING = {**JUDGED, **SOLVED}


def asking(reward: RewardConfig, url: str) -> RewardConfig:
    """The reward as it is, but for where its judge is."""
    told = reward.model_dump(exclude_unset=True)
    known = {"url": url, "backoff": 0.0}
    return RewardConfig.model_validate(told | ({"endpoint": told["endpoint"] | known} if "endpoint" in told else {}))


@pytest.mark.parametrize("name", ASKING)
def test_answers_are_paid_as_the_judge_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    judged = ASKING[name]
    samples = [
        Sample(Prompt("q", columns=columns), 0, member, text=text, tokens=tuple(range(length)))
        for member, (columns, text, length, _) in enumerate(judged.answers)
    ]
    with running(Server(says=judged.says, first=judged.first)) as server:
        rewards = build_rewards([asking(reward, server.url) for reward in load_config(f"papers/{name}").rewards])
        scores = shaped(score(samples, rewards), rewards, 0).scores
    assert scores.valid_BR.all()
    total_B = (scores.value_BR * scores.weight_R).sum(1)
    assert total_B.tolist() == pytest.approx([paid for *_, paid in judged.answers], abs=1e-6)
