"""TRL's arguments of vLLM: a server samples, and its samples have TRL's importance weights."""

from __future__ import annotations

import itertools
import math
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trl
import yaml
from datasets import Dataset

from mmgrpo.algorithm import Algorithm
from mmgrpo.config.loading import find_config, load_config, read_layers, validated
from mmgrpo.config.peers import peer_suggestions
from mmgrpo.config.validating import set_value
from mmgrpo.errors import ConfigError
from mmgrpo.trl import GRPOConfig, GRPOTrainer
from mmgrpo.trl.conversion import converted
from mmgrpo.trl.run_values import TrainingData, differences, run_values
from tests.policies.token_server import TokenServer
from tests.tiny.language_models import make, save

DATA = TrainingData(num_prompts=64, is_conversational=True, has_tools=False)
ROWS = Dataset.from_dict({"prompt": ["what number is this", "how many red squares do you see"], "target": [3, 5]})
SERVER: dict[str, Any] = {"use_vllm": True, "vllm_mode": "server", "max_steps": 2}
PYTHON = {"rollout.engine.python": "vllm-env/bin/python"}
SHIFT = 0.4
"""Nats by which the server misstates the log-probability of a token."""


def nested(values: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in values.items():
        set_value(result, key.split("."), value)
    return result


def values_of(**arguments: Any) -> dict[str, Any]:
    """The values of a run, which is a valid configuration."""
    arguments.setdefault("max_steps", 2)
    values = nested(run_values(GRPOConfig(**arguments), DATA))
    validated({**values, "policy": {"name": "language"}})
    return values


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"vllm_server_host": "10.0.0.7", "vllm_server_port": 9000}, "http://10.0.0.7:9000"),
        ({"vllm_server_base_url": "https://gpu.example/vllm"}, "https://gpu.example/vllm"),
    ],
)
def test_address_of_trl_is_that_of_the_engine(arguments: dict[str, Any], url: str) -> None:
    values = values_of(**SERVER, **arguments, vllm_server_timeout=900)
    assert values["rollout"]["engine"] == {"name": "vllm", "url": url, "timeout_s": 900.0}
    assert Algorithm.of(validated({**values, "policy": {"name": "language"}})).engine.address == url


def test_vllm_in_the_training_process_is_a_server_that_the_run_starts() -> None:
    values = values_of(use_vllm=True, overrides=PYTHON)
    options = ["--gpu-memory-utilization", "0.3"]
    assert values["rollout"]["engine"] == {"name": "vllm", "options": options, "python": "vllm-env/bin/python"}
    values = values_of(
        use_vllm=True, vllm_enable_sleep_mode=True, vllm_gpu_memory_utilization=0.5, vllm_max_model_length=4096,
        vllm_tensor_parallel_size=2, vllm_model_impl="transformers", overrides=PYTHON,
    )  # fmt: skip
    options = ["--gpu-memory-utilization", "0.5", "--max-model-len", "4096", "--tensor-parallel-size", "2"]
    options += ["--model-impl", "transformers"]
    assert values["rollout"]["engine"] == {"name": "vllm", "options": options, "sleep": True, **python_of(PYTHON)}
    engine = {"name": "vllm", "url": "http://127.0.0.1:8000"}
    assert values_of(use_vllm=True, overrides={"rollout.engine": engine})["rollout"]["engine"] == engine


def python_of(overrides: dict[str, str]) -> dict[str, str]:
    return {"python": overrides["rollout.engine.python"]}


@pytest.mark.parametrize(
    ("mode", "method", "cap"),
    [("token_truncate", "tis", 2.0), ("sequence_truncate", "sequence-tis", 3.0), ("token_mask", "mis", 2.0),
     ("sequence_mask", "sequence-mis", 3.0)],
)  # fmt: skip
def test_weights_of_trl_are_those_of_the_methods(mode: str, method: str, cap: float) -> None:
    names = ("estimators", "filters", "filtered_samples")
    expected = read_layers(find_config(f"methods/{method}"))["advantage"]
    for name in ("vllm_importance_sampling_clip_max", "vllm_importance_sampling_cap"):
        values = values_of(**SERVER, vllm_importance_sampling_mode=mode, **{name: cap})["advantage"]
        assert [values.get(key) for key in names] == [expected.get(key) for key in names]


def test_masks_have_the_lower_bound_of_trl() -> None:
    mask: dict[str, Any] = {**SERVER, "vllm_importance_sampling_mode": "token_mask"}
    values = values_of(**mask, vllm_importance_sampling_clip_min=0.5)["advantage"]
    assert values["filters"] == [{"name": "sampler_weight_within", "low": 0.5, "high": 3.0}]
    values = values_of(**mask, vllm_importance_sampling_clip_min=0.5, vllm_importance_sampling_clip_max=None)
    assert values["advantage"]["filters"] == [{"name": "sampler_weight_within", "low": 0.5, "high": math.inf}]
    values = values_of(**mask, vllm_importance_sampling_clip_max=None)["advantage"]
    assert values["estimators"] == [{"name": "sampler_weight_truncated", "cap": math.inf}]
    assert "filters" not in values


def test_default_of_trl_corrects_by_complete_samples_and_only_with_vllm() -> None:
    default = values_of(**SERVER)["advantage"]
    assert default == values_of(**SERVER, vllm_importance_sampling_mode="sequence_mask")["advantage"]
    assert default["estimators"] == [{"name": "sampler_weight_truncated", "cap": 3.0, "level": "sequence"}]
    assert values_of(**SERVER, vllm_importance_sampling_correction=False)["advantage"].keys() == {"scale", "combine"}
    values = values_of()
    assert (values["advantage"].keys(), values["rollout"].get("engine")) == ({"scale", "combine"}, None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"use_vllm": True},
            r"needs the Python of an environment with vLLM: overrides=\{'rollout\.engine\.python': 'vllm-env/bin/pyt",
        ),
        ({"use_vllm": True, "overrides": {"rollout.engine.url": "http://a"}}, "or set vllm_mode='server'"),
        ({"use_vllm": True, "vllm_mode": "ray"}, "vllm_mode='ray' must be 'server' or 'colocate'"),
        ({"vllm_mode": "server"}, "vllm_mode='server' has no effect with use_vllm=False, only with True: leave it out"),
        ({"vllm_max_model_length": 512}, "vllm_max_model_length=512 has no effect with use_vllm=False"),
        (
            {**SERVER, "vllm_gpu_memory_utilization": 0.5},
            "vllm_gpu_memory_utilization=0.5 has no effect with vllm_mode='server', only with 'colocate'",
        ),
        (
            {"use_vllm": True, "overrides": PYTHON, "vllm_server_port": 80},
            "vllm_server_port=80 has no effect with vllm_mode='colocate', only with 'server'",
        ),
        (
            {**SERVER, "vllm_server_base_url": "http://a", "vllm_server_host": "b"},
            "vllm_server_host='b' has no effect with vllm_server_base_url='http://a', only with None",
        ),
        ({**SERVER, "vllm_server_base_url": "localhost:8000"}, "vllm_server_base_url must be such as http://"),
        ({**SERVER, "vllm_structured_outputs_regex": "a+"}, "samples are of the distribution that is trained"),
        ({"vllm_importance_sampling_mode": "token_mask"}, "has no effect with use_vllm=False"),
        (
            {**SERVER, "vllm_importance_sampling_correction": False, "vllm_importance_sampling_clip_max": 2.0},
            "clip_max=2.0 has no effect with vllm_importance_sampling_correction=False",
        ),
        (
            {**SERVER, "vllm_importance_sampling_cap": 2.0, "vllm_importance_sampling_clip_max": 4.0},
            "cap=2.0 and vllm_importance_sampling_clip_max=4.0 are two forms of one number",
        ),
        ({**SERVER, "vllm_importance_sampling_mode": "token"}, "must be 'token_truncate', .*'sequence_mask'"),
        (
            {**SERVER, "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_min": 0.5},
            "truncated weights have no lower bound; leave it out, or set token_mask",
        ),
        (
            {**SERVER, "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
            "clip_max=None must be at least 1 with vllm_importance_sampling_mode='token_truncate'",
        ),
        ({**SERVER, "vllm_importance_sampling_clip_max": 1.0}, "clip_max=1.0 must be above 1"),
        ({**SERVER, "vllm_importance_sampling_clip_min": 4.0}, "clip_min=4.0 from 0 to below 1"),
        ({**SERVER, "loss_type": "vespo"}, "set vllm_importance_sampling_correction=False"),
    ],
)
def test_combinations_that_mmgrpo_does_not_have(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        values_of(**arguments)


def test_differences_of_servers_are_named() -> None:
    notes = differences(GRPOConfig(**SERVER, off_policy_mask_threshold=0.1), DATA)
    assert [note.partition(":")[0] for note in notes] == [
        "vllm_mode='server'", "vllm_mode='server'", "off_policy_mask_threshold",
    ]  # fmt: skip
    assert "must be vLLM's, started by the command of https://mmgrpo.github.io/mmgrpo/how-to/engines/" in notes[0]
    (note,) = differences(GRPOConfig(use_vllm=True, max_steps=2), DATA)
    assert note.startswith("vllm_mode='colocate': the run starts one vLLM server in a separate process")


@pytest.mark.parametrize("mode", ["server", "colocate"])
def test_converted_file_has_the_engine_of_the_trainer(mode: str, tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(f"max_steps: 2\nuse_vllm: true\nvllm_mode: {mode}\n")
    text = converted(tmp_path / "c.yaml")
    (tmp_path / "run.yaml").write_text(text)
    overrides = PYTHON if mode == "colocate" else {}
    expected = validated(
        {**values_of(use_vllm=True, vllm_mode=mode, overrides=overrides), "policy": {"name": "language"}}
    )
    config = load_config(tmp_path / "run.yaml")
    assert (config.rollout, config.advantage) == (expected.rollout, expected.advantage)
    note = "# * rollout.engine.python: set the Python of an environment with vLLM (https://"
    assert (note in text) == (mode == "colocate")
    assert f"# * not as in TRL: vllm_mode='{mode}': the " in text
    assert yaml.safe_load(text)["rollout"]["engine"]["name"] == "vllm"


def test_suggestions_name_the_engine_and_the_weights() -> None:
    for name, text in {
        "use_vllm": "TRL's use_vllm is rollout.engine: {name: vllm, url: ADDRESS}, or python: ENV/bin/python",
        "vllm_mode": "TRL's vllm_mode is rollout.engine: {name: vllm, url: ADDRESS} for server, python: ",
        "vllm_server_port": "is rollout.engine: {name: vllm, url: http://HOST:PORT}",
        "vllm_max_model_length": '{name: vllm, python: ENV/bin/python, options: ["--max-model-len", "N"]}',
        "vllm_importance_sampling_clip_max": "{name: sampler_weight_truncated, cap: NUMBER}], for a mask also adv",
        "vllm_group_port": "TRL's vllm_group_port is not supported; leave it out: weights get to the server as files",
    }.items():
        assert any(text in sentence for sentence in peer_suggestions(name)), name


class ShiftedServer:
    """A token server that misstates log-probabilities by ``SHIFT``, up for even tokens and down for odd ones.

    No completion is sampled twice, so that its tokens identify it.

    Attributes:
        server: the server.
        logprobs: the tokens of each completion -> their log-probabilities, as the server states them.
    """

    def __init__(self) -> None:
        self.server, self.logprobs = TokenServer(make("llama")[0]), dict[tuple[int, ...], list[float]]()
        self.choose, self.lock = self.server.choice, threading.Lock()
        self.server.choice = self.choice  # pyrefly: ignore[bad-assignment]

    def choice(self, model: Any, token_ids: list[int], params: dict[str, Any], index: int) -> dict[str, Any]:
        with self.lock:
            results = (self.choose(model, token_ids, params, index + attempt) for attempt in itertools.count(step=1000))
            result = next(result for result in results if tuple(result["token_ids"]) not in self.logprobs)
            tokens, content = tuple(result["token_ids"]), result["logprobs"]["content"]
            stated = [
                entry["logprob"] + (SHIFT if token % 2 else -SHIFT)
                for token, entry in zip(tokens, content, strict=True)
            ]
            self.logprobs[tokens] = stated
        result["logprobs"] = {"content": [{"logprob": logprob} for logprob in stated]}
        return result


@pytest.fixture
def shifted() -> Iterator[ShiftedServer]:
    shifted = ShiftedServer()
    yield shifted
    shifted.server.end()


def replayed(generations: list[list[list[int]]], logprobs: dict[tuple[int, ...], list[float]]) -> type[trl.GRPOTrainer]:
    """TRL's trainer, whose generations are those of a server."""
    remaining = iter(generations)

    class Replaying(trl.GRPOTrainer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.use_vllm = True  # without its connection to a server, which needs vLLM

        def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
            generation = next(remaining)
            return generation, [logprobs[tuple(ids)] for ids in generation]

    return Replaying


MODES: dict[str, dict[str, Any]] = {
    "token_mask": {"vllm_importance_sampling_clip_max": 1.2, "beta": 0.5},
    "token_truncate": {"vllm_importance_sampling_clip_max": 1.2},
    "sequence_truncate": {"vllm_importance_sampling_clip_max": 1.2},
    "sequence_mask": {"vllm_importance_sampling_clip_min": 0.4, "loss_type": "grpo"},
}


@pytest.mark.first_case
@pytest.mark.parametrize("mode", MODES)
def test_samples_of_a_server_are_trained_with_the_weights_of_trl(
    mode: str, shifted: ShiftedServer, tmp_path: Path
) -> None:
    save("llama", tmp_path / "model")
    generations: list[list[list[int]]] = []

    def reward(completion_ids: list[list[int]], target: list[int], **columns: Any) -> list[float]:
        generations.append(completion_ids)
        return [float(sum(ids) % 7 + number) for ids, number in zip(completion_ids, target, strict=True)]

    arguments: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"), "use_cpu": True, "bf16": False, "max_completion_length": 8,
        "num_generations": 4, "max_steps": 2, "learning_rate": 1e-2, "shuffle_dataset": False, "save_strategy": "no",
        "gradient_checkpointing": False, "temperature": 2.0, "adam_epsilon": 1e-4, **MODES[mode],
    }  # fmt: skip
    weights = {name: arguments.pop(name) for name in list(arguments) if name.startswith("vllm")}
    weights["vllm_importance_sampling_mode"] = mode
    server = {"use_vllm": True, "vllm_mode": "server", "vllm_server_base_url": shifted.server.url}
    config = GRPOConfig(**arguments, **weights, **server, overrides={"rollout.engine.max_mismatch": 1.0})
    ours = GRPOTrainer(str(tmp_path / "model"), reward, config, ROWS)
    ours.train()
    sampled = [generation for generation in generations if len(generation) == 8]
    assert len(sampled) == 2
    assert {tuple(ids) for generation in sampled for ids in generation} <= shifted.logprobs.keys()
    lines = ours.trainer.folder.lines("metrics.jsonl")
    assert [line["rollout/engine_mismatch"] for line in lines] == pytest.approx([SHIFT, SHIFT], abs=1e-3)
    masked = [line.get("credit/sampler_weight_within/changed_frac", 0.0) for line in lines]
    assert all(0.1 < frac < 0.9 for frac in masked) if mode.endswith("mask") else masked == [0.0, 0.0]
    results = {}
    for correction in (True, False):
        with warnings.catch_warnings(action="ignore"):
            theirs = replayed(sampled, shifted.logprobs)(
                model=str(tmp_path / "model"),
                reward_funcs=[reward],  # pyrefly: ignore[bad-argument-type]
                args=trl.GRPOConfig(**arguments, **weights, vllm_importance_sampling_correction=correction),
                train_dataset=ROWS,
            )
            theirs.train()
        pairs = zip(theirs.model.parameters(), ours.model.parameters(), strict=True)  # pyrefly: ignore[missing-attribute]
        results[correction] = max(float((their - our).detach().abs().max()) for their, our in pairs)
    assert results[True] < 1e-4
    assert results[False] > 1e-3


@pytest.mark.parametrize("paths", ["of TRL", "any"])
def test_a_server_that_is_not_of_vllm_is_an_error_before_the_first_sample(
    paths: str, shifted: ShiftedServer, tmp_path: Path
) -> None:
    def reply(path: str, body: Any) -> tuple[int, Any]:
        ours = path in ("/health/", "/generate/", "/get_world_size/") or paths == "any"
        return (200, {}) if ours else (404, {"detail": "Not Found"})

    shifted.server.reply = reply
    save("llama", tmp_path / "model")
    config = GRPOConfig(
        str(tmp_path / "out"), use_cpu=True, bf16=False, num_generations=4, vllm_server_base_url=shifted.server.url,
        **SERVER,
    )  # fmt: skip
    trainer = GRPOTrainer(
        str(tmp_path / "model"), lambda completions, **columns: [0.0] * len(completions), config, ROWS
    )
    with pytest.raises(ConfigError, match=r"Start it with: VLLM_SERVER_DEV_MODE=1 python -m vllm\.entrypoints"):
        trainer.train()
    assert not shifted.server.bodies("/generate/")
