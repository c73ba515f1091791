"""Sampling one step ahead: the server generates the next step's samples during an update, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.language import LanguagePolicy
from torch import Tensor

from mmgrpo import Trainer
from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import validated
from mmgrpo.errors import ConfigError, EngineError
from mmgrpo.explain.explanation import explanation
from mmgrpo.training.ahead import require_ahead
from mmgrpo.training.compute_advantages import Advantages
from mmgrpo.training.rollout_rounds import Rollouts
from mmgrpo.training.run_loop import Scored
from mmgrpo.types import Plan, Sample
from mmgrpo.values import SAMPLER_LOGPROB
from tests.policies.contract import largest_difference, values
from tests.policies.test_engine import served, trainer_of, vowels, weights
from tests.policies.tiny_language import policy_of, prompts_of
from tests.policies.token_server import TokenServer

CAP = 1.001
"""Below the weights of some decisions after an update, so that both sides of the cap occur."""

WEIGHTED = {"estimators": [{"name": "sampler_weight_truncated", "cap": CAP}]}


@pytest.fixture
def server() -> Iterator[TokenServer]:
    server = TokenServer(policy_of("llama").model)
    yield server
    server.end()


def run_ahead(server: TokenServer, output: Path, **sections: Any) -> Trainer:
    arguments: dict[str, Any] = {"advantage": WEIGHTED, **sections}
    return trainer_of({"url": server.url, "steps_ahead": 1}, output, **arguments)


def observe(trainer: Trainer) -> list[tuple[Advantages, dict[str, Tensor]]]:
    """The training data of each step of a run, and the weights that it is scored with."""
    steps: list[tuple[Advantages, dict[str, Tensor]]] = []
    score = trainer.score

    def scored(rollouts: Rollouts, after: Mapping[str, Scored]) -> Scored:
        rewards, advantages = score(rollouts, after)
        policy = trainer.policy
        assert isinstance(policy, LanguagePolicy)
        steps.append((advantages, {name: value.clone() for name, value in policy.model.state_dict().items()}))
        return rewards, advantages

    trainer.score = scored
    return steps


def with_weights(state: Mapping[str, Tensor]) -> LanguagePolicy:
    policy = policy_of("llama")
    policy.model.load_state_dict(state)
    return policy


@pytest.mark.nightly
def test_samples_are_of_weights_before_last_update_and_weighed(server: TokenServer, tmp_path: Path) -> None:
    trainer = run_ahead(server, tmp_path, checkpoint={})
    steps = observe(trainer)
    trainer.train()
    assert [line["rollout/staleness"] for line in trainer.folder.lines("metrics.jsonl")] == [0, 1, 1]
    assert [line["policy/on_policy_gap"] < 1e-6 for line in trainer.folder.lines("metrics.jsonl")] == [True] * 3
    num_capped = 0
    for number, (advantages, state) in enumerate(steps):
        rollout, mask_BT = advantages.rollout, advantages.rollout.mask_BT
        age = min(number, 1)
        ages = [0] * len(rollout.samples) if rollout.age_B is None else rollout.age_B.tolist()
        assert ages == [age] * len(rollout.samples)
        assert bool(rollout.unchanged_B.all())
        assert not bool(rollout.aged().unchanged_B.any())
        current, behavior = with_weights(state), with_weights(steps[number - age][1])
        assert largest_difference(values(current, rollout), rollout.old_logprob_BT, mask_BT) < 1e-6
        behavior_BT = values(behavior, rollout)
        assert largest_difference(behavior_BT, rollout.values[SAMPLER_LOGPROB], mask_BT) < 1e-4
        weight_BT = (rollout.old_logprob_BT - rollout.values[SAMPLER_LOGPROB]).exp()
        num_capped += int((weight_BT > CAP)[mask_BT].sum())
        unweighed_B1 = advantages.advantage_N[advantages.local_rows][:, None]
        expected_BT = unweighed_B1 * weight_BT.clamp(max=CAP)
        assert torch.allclose(advantages.advantage_BT[mask_BT], expected_BT[mask_BT], atol=1e-6)
    assert num_capped > 0


@pytest.mark.nightly
def test_requests_are_sent_before_update_with_weights_of_step(server: TokenServer, tmp_path: Path) -> None:
    run_ahead(server, tmp_path, checkpoint={}).train()
    kinds = {"/inference/v1/generate": "generate", "/collective_rpc": "load"}
    requests = [
        (kinds[path], body)
        for path, body in server.requests
        if path in kinds and (path == "/collective_rpc" or body["token_ids"] != [0])  # those check the server
    ]
    sizes = [
        kind if kind == "load" else (body["sampling_params"]["n"], body["sampling_params"]["max_tokens"])
        for kind, body in requests
    ]
    check, samples = [(3, 7)] * 2, [(3, 7)] * 2  # a completion has at most 7 tokens, so a check has as many
    assert sizes == ["load", *samples, *check, *samples, "load", *check, *samples]
    seeds = [body["sampling_params"]["seed"] for kind, body in requests if kind == "generate"]
    assert len(set(seeds)) == 6  # a check has those of the samples after it


@pytest.mark.nightly
def test_run_resumes_to_the_same_weights(server: TokenServer, tmp_path: Path) -> None:
    """The samples of the next step are in the checkpoint, since the weights that sampled them are not."""
    complete = run_ahead(server, tmp_path / "complete", checkpoint={"every": 1, "keep": 9})
    complete_steps = observe(complete)
    complete.train()
    checkpoint = complete.folder.path / "checkpoints" / "step-000001"
    server.model, server.version = policy_of("llama").model, "default"
    resumed = run_ahead(server, tmp_path / "complete", checkpoint={"every": 1, "keep": 9}, resume=checkpoint)
    steps = observe(resumed)
    resumed.train()
    for (advantages, _), (expected, _) in zip(steps, complete_steps[1:], strict=True):
        assert torch.equal(advantages.rollout.token_BT, expected.rollout.token_BT)  # pyrefly: ignore[bad-argument-type]
        assert torch.equal(advantages.reward_N, expected.reward_N)
        assert torch.equal(advantages.advantage_BT, expected.advantage_BT)
    assert torch.equal(weights(resumed), weights(complete))


@pytest.mark.nightly
def test_failure_after_samples_ahead_costs_no_step(server: TokenServer, tmp_path: Path) -> None:
    complete = run_ahead(server, tmp_path / "complete")
    complete.train()
    broken = run_ahead(server, tmp_path / "broken", checkpoint={})
    score, rounds = broken.score, list[int]()

    def failing(rollouts: Rollouts, after: Mapping[str, Scored]) -> Scored:
        rounds.append(len(rollouts.samples))
        if len(rounds) == 3:
            raise RuntimeError("a reward failed")
        return score(rollouts, after)

    broken.score = failing
    with pytest.raises(RuntimeError, match="a reward failed"):
        broken.train()
    server.model, server.version = policy_of("llama").model, "default"
    resumed = run_ahead(server, tmp_path / "broken", resume=broken.folder.path)
    resumed.train()
    assert [line["step"] for line in resumed.folder.lines("metrics.jsonl")] == [1, 2, 3]
    assert torch.equal(weights(resumed), weights(complete))


@pytest.mark.nightly
def test_server_that_fails_during_update_costs_no_step(server: TokenServer, tmp_path: Path) -> None:
    trainer = run_ahead(server, tmp_path, checkpoint={})
    generate = server.reply

    def failing(path: str, body: Any) -> tuple[int, Any]:
        if path == "/inference/v1/generate" and len(server.samplings) > 4:  # 2 + 2 of step 1
            return 500, {"error": "out of memory"}
        return generate(path, body)

    server.reply = failing
    with pytest.raises(EngineError, match=r"HTTP 500: .*out of memory.*"):
        trainer.train()
    server.reply = generate
    assert [path.name for path in (trainer.folder.path / "checkpoints").iterdir()] == ["step-000001"]
    resumed = run_ahead(server, tmp_path, resume=trainer.folder.path)
    resumed.train()
    lines = list(resumed.folder.lines("metrics.jsonl"))
    assert [(line["step"], line["rollout/staleness"]) for line in lines] == [(1, 0), (2, 0), (3, 1)]


@pytest.mark.nightly
def test_weights_that_do_not_arrive_raise_error_before_update(server: TokenServer, tmp_path: Path) -> None:
    def stop_loading(samples: list[Sample]) -> list[float]:
        server.adds_noise = True
        return vowels(samples)

    trainer = run_ahead(server, tmp_path, checkpoint={}, reward=stop_loading)
    with pytest.raises(EngineError, match=rf"{server.url} differ by .* its weights are not the current ones"):
        trainer.train()
    assert [line["step"] for line in trainer.folder.lines("metrics.jsonl")] == [1]
    assert [path.name for path in (trainer.folder.path / "checkpoints").iterdir()] == ["step-000001"]


@pytest.mark.nightly
def test_completions_ahead_are_for_their_requests_alone(server: TokenServer) -> None:
    policy = served(server, engine={"steps_ahead": 1})
    prompts = prompts_of("llama")
    ahead = policy.sample_ahead(prompts, group_size=3, seed=1, plan=Plan())()
    num_requests = len(server.bodies("/inference/v1/generate"))
    of_request = policy.rollout(prompts, group_size=3, seed=1, plan=Plan(ahead=ahead))
    assert len(server.bodies("/inference/v1/generate")) == num_requests
    now = policy.rollout(prompts, group_size=3, seed=1)
    assert [sample.tokens for sample in of_request.samples] == [sample.tokens for sample in now.samples]
    other = policy.rollout(prompts, group_size=3, seed=2, plan=Plan(ahead=ahead))
    assert (other.age_B, now.age_B) == (None, None)
    partial = dict(list(ahead.items())[:1])
    with pytest.raises(EngineError, match="some requests of this rollout were sent one step ahead"):
        policy.rollout(prompts, group_size=3, seed=1, plan=Plan(ahead=partial))
    with pytest.raises(ConfigError, match=r"exclude other tokens under top_k, top_p or min_p"):
        served(server, engine={"steps_ahead": 1}, top_k=5)


ENGINE = {"name": "vllm", "url": "http://127.0.0.1:8000", "steps_ahead": 1}
TRENDING = {"name": "against_trend", "metric": "reward/mean", "every": 3, "low": 0.5, "high": 1.0}


def algorithm_of(rollout: Mapping[str, Any] | None = None, **sections: Any) -> Algorithm:
    policy = {"name": "language", "model": "tiny"}
    values = {"policy": policy, "rollout": {"engine": ENGINE, **(rollout or {})}, "advantage": WEIGHTED, **sections}
    return Algorithm.of(validated(values))


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        (algorithm_of(advantage={}), r"no importance weight corrects for it: add methods/tis"),
        (
            algorithm_of({"strategy": {"name": "on_failure", "settings": {"temperature": 1.2}}}),
            r"the strategy on_failure requests samples by earlier",
        ),
        (
            algorithm_of({"strategy": {"name": "with_lookahead"}}),
            r"the strategy with_lookahead requests samples by earlier rewards, memory or weights",
        ),
        (
            algorithm_of({"environment": {"name": "tools", "functions": ["python:math:sqrt"]}}),
            r"rollout\.environment answers the turns of a sample: set it to 0",
        ),
        (
            algorithm_of(prompts={"source": "x", "sampler": {"name": "drop_solved"}}),
            r"prompts\.sampler chooses prompts by earlier rewards",
        ),
        (
            algorithm_of(schedules={"policy.temperature": TRENDING}),
            r"schedules of policy\.temperature follow metrics",
        ),
    ],
    ids=["weights", "strategy", "lookahead", "environment", "sampler", "schedule"],
)
def test_samples_that_depend_on_update_raise_error(algorithm: Algorithm, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"rollout\.engine\.steps_ahead: .*{message}"):
        require_ahead(algorithm, is_task=False)


def test_settings_of_sampling_ahead_are_checked() -> None:
    require_ahead(algorithm_of(), is_task=False)
    with pytest.raises(ConfigError, match="a run of several tasks samples them one after another"):
        require_ahead(algorithm_of(), is_task=True)
    with pytest.raises(ConfigError, match=r"rollout\.engine\.steps_ahead is 0 or 1, got 2"):
        algorithm_of({"engine": ENGINE | {"steps_ahead": 2}})
    assert "with the weights before the last update" in " ".join(explanation(algorithm_of().config).split())
