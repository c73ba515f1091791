"""Recipes of papers: each loads, names the sources of its values, and scores answers as its authors' code does."""

from __future__ import annotations

import pytest

from mmgrpo.config.loading import load_config, shipped
from mmgrpo.explain.method_settings import recipe_rows
from mmgrpo.scoring import score
from mmgrpo.scoring.shaping import shape_scores
from mmgrpo.training.build import build_rewards
from mmgrpo.types import Prompt, Sample
from tests.configs.paper_answers import ANSWERS, ELSEWHERE, ROUTED

PAPERS = shipped("papers")


def test_every_recipe_has_a_reward_test() -> None:
    assert {f"papers/{name}" for name in (*ANSWERS, *ELSEWHERE)} == set(PAPERS)


def test_explain_prints_the_paper_and_the_deviations() -> None:
    sources = list(recipe_rows(load_config("papers/visual-rft")))
    assert sources[0] == ("recipe", "Visual-RFT: Visual Reinforcement Fine-Tuning (2503.01785)")
    assert [label for label, _ in sources[1:]] == ["deviation"] * 4 + ["evidence"] * 2
    assert sources[-1] == ("evidence", "Not trained here.")
    assert list(recipe_rows(load_config("recipes/qwen2.5-vl-gui"))) == []


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_score_as_in_the_authors_code(name: str) -> None:
    rewards = build_rewards(load_config(f"papers/{name}").rewards)
    samples = [
        Sample(
            Prompt("q", columns=columns), 0, member, text=text, tokens=tuple(range(length)), values={"certainty": 1.0}
        )
        for member, (columns, text, length, _) in enumerate(ANSWERS[name])
    ]
    scores = shape_scores(score(samples, rewards), rewards, 0)[0]
    assert scores.valid_BR.any(1).all()
    assert scores.valid_BR.all() == (name not in ROUTED)
    total_B = (scores.value_BR * scores.weight_R).where(scores.valid_BR, 0.0).sum(1)
    assert total_B.tolist() == pytest.approx([total for *_, total in ANSWERS[name]], rel=1e-6, abs=1e-6)


def test_the_shares_of_modomodo_are_those_of_its_table() -> None:
    """Algorithm 3: 0.2 less 0.1 of the position of the Out-Score without a set between the lowest and the highest."""
    without = {"coco": 0.5146, "lisa": 0.4783, "geoqav": 0.4889, "sat": 0.4721, "scienceqa": 0.4930}
    raw = {name: 0.2 - 0.1 * (score - 0.4721) / (0.5146 - 0.4721) for name, score in without.items()}
    prompts = load_config("papers/modomodo").prompts
    assert prompts is not None
    shares = {dataset.label: dataset.weight for dataset in prompts.sources}
    assert shares == pytest.approx({name: value / sum(raw.values()) for name, value in raw.items()}, abs=1e-4)
