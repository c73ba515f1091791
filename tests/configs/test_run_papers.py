"""Recipes whose rewards run what was written, paid in the sandbox."""

from __future__ import annotations

import pytest

from mmgrpo.config.loading import load_config
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shaped
from mmgrpo.train.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.paid import Answer
from tests.configs.paid.executed import REFUSED, RUN
from tests.rewards.sandboxed import needs_sandbox


def paid(name: str, answers: list[Answer]) -> list[float]:
    rewards = build_rewards(load_config(f"papers/{name}").rewards)
    samples = [
        Sample(Prompt("q", columns=columns), 0, member, text=text, tokens=tuple(range(length)))
        for member, (columns, text, length, _) in enumerate(answers)
    ]
    scores = shaped(score(samples, rewards), rewards, 0).scores
    assert scores.valid_BR.all()
    return (scores.value_BR * scores.weight_R).sum(1).tolist()


@needs_sandbox
@pytest.mark.parametrize("name", RUN)
def test_programs_are_paid_for_what_they_do(name: str) -> None:
    assert paid(name, RUN[name]) == pytest.approx([pay for *_, pay in RUN[name]], abs=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_run_is_paid_all_the_same(name: str) -> None:
    assert paid(name, REFUSED[name]) == pytest.approx([pay for *_, pay in REFUSED[name]], abs=1e-6)
