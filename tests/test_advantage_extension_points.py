"""Extension points of advantages in runs: empty ones change nothing bitwise, others change the advantages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.types import Prompt, Sample
from tests.policies.tiny_language import policy_of

OTHER_WORDS = {"name": "template", "text": "in other words: {prompt}"}

NEUTRAL: dict[str, dict[str, Any]] = {
    "estimators": {
        "advantage": {
            "estimators": [
                {"name": "prefix_tree", "weight": 0.0},
                {"name": "log_ratio", "view": "reference", "weight": 0.0},
                {"name": "zero_variance_entropy", "alpha": 0.0},
            ]
        }
    },
    "filters": {
        "advantage": {
            "filters": [
                {"name": "largest_advantages", "rate": 0.0},
                {"name": "beyond", "size": 0.0, "members": 5},
                {"name": "unlikely", "below": 1.0},
            ]
        }
    },
    "modulations": {
        "objective": {
            "modulations": [
                {"name": "constant", "low": 0.2, "high": 0.28, "loss": 1.0},
                {"name": "discounted_steps", "gamma": 1.0},
                {"name": "top_product", "share": 1.0},
            ]
        }
    },
    "terms": {"objective": {"terms": [{"name": "gvpo", "weight": 0.0}, {"name": "negative_logprob", "weight": 0.0}]}},
    "views": {
        "objective": {
            "terms": [{"name": "divergence", "view": "other", "weight": 0.0, "grad": True}],
            "views": {"other": {"prompt_template": OTHER_WORDS}},
        },
        "advantage": {"estimators": [{"name": "log_ratio", "view": "other", "weight": 0.0}]},
    },
}
TELLING: dict[str, dict[str, Any]] = {
    "estimators": {"advantage": {"estimators": [{"name": "inverse_entropy"}, {"name": "temporal_difference"}]}},
    "filters": {"advantage": {"filters": [{"name": "largest_advantages", "rate": 0.5}]}},
    "modulations": {"objective": {"modulations": [{"name": "discounted_steps", "gamma": 0.5}]}},
    "terms": {"objective": {"terms": [{"name": "preference", "against": "old"}, {"name": "departure"}]}},
    "views": {
        "objective": {
            "terms": [{"name": "divergence", "view": "other", "weight": -0.1, "grad": True}],
            "views": {"other": {"prompt_template": OTHER_WORDS}},
        },
    },
}


def vowels(samples: list[Sample]) -> list[float]:
    return [sum((sample.text or "").count(letter) for letter in "aeiou") / 10 for sample in samples]


def trained(
    output: Path,
    *,
    advantage: dict[str, Any] | None = None,
    objective: dict[str, Any] | None = None,
) -> Tensor:
    """The weights after two steps of two updates each, the second of which is off policy."""
    values: dict[str, Any] = {
        "output": str(output),
        "steps": 2,
        "rollout": {"prompts_per_step": 2, "group_size": 4},
        "advantage": advantage or {},
        "objective": {"surrogate": {"name": "clipped", "low": 0.2, "high": 0.28}, **(objective or {})},
        "update": {"epochs": 2, "optimizer": {"lr": 1e-3, "eps": 1e-3}},
        "runtime": {"device": "cpu"},
    }
    prompts = [Prompt("what number is this"), Prompt("say one word")]
    trainer = Trainer(policy_of("qwen2.5-vl"), {"vowels": vowels}, prompts, values)
    trainer.train()
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Tensor:
    return trained(tmp_path_factory.mktemp("plain"))


@pytest.mark.nightly
@pytest.mark.first_case
@pytest.mark.parametrize("seam", NEUTRAL)
def test_mechanisms_without_effect_keep_the_weights_bitwise(seam: str, plain: Tensor, tmp_path: Path) -> None:
    assert torch.equal(trained(tmp_path, **NEUTRAL[seam]), plain)


@pytest.mark.first_case
@pytest.mark.parametrize("seam", TELLING)
def test_mechanisms_with_an_effect_change_the_weights(seam: str, plain: Tensor, tmp_path: Path) -> None:
    result = trained(tmp_path, **TELLING[seam])
    assert result.isfinite().all()
    assert not torch.equal(result, plain)
