"""Complete runs on a tiny language model: the effect of token methods on metrics and weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from mmgrpo.rewards.groups.likelihoods import SelfCertainty

from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Sample
from tests.policies.tiny_language import policy_of, prompts_of

BASE: dict[str, Any] = {
    "steps": 2,
    "rollout": {"prompts_per_step": 2, "group_size": 4},
    "update": {"minibatches": 2, "optimizer": {"lr": 1e-3}},
}


def length(samples: Sequence[Sample]) -> list[float]:
    return [float(len(sample.tokens or ())) + 0.1 * sample.member for sample in samples]


def equal(samples: Sequence[Sample]) -> list[float]:
    return [1.0 for _ in samples]


def run(
    folder: Path, reward: Any = length, *, rollout_batch: int = 8, **sections: Any
) -> tuple[Trainer, list[dict[str, Any]]]:
    values = {**BASE, "output": str(folder), **sections}
    policy = policy_of("llama", max_new_tokens=5, batch=rollout_batch)
    trainer = Trainer(policy, {"reward": reward}, prompts_of("llama"), values)
    trainer.train()
    return trainer, [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]


def test_values_that_a_reward_needs_are_requested_of_the_policy(tmp_path: Path) -> None:
    _, lines = run(tmp_path, SelfCertainty())
    assert lines[0]["reward/reward/mean"] > 0  # of a policy that knows something
    assert lines[0]["groups/zero_std_frac"] == 0


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.trainable])


def test_divergence_in_the_reward_starts_at_zero_and_grows(tmp_path: Path) -> None:
    _, lines = run(tmp_path, advantage={"scale": "leave_one_out", "kl": {"divergence": "k1", "beta": 0.05}})
    assert lines[0]["reward/kl/mean"] == pytest.approx(0.0, abs=1e-5)
    assert abs(lines[-1]["reward/kl/mean"]) > 1e-3
    reward = lines[-1]["reward/reward/mean"] - 0.05 * lines[-1]["reward/kl/mean"]
    assert lines[-1]["reward/mean"] == pytest.approx(reward, abs=1e-5)
    # a rollout of one forward a sample, one pass of policy and reference, one update
    assert lines[1]["count/forwards_per_sample"] == 4.0


@pytest.mark.nightly
def test_entropy_and_near_policy_select_decisions(tmp_path: Path) -> None:
    chosen = {"selections": [{"name": "top_entropy", "share": 0.25}, {"name": "near_policy", "limit": 10.0}]}
    _, lines = run(tmp_path, objective={**chosen, "aggregate": "token_mean"})
    assert all(0.2 < line["policy/trained_frac"] <= 0.5 for line in lines)
    _, plain = run(tmp_path / "plain")
    assert {line["policy/trained_frac"] for line in plain} == {1.0}


@pytest.mark.first_case
@pytest.mark.parametrize("choice", ["keep", "zero", "drop"])
def test_truncated_samples_are_counted_and_left_out(choice: str, tmp_path: Path) -> None:
    _, lines = run(tmp_path, objective={"truncated": choice})  # five tokens end no completion of this model
    assert {line["completions/clipped_frac"] for line in lines} == {1.0}
    assert all((line["optimizer/grad_norm"] > 0) == (choice == "keep") for line in lines)


def test_an_update_without_advantages_is_a_step_with_zeros(tmp_path: Path) -> None:
    decayed = {"update": {"optimizer": {"lr": 1e-2, "weight_decay": 0.5}}, "steps": 1}
    trainer, (line,) = run(tmp_path, equal, **decayed)
    assert (line["optimizer/grad_norm"], line["policy/loss"], line["policy/trained_frac"]) == (0.0, 0.0, 0.0)
    assert line["groups/zero_std_frac"] == 1.0
    assert line["count/forwards_per_sample"] == 1.0  # the rollout alone
    before = torch.cat([parameter.detach().flatten() for parameter in policy_of("llama").trainable])
    torch.testing.assert_close(weights(trainer), before * (1 - 1e-2 * 0.5))  # AdamW's decay and nothing else


class Thinking:
    """Scores by ``length`` on a thread, and records the groups of every call."""

    concurrent = True

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.began = threading.Event()

    def __call__(self, samples: Sequence[Sample]) -> list[float]:
        self.groups.append([sample.group for sample in samples])
        self.began.set()
        return length(samples)


@pytest.mark.nightly
def test_a_reward_on_a_thread_scores_the_first_groups_during_the_rollout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    thinking, written = Thinking(), LanguagePolicy.rollout

    def waiting(policy: LanguagePolicy, *args: Any, **kwargs: Any) -> Any:
        rollout = written(policy, *args, **kwargs)
        assert thinking.began.wait(60)  # called, although the rollout is not given back yet
        thinking.began.clear()
        return rollout

    plain, expected = run(tmp_path / "plain", rollout_batch=4)
    monkeypatch.setattr(LanguagePolicy, "rollout", waiting)
    trainer, lines = run(tmp_path / "beside", thinking, rollout_batch=4)
    for step in (thinking.groups[:2], thinking.groups[2:]):
        assert sorted(step) == [[0] * 4, [1] * 4]  # each group alone, and complete
    assert torch.equal(weights(trainer), weights(plain))
    for line, other in zip(lines, expected, strict=True):
        assert {k: v for k, v in line.items() if "time/" not in k} == {
            k: v for k, v in other.items() if "time/" not in k
        }
        assert line["time/reward/reward_s"] >= 0
