"""Every method with off-policy rows in addition to its samples trains a tiny language model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmgrpo.config.loading import load_config
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Prompt, Sample
from tests.configs.mechanisms import EVERYDAY, READING, nightly, strategies
from tests.policies.tiny_language import measured_policy_of, prompts_of

HINTS = {f"{kind}_{n}": f"a {kind} {n}" for kind in ("knowledge", "solution", "paraphrase") for n in range(1, 7)}
COLUMNS = {
    "policy": "be kind",
    "variant": "how many squares",
    "teacher_1": "two squares",
    "teacher_2": "red squares",
    "thought": "red",
    "reward_without_thought": 0,
}
SMALL: dict[str, dict[str, Any]] = {
    "aepo": {"rollout.strategy.share": 0.5},
    "eepo": {"rollout.strategy.below": 99.0},
    "g2rpo-a": {"rollout.group_size": 4, "rollout.strategy.sizes": [1, 3]},
    "dph-rl": {
        "objective.auxiliary": [
            {
                "name": "rows",
                "source": "python:tests.configs.test_smoke_reading:prompts",
                "column": "solution",
                "writes": True,
                "label": "rehearsal",
                "batch_size": 2,
            }
        ]
    },
    "eframe": {"rollout.strategy.members": 4, "advantage.filters": [{"name": "beyond", "size": 1.0, "members": 4}]},
    "latr": {"rollout.strategy.min_probability": 0.0, "rollout.strategy.max_gap": 1.0, "rollout.strategy.ages": [1]},
    "repo": {"rollout.strategy.num": 2, "rollout.strategy.per_prompt": 4, "rollout.strategy.least": 2},
    "raif": {
        "rollout.prompt_templates.without_thought.text": "!",
        "rollout.strategy.sizes": [2, 2],
        "rollout.group_size": 4,
    },
    "scaf-grpo": {"rollout.strategy.start": 0},
    "seele": {"rollout.group_size": 4},
    "hbpo": {"rollout.group_size": 4},
    "tree-opo": {"rollout.group_size": 4},
    "ps-grpo": {"rollout.group_size": 12},
}


NUM_TRAINED = {
    "aepo": (6, 4),
    "ar3po": (4, 4),
    "critique-grpo": (4, 3),
    "eframe": (6, 4),
    "ghpo": (4, 2),
    "guide-grpo": (6, 4),
    "igrpo": (4, 2),
    "rgr-grpo": (3, 3),
    "sage": (5, 2),
}
"""Of the rows that each prompt brings, those that train."""
FIRST = (
    "aepo",
    "avatar",
    "critique-grpo",
    "dph-rl",
    "eepo",
    "evocot",
    "exgrpo",
    "g2rpo-a",
    "igrpo",
    "latr",
    "luffy",
    "ps-grpo",
    "r1-sharevl",
    "raif",
    "rl-plus",
    "seele",
    "spec-rl",
    "tree-opo",
    "trimpi",
    "visurf",
)
"""Those of whose groups the first member is right."""


def prompts() -> list[Prompt]:
    columns = {
        "solution": "two red squares",
        "answer": "two",
        "hint": "count them",
        "criteria": "counts them",
        **COLUMNS,
        **HINTS,
    }
    return [replace(prompt, columns={**prompt.columns, **columns}) for prompt in prompts_of("llama")]


def rewarded(name: str) -> Any:
    """Of sampled rows none is right where more waits for a failure, else the first of a group; of later rows half.

    A replayed row has the reward that it had: there the reward is of the tokens.
    """
    if name == "repo":
        return lambda samples: [float(sum(sample.tokens or ())) for sample in samples]

    def right(samples: Sequence[Sample]) -> list[float]:
        first = (0,) if name in FIRST else ()
        if name == "eframe":  # one of the four that follow, of the advantage 1.5
            return [float(sample.member == 2) for sample in samples]
        later = range(2, 100) if name in ("luffy", "rl-plus") else range(2, 100, 2)
        return [float(sample.member in (*first, *later)) for sample in samples]

    return right


def test_daily_methods_have_every_strategy() -> None:
    assert strategies(EVERYDAY["reading"]) == strategies(READING)


@pytest.mark.first_case
@pytest.mark.parametrize("name", nightly("reading", READING))
def test_method_trains(name: str, tmp_path: Path) -> None:
    small = {"steps": 2, "rollout.prompts_per_step": 2, "rollout.group_size": 2, "update.optimizer.lr": 1e-3}
    config = load_config(f"methods/{name}", {**small, "output": str(tmp_path), **SMALL.get(name, {})})
    policy = measured_policy_of("llama", max_new_tokens={"hbpo": 96, "g2rpo-a": 12, "seele": 12}.get(name, 5))
    before = [parameter.detach().clone() for parameter in policy.trainable]
    folder = Trainer(policy, {"right": rewarded(name)}, prompts()[:2], config).train()
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    for line in lines:
        assert line["optimizer/grad_norm"] > 0
    if name in ("ampo", "luffy", "rl-plus"):
        assert all(abs(line["policy/loss/off_policy"]) > 0 for line in lines)
    if name == "mm-helix":  # every group fails, so that only the expert's rows have a gradient
        assert all(line["policy/loss"] == line["policy/expert_mean"] > 0 for line in lines)
    if name == "dph-rl":  # the answers of the rows are supervised too
        assert all(line["policy/rehearsal_mean"] > 0 for line in lines)
    if name == "seele":  # four rounds, and the hints are supervised too
        assert all(line["rollout/rounds"] == 4 and line["policy/hints_mean"] > 0 for line in lines)
    if name == "scaf-grpo":  # of 4 sampled and 16 hinted rows, 2 and 2 are kept
        assert [line["rollout/kept_frac"] for line in lines] == pytest.approx([4 / 20] * 2)
    num_sampled, num_trained = NUM_TRAINED.get(name, (1, 1))
    if name in NUM_TRAINED:
        assert [line["rollout/kept_frac"] for line in lines] == pytest.approx([num_trained / num_sampled] * 2)
    if name == "eepo":  # half of each group is sampled under weights that have moved
        assert all(line["policy/on_policy_gap"] < 1e-5 < line["policy/ratio_std"] for line in lines)
    if name == "aepo":  # one of two hot rows replaces another, and has advantage 1
        assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)
        assert all(line["rollout/logprob_mean"] < -1 for line in lines)
        assert lines[1]["config/rollout.strategy.temperature"] == 0.8
    if name in ("latr", "trimpi", "spec-rl"):  # rows that were searched, kept, or had the policy's text, as if sampled
        assert all(line["policy/on_policy_gap"] < 1e-5 for line in lines)
    if name == "repo":  # at the first step nothing is remembered
        assert lines[0]["policy/on_policy_gap"] < 1e-5
        assert (
            lines[1]["policy/on_policy_gap"] < 1e-5 < lines[1]["policy/ratio_std"]
        )  # rows of other weights have no gap
    assert any(not torch.equal(now, then) for now, then in zip(policy.trainable, before, strict=True))
