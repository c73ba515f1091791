"""Rows that depend on their batch: detected before the first update, and run alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.rewards.images.pixels import Brightness

from mmgrpo.config.loading import validated
from mmgrpo.doctor.examination import examine
from mmgrpo.training.trainer import Trainer
from mmgrpo.types import Plan, Prompt, Sample
from tests.policies.contract import sample_difference, values
from tests.policies.families import daily
from tests.policies.tiny_policies import policy_of, prompts_of
from tests.tiny.batch_dependent import KANDINSKY3_CALL, LATTE_CALL, kandinsky3, latte
from tests.tiny.pipelines import build_seeded

SEED = 3
PROMPTS = [Prompt("a red fox"), Prompt("two blue squares on a table")]
DEPENDENT = {"latte": (latte, LATTE_CALL), "kandinsky3": (kandinsky3, KANDINSKY3_CALL)}
EACH = ["latte", pytest.param("kandinsky3", marks=pytest.mark.nightly)]  # whose every call takes half a second


def _policy(name: str, **settings: Any) -> DenoisingPolicy:
    make, call = DEPENDENT[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DenoisingPolicy(
            build_seeded(make),
            {
                "call": {**call, "guidance_scale": 4.0},
                "sampler": "ddim",
                "lora": {"rank": 2, "alpha": 2.0},
                **settings,
            },
        )


SHARED = Plan(stochastic=(1, 2), same_initial_noise=True)


@pytest.mark.nightly
@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize(
    ("batches", "plan"),
    daily(
        [((8, 8), Plan()), ((4, 2), Plan()), ((1, 8), Plan()), ((8, 1), SHARED), ((2, 2), SHARED)],
        ((4, 2), Plan()),
        ((8, 1), SHARED),
    ),
)
def test_rows_that_depend_on_their_batch_run_alone(
    name: str, batches: tuple[int, int], plan: Plan, caplog: pytest.LogCaptureFixture
) -> None:
    policy = _policy(name, rollout_batch=batches[0], update_batch=batches[1])
    with caplog.at_level(logging.WARNING, logger="mmgrpo"):
        rollout = policy.rollout(PROMPTS, group_size=2, seed=SEED, plan=plan)
    assert rollout.num_unbatched == 4
    (line,) = [record.getMessage() for record in caplog.records if "depends on its batch" in record.getMessage()]
    assert "every row runs alone" in line
    for rows in ([0, 1, 2, 3], [3, 0], [2]):
        assert torch.equal(values(policy, rollout, rows)[rows], rollout.old_logprob_BT[rows])
    last = policy.rollout(PROMPTS[1:], group_size=2, seed=SEED, plan=Plan(prompt_ids=(1,)))
    assert last.num_unbatched == 2


@pytest.mark.parametrize("name", EACH)
def test_one_prompt_reveals_batch_dependence(name: str) -> None:
    assert _policy(name).rollout(PROMPTS[:1], group_size=2, seed=SEED).num_unbatched == 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", EACH)
def test_deterministic_samples_are_equal_before_and_after_the_first_rollout(name: str) -> None:
    greedy = Plan(stochastic=())
    policy = _policy(name)
    before = policy.rollout(PROMPTS, group_size=1, seed=SEED, plan=greedy)
    policy.rollout(PROMPTS, group_size=2, seed=SEED)
    after = policy.rollout(PROMPTS, group_size=1, seed=SEED, plan=greedy)
    alone = _policy(name, rollout_batch=1, update_batch=1).rollout(PROMPTS, group_size=1, seed=SEED, plan=greedy)
    assert sample_difference(before.samples, alone.samples) == 0
    assert sample_difference(after.samples, alone.samples) == 0


@pytest.mark.nightly
def test_doctor_and_metrics_count_the_rows(tmp_path: Path) -> None:
    run = {"steps": 1, "output": str(tmp_path), "rollout": {"prompts_per_step": 2, "group_size": 2}}
    actual = {finding.check: finding for finding in examine(validated(run), _policy("latte"), [Brightness()], PROMPTS)}
    assert actual["batch invariance"].ok
    assert actual["batch invariance"].measured == "4 of 4 rows depend on the other rows of their batch, and run alone"
    trainer = Trainer(_policy("latte"), [Brightness()], PROMPTS, run)
    trainer.train()
    (line,) = [json.loads(line) for line in (trainer.folder.path / "metrics.jsonl").read_text().splitlines()]
    assert line["rollout/unbatched_rows"] == 4
    assert line["policy/on_policy_gap"] == 0


def test_resampled_rows_are_emitted_once() -> None:
    portions: list[Sample] = []
    rollout = _policy("latte").rollout(PROMPTS, group_size=2, seed=SEED, plan=Plan(on_samples=portions.extend))
    assert list(map(id, portions)) == list(map(id, rollout.samples))


@pytest.mark.nightly
@pytest.mark.each_value
@pytest.mark.parametrize("settings", [{}, {"reduction": "sum_sqrt"}])
@pytest.mark.parametrize("name", daily(["sd15", "sdxl", "sd3", "cogvideox", "wan"], "sdxl", "wan"))
def test_rounding_is_not_batch_dependence(name: str, settings: dict[str, Any]) -> None:
    rollout = policy_of(name, guided=True, **settings).rollout(prompts_of(name), group_size=2, seed=SEED)
    assert rollout.num_unbatched == 0
