"""Rollouts of an engine: the server samples, the trainer scores, and weights that do not arrive are an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo import Trainer
from mmgrpo.config.loading import validated
from mmgrpo.data.image_loading import load_image
from mmgrpo.errors import ConfigError, DataError, EngineError, PolicyError
from mmgrpo.explain.explanation import explanation
from mmgrpo.policy import EngineContext
from mmgrpo.types import Continuation, Lookahead, Plan, Prompt, Rollout, Sample
from mmgrpo.values import ENTROPY, SAMPLER_LOGPROB
from tests.policies.contract import largest_difference, move, values
from tests.policies.test_language_exchanges import Asking, terse
from tests.policies.test_language_media_turns import Showing
from tests.policies.test_language_ways import t5
from tests.policies.tiny_language import picture, policy_of, prompts_of
from tests.policies.token_server import TokenServer

SEED = 5
GREEDY = Plan(stochastic=())


@pytest.fixture
def server() -> Iterator[TokenServer]:
    server = TokenServer(policy_of("llama").model)
    yield server
    server.end()


def connect(server: TokenServer, policy: LanguagePolicy, **engine: Any) -> LanguagePolicy:
    """The policy, whose samples the server generates until it ends."""
    context = EngineContext(log=Path("engine.log"), is_main=True, run_on_main=lambda function: function())
    server.contexts.enter_context(policy.use_engine(VllmEngine(**{"url": server.url, "retries": 0} | engine), context))  # pyrefly: ignore[bad-argument-type]
    return policy


def served(
    server: TokenServer, *, name: str = "llama", engine: dict[str, Any] | None = None, **settings: Any
) -> LanguagePolicy:
    return connect(server, policy_of(name, **settings), **(engine or {}))


def rollout_of(policy: LanguagePolicy, plan: Plan | None = None) -> Rollout:
    return policy.rollout(prompts_of("llama"), group_size=3, seed=SEED, plan=plan)


@pytest.mark.nightly
@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"suppress": (7, 8)}], ids=str)
def test_trainer_scores_samples_of_server(server: TokenServer, settings: dict[str, Any]) -> None:
    policy = served(server, **settings)
    rollout = rollout_of(policy, Plan(values=(ENTROPY,)))
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    assert float(rollout.values[ENTROPY][rollout.mask_BT].min()) > 0.1
    requests = server.samplings
    assert [request["sampling_params"]["n"] for request in requests] == [3, 3]
    assert len({request["sampling_params"]["seed"] for request in requests}) == 2
    assert len({sample.text for sample in rollout.samples}) > 3
    again = rollout_of(policy)
    assert [sample.tokens for sample in again.samples] == [sample.tokens for sample in rollout.samples]


def test_greedy_samples_are_those_of_trainer(server: TokenServer) -> None:
    by_server, by_trainer = rollout_of(served(server), GREEDY), rollout_of(policy_of("llama"), GREEDY)
    assert [sample.tokens for sample in by_server.samples] == [sample.tokens for sample in by_trainer.samples]


@pytest.mark.parametrize("lora", [None, {"rank": 2, "init": "gaussian"}], ids=["full", "lora"])
def test_changed_weights_are_sent_once(server: TokenServer, lora: dict[str, Any] | None) -> None:
    policy = served(server, lora=lora)
    rollout_of(policy)
    assert len(server.bodies("/collective_rpc")) == 1
    move(policy.trainable)
    rollout = rollout_of(policy)
    rollout_of(policy, GREEDY)
    assert len(server.bodies("/collective_rpc")) == 2
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4


@pytest.mark.nightly
def test_adapters_are_loaded_by_name(server: TokenServer) -> None:
    policy = served(server, engine={"load_adapters": True}, lora={"rank": 2, "init": "gaussian"})
    for seed in range(2):
        move(policy.trainable, seed=seed)
        rollout = rollout_of(policy)
        rollout_of(policy, GREEDY)
        gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
        assert float(gap_BT.abs().max()) < 1e-4
    assert len(server.bodies("/collective_rpc")) == 1
    names = [body["lora_name"] for body in server.bodies("/v1/load_lora_adapter")]
    assert len(set(names)) == 3  # before the first update, and after each
    assert list(server.adapters) == names[-1:]
    server.adapters.clear()
    assert policy._engine is not None
    engine = policy._engine.engine
    with pytest.raises(EngineError, match=rf"HTTP 404: .*`{names[-1]}` does not exist"):
        policy._rollouts.generate(prompts_of("llama"), group_size=1, seed=SEED, plan=Plan(), source=engine)
    with pytest.raises(ConfigError, match=r"load_adapters needs policy\.lora"):
        served(server, engine={"load_adapters": True})


@pytest.mark.nightly
def test_server_sleeps_between_rollouts(server: TokenServer) -> None:
    expected = rollout_of(served(server))
    server.requests.clear()
    server.is_asleep = True  # as a killed run leaves it
    policy = served(server, engine={"sleep": True})
    assert [sample.tokens for sample in rollout_of(policy).samples] == [sample.tokens for sample in expected.samples]
    assert server.is_asleep
    rollout_of(policy, GREEDY)
    assert server.is_asleep
    move(policy.trainable)
    rollout_of(policy)
    assert server.is_asleep
    paths = [path for path, _ in server.requests if path in ("/sleep", "/wake_up", "/collective_rpc")]
    awake = ["/wake_up", "/sleep"]
    assert paths == [*awake, *awake, *awake, "/wake_up", "/collective_rpc", "/sleep"]  # start, sample, greedy, update


def test_sleep_of_a_server_that_others_use_is_an_error(server: TokenServer) -> None:
    context = EngineContext(log=Path("e.log"), is_main=True, run_on_main=lambda function: function(), num_processes=2)
    with pytest.raises(ConfigError, match=r"sleep: the server has requests of 2 processes"):
        server.contexts.enter_context(policy_of("llama").use_engine(VllmEngine(url=server.url, sleep=True), context))
    with pytest.raises(ConfigError, match="steps_ahead samples: set one of them"):
        VllmEngine(url=server.url, sleep=True, steps_ahead=1)


@pytest.mark.nightly
def test_server_without_new_weights_raises_error(server: TokenServer) -> None:
    """Updates that are far too small for ``max_mismatch``."""
    policy = served(server)
    for _ in range(3):
        move(policy.trainable, scale=1e-6)
        rollout_of(policy)
    server.ignores_weights = True
    for _ in range(2):
        move(policy.trainable, scale=1e-6)
        rollout_of(policy)
    move(policy.trainable, scale=1e-6)
    with pytest.raises(EngineError, match="has reported 3 changes of its weights, and a sample has the same log-prob"):
        rollout_of(policy)


@pytest.mark.nightly
def test_server_with_other_weights_raises_error(server: TokenServer) -> None:
    policy = served(server)
    move(policy.trainable)
    server.adds_noise = True
    with pytest.raises(EngineError, match=rf"{server.url} differ by .* its weights are not the current ones"):
        rollout_of(policy)
    lenient = served(server, engine={"max_mismatch": 100.0})
    move(lenient.trainable)
    assert rollout_of(lenient).mask_BT.any()


def test_completion_cut_off_by_server_raises_error(server: TokenServer) -> None:
    policy = served(server)
    server.max_tokens = 2
    with pytest.raises(EngineError, match=r"after 2 of 7 tokens, since the prompt has \d+: .* larger --max-model-len"):
        rollout_of(policy)


@pytest.mark.nightly
def test_samples_of_other_weights_raise_error(server: TokenServer) -> None:
    policy = served(server)
    load = server.reply

    def restarted(path: str, body: Any) -> tuple[int, Any]:
        if path == "/inference/v1/generate":
            server.version = "default"
        return load(path, body)

    server.reply = restarted
    with pytest.raises(EngineError, match="sampled with weights default instead of mmgrpo-"):
        rollout_of(policy)


@pytest.mark.nightly
def test_samples_without_version_of_weights_raise_error(server: TokenServer) -> None:
    policy = served(server)
    choice = server.choice
    server.choice = lambda *args: choice(*args) | {"weight_versions": None}  # pyrefly: ignore[bad-argument-type, bad-assignment]
    with pytest.raises(EngineError, match="sampled with weights of no version instead of mmgrpo-"):
        rollout_of(policy)


@pytest.mark.nightly
def test_restarted_server_gets_weights_again(server: TokenServer) -> None:
    policy = served(server)
    move(policy.trainable)
    first = rollout_of(policy)
    server.model, server.version = policy_of("llama").model, "default"
    again = rollout_of(policy)
    assert [sample.tokens for sample in again.samples] == [sample.tokens for sample in first.samples]
    assert len(server.bodies("/collective_rpc")) == 3


def test_samples_under_named_weights_are_of_trainer(server: TokenServer) -> None:
    policy = served(server)
    policy.weights.store("start")
    num_requests = len(server.bodies("/inference/v1/generate"))
    with policy.weights.using("start"):
        rollout = rollout_of(policy)
    assert len(server.bodies("/inference/v1/generate")) == num_requests
    assert SAMPLER_LOGPROB not in rollout.values


@pytest.mark.nightly
def test_conversation_sends_each_turn(server: TokenServer) -> None:
    policy = connect(server, terse("llama"))
    rollout = rollout_of(policy, Plan(environment=lambda: Asking(turns=2), max_turns=2))
    assert any(len(sample.turn_ends) == 2 for sample in rollout.samples)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    seeds = [request["sampling_params"]["seed"] for request in server.samplings]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.nightly
def test_unfinished_rows_continue_with_later_weights(server: TokenServer) -> None:
    policy = served(server)
    first = rollout_of(policy, Plan(token_window=3))
    rows = [sample for sample in first.samples if sample.is_partial]
    assert len(rows) > 3
    move(policy.trainable)
    plan = Plan(
        token_window=3,
        prompt_ids=tuple(sample.group for sample in rows),
        members=tuple((sample.member,) for sample in rows),
        continues=tuple(Continuation(token_ids=list(sample.tokens or ()), seed=9) for sample in rows),
    )
    rollout = policy.rollout([sample.prompt for sample in rows], group_size=1, seed=SEED, plan=plan)
    assert [list(sample.tokens or ())[:3] for sample in rollout.samples] == [sample.tokens for sample in rows]
    assert [row[:4] for row in rollout.mask_BT.tolist()] == [[False, False, False, True]] * len(rows)
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    requests = server.samplings
    assert [request["sampling_params"]["max_tokens"] for request in requests] == [3] * (2 + len(rows))


def test_server_continues_the_beginnings_that_the_trainer_searches(server: TokenServer) -> None:
    policy = served(server)
    lookahead = Lookahead(max_tokens=3, min_probability=0.0, max_gap=1.0, ages=(), min_distance=0.0, symbols="")
    searched = policy_of("llama").rollout(prompts_of("llama"), group_size=4, seed=SEED, plan=Plan(lookahead=lookahead))
    rollout = policy.rollout(prompts_of("llama"), group_size=4, seed=SEED, plan=Plan(lookahead=lookahead))
    beginnings = [list(sample.tokens or ())[:3] for sample in rollout.samples]
    assert beginnings == [list(sample.tokens or ())[:3] for sample in searched.samples]
    assert len({tuple(tokens) for tokens in beginnings}) == 8
    assert rollout.mask_BT.sum(1).tolist() == [len(sample.tokens or ()) for sample in rollout.samples]
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 2e-6
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    assert {request["sampling_params"]["max_tokens"] for request in server.samplings} == {4}


@pytest.mark.nightly
def test_turns_with_other_media_than_images_are_an_error() -> None:
    policy = terse("qwen2.5-vl")
    server = TokenServer(policy.model)
    connect(server, policy)
    opened = Plan(environment=lambda: Showing(kinds=("videos",)), max_turns=2)
    with pytest.raises(PolicyError, match=r"the turn 'two red' has videos or audio, which rollout\.engine does not"):
        policy.rollout([Prompt("what is this")], group_size=2, seed=SEED, plan=opened)
    server.end()


@pytest.mark.first_case
@pytest.mark.parametrize(
    ("settings", "plan", "message"),
    [
        ({"temperature_schedule": {"pace": 5.0}}, Plan(), "temperature_schedule"),
        ({"min_p": 0.1, "top_k": 5}, Plan(), "min_p alone"),
        ({"compile": True}, Plan(), r"policy\.compile speeds up sampling by the trainer"),
        ({}, Plan(sample_values=("certainty",)), "returns no certainty"),
    ],
)
def test_unsupported_settings_raise_errors(
    server: TokenServer, settings: dict[str, Any], plan: Plan, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        rollout_of(served(server, **settings), plan)


def test_models_that_server_lacks_raise_errors(server: TokenServer) -> None:
    with pytest.raises(ConfigError, match=r"vocabulary does not have the \d+ tokens .*out-of-vocab"):
        served(server, name="qwen2.5-vl")
    with pytest.raises(ConfigError, match="encoder-decoder"):
        connect(server, t5())
    server.scale_out = False
    with pytest.raises(ConfigError, match=r"did not do /inference/v1/generate .*HTTP 404.*--enable-scale-out"):
        served(server)
    server.status = 404
    with pytest.raises(ConfigError, match=r"does not answer /v1/models .*Start it with: VLLM_SERVER_DEV_MODE=1"):
        served(server)
    with pytest.raises(ConfigError, match=r"127\.0\.0\.1:9 does not answer"):  # the port discard, which no test serves
        connect(server, policy_of("llama"), url="http://127.0.0.1:9")


@pytest.mark.nightly
def test_images_are_sent_once_with_tokens_before_their_expansion() -> None:
    policy, prompts = policy_of("qwen2.5-vl"), prompts_of("qwen2.5-vl")[1:]
    server = TokenServer(policy.model)
    connect(server, policy)
    with pytest.raises(EngineError, match=r"reads a prompt with images as 0 tokens, the trainer as \d+"):
        policy.rollout(prompts, group_size=2, seed=SEED)  # this server reads no images
    (request,) = server.samplings
    images = [load_image(part["url"]) for part in request["content_parts"]]
    assert [image.tobytes() for image in images] == [image.tobytes() for image in prompts[0].images]
    tokens, expanded = request["token_ids"], policy._encoder(prompts[0]).ids_P.tolist()
    pad = policy.model.config.image_token_id
    assert sum(token == pad for token in tokens) == len(images) == 2
    assert [token for token in tokens if token != pad] == [token for token in expanded if token != pad]
    parts = [{"type": "image", "max_pixels": 784}, {"type": "text", "text": "what"}]
    sized = Prompt("what", images=[picture()], messages=[{"role": "user", "content": parts}])
    with pytest.raises(DataError, match=r"has media options, which rollout\.engine does not support"):
        policy.rollout([sized], group_size=2, seed=SEED)
    server.end()


def vowels(samples: list[Sample]) -> list[float]:
    return [sum((sample.text or "").count(letter) for letter in "aeiou") / 10 for sample in samples]


def trainer_of(
    engine: dict[str, Any],
    output: Path,
    *,
    reward: Callable[[list[Sample]], list[float]] = vowels,
    resume: Path | None = None,
    **sections: Any,
) -> Trainer:
    config = {
        "output": str(output),
        "steps": 3,
        "rollout": {"prompts_per_step": 2, "group_size": 3, "engine": {"name": "vllm", "retries": 0, **engine}},
        "advantage": {
            "estimators": [{"name": "sampler_weight_truncated", "cap": 5.0}],
            "filters": [{"name": "sampler_weight_within", "low": 0.5, "high": 5.0}],
        },
        "update": {"optimizer": {"lr": 1e-2}},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu"},
        **sections,
    }
    return Trainer(policy_of("llama"), {"vowels": reward}, prompts_of("llama"), config, resume=resume)


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in trainer.parameters])


@pytest.mark.nightly
def test_run_resumes_after_server_failed(server: TokenServer, tmp_path: Path) -> None:
    complete = trainer_of({"url": server.url}, tmp_path / "complete")
    complete.train()
    assert [line["rollout/engine_mismatch"] < 1e-4 for line in complete.folder.lines("metrics.jsonl")] == [True] * 3
    broken = trainer_of({"url": server.url}, tmp_path / "broken")
    generate = server.reply

    def failing(path: str, body: Any) -> tuple[int, Any]:
        if len(broken.folder.lines("metrics.jsonl")) == 2:
            return 500, {"error": "out of memory"}
        return generate(path, body)

    server.reply = failing
    with pytest.raises(EngineError, match=r"HTTP 500: .*out of memory.*"):
        broken.train()
    server.reply = generate
    resumed = trainer_of({"url": server.url}, tmp_path / "broken", resume=broken.folder.path)
    resumed.train()
    assert [line["step"] for line in resumed.folder.lines("metrics.jsonl")] == [1, 2, 3]
    assert torch.equal(weights(resumed), weights(complete))


def test_engine_is_explained_and_checked() -> None:
    values = {"rollout": {"engine": {"name": "vllm", "url": "http://127.0.0.1:8000"}}}
    assert "vllm, http://127.0.0.1:8000, generates the samples" in " ".join(explanation(validated(values)).split())
    with pytest.raises(ConfigError, match="unknown name 'vlm'; did you mean vllm"):
        explanation(validated({"rollout": {"engine": {"name": "vlm"}}}))
    with pytest.raises(ConfigError, match="vllm takes no 'uri'; did you mean url"):
        explanation(validated({"rollout": {"engine": {"name": "vllm", "uri": "http://a"}}}))
    with pytest.raises(ConfigError, match="must be such as http"):
        explanation(validated({"rollout": {"engine": {"name": "vllm", "url": "localhost"}}}))
    weight = {"advantage": {"estimators": [{"name": "sampler_weight_truncated"}]}}
    with pytest.raises(ConfigError, match=r"set rollout\.engine"):
        explanation(validated(weight))
