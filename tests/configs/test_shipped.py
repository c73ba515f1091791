"""Shipped models and methods on tiny models of the real classes: targets of LoRA, arguments, windows.

``python -m mmgrpo.check_data`` checks the files themselves.
"""

from __future__ import annotations

import inspect
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from diffusers import QwenImageEditPipeline, StableDiffusion3Pipeline
from mmgrpo.policies.adapter_formats import DiffusersFiles
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.lora_targets import adapter_targets
from mmgrpo.policies.diffusion.settings import DenoisingSettings
from mmgrpo.policies.weights import Weights
from torch import nn

from mmgrpo.algorithm import Algorithm
from mmgrpo.config import RunConfig
from mmgrpo.config.loading import load_config, shipped
from mmgrpo.config.sections import at
from mmgrpo.errors import ConfigError
from mmgrpo.training.build import plan_at
from tests.breadth.assembly import build
from tests.configs.written import written
from tests.tiny.pipelines import PIPELINES

METHODS = shipped("methods")
TINY = {
    "sd3.5-medium": "sd3",
    "flux.1-dev": "flux",
    "flux.1-kontext-dev": "flux-kontext",
    "flux.2-klein-base-4b": "flux2-klein",
    "qwen-image": "qwen-image",
    "qwen-image-edit": "qwen-image",
    "wan2.1-1.3b": "wan",
    "wan2.2-ti2v-5b": "wan",
    "wan2.2-t2v-a14b": "wan",
    "hunyuanvideo-1.5": "HunyuanVideo15Pipeline",
    "ltx-video": "ltx",
    "cogvideox-2b": "cogvideox",
    "stable-audio-open": "StableAudioPipeline",
}
OTHER_CLASSES = {"models/qwen-image-edit": QwenImageEditPipeline}  # than that of the tiny one, with its transformer
TINY_LANGUAGE = {
    "qwen2.5-3b": "qwen2",
    "qwen2.5-vl-3b": "qwen2.5-vl",
    "qwen3-vl-4b": "qwen3-vl",
    "qwen2-audio-7b": "qwen2-audio",
}
DRAWING_MODELS = [f"models/{name}" for name in TINY]
WRITING_MODELS = [f"models/{name}" for name in TINY_LANGUAGE]
MODELS = [*DRAWING_MODELS, *WRITING_MODELS]


def tiny_of(name: str) -> Any:
    """The tiny pipeline of a model's class."""
    tiny = TINY[name.removeprefix("models/")]
    return PIPELINES[tiny].build() if tiny in PIPELINES else build(tiny)


def over(model: str, method: str, folder: Path, *, use_paper_hparams: bool = False) -> RunConfig:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"include": [model, method]}))
    return load_config(path, {"use_paper_hparams": use_paper_hparams})


def settings_of(config: RunConfig) -> DenoisingSettings:
    assert config.policy is not None
    return DenoisingSettings(**config.policy.settings)


def test_expected_methods_ship() -> None:
    drawing = {
        "awm",
        "branch-grpo",
        "diffusion-nft",
        "dance-grpo",
        "flow-grpo",
        "flow-grpo-fast",
        "grpo-guard",
        "mix-grpo",
        "mix-grpo-flash",
        "chunk-grpo",
        "dgpo",
        "flow-dppo",
        "g2rpo",
        "sage-grpo",
        "tdm-r1",
        "tempflow-grpo",
    }
    any_kind = {"grpo", "dr-grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "gpg", "luspo", "bnpo", "vespo", "rloo"}
    any_kind |= {"token-mean-grpo", "nsr", "ngrpo", "pass-k-training", "f-grpo", "mapo"}
    any_kind |= {"gfpo", "cppo", "archer", "dcpo-clip", "clip-cov", "kl-cov", "klear-gppo", "nft"}
    any_kind |= {"rl-zvp", "edge-grpo", "gtpo", "tempo", "lambda-grpo", "gvpo", "pacs", "real", "disco", "online-dpo"}
    any_kind |= {"prorl", "greso", "competence-curriculum", "simple-policy-optimization", "spo"}
    any_kind |= {"treerpo"}
    reading = {"luffy", "mm-helix", "repo", "rl-plus", "scaf-grpo"}
    assert drawing | any_kind | reading <= {name.removeprefix("methods/") for name in METHODS}
    assert set(MODELS) == set(shipped("models"))


@cache
def tiny_sd3() -> StableDiffusion3Pipeline:
    return PIPELINES["sd3"].build()  # pyrefly: ignore[bad-return]


def windows(name: str, folder: Path, steps: range) -> list[tuple[int, ...] | None]:
    config = over("models/sd3.5-medium", name, folder, use_paper_hparams=True)
    call = {"num_inference_steps": settings_of(config).call["num_inference_steps"]}
    policy = DenoisingPolicy(tiny_sd3(), {"call": call})
    return [plan_at(Algorithm.of(config), policy, step).stochastic for step in steps]


def test_windows_of_all_steps(tmp_path: Path) -> None:
    for name in ("methods/flow-grpo", "methods/grpo-guard"):  # ten steps, the last of which is never sampled
        assert set(windows(name, tmp_path, range(3))) == {tuple(range(9))}


def test_window_of_flow_grpo_fast(tmp_path: Path) -> None:
    result = windows("methods/flow-grpo-fast", tmp_path, range(100))
    assert set(result) == {(0, 1, 2), (1, 2, 3), (2, 3, 4)}


def test_window_of_dance_grpo(tmp_path: Path) -> None:
    result = windows("methods/dance-grpo", tmp_path, range(200))
    assert {len(window or ()) for window in result} == {6}  # int(0.6 * 11)
    assert {step for window in result for step in window or ()} == set(range(11))


def test_window_of_mix_grpo(tmp_path: Path) -> None:
    result = windows("methods/mix-grpo", tmp_path, range(501))
    assert result[0] == result[24] == (0, 1, 2, 3)
    assert result[25] == (1, 2, 3, 4)
    assert result[299] == (11, 12, 13, 14)  # the last of the published 300 iterations
    assert result[499] == (19, 20, 21, 22)  # the reference code never trains step 23
    assert result[500] == (0, 1, 2, 3)


@pytest.mark.parametrize("name", DRAWING_MODELS)
def test_lora_targets_and_call_arguments_exist_in_the_class(name: str) -> None:
    settings = settings_of(load_config(name))
    pipeline = tiny_of(name)
    arguments = inspect.signature(OTHER_CLASSES.get(name, type(pipeline)).__call__).parameters
    assert set(settings.call) | set(settings.evaluation_call) <= set(arguments)
    assert settings.lora is not None
    linear = [path for path, module in pipeline.transformer.named_modules() if isinstance(module, nn.Linear)]
    targets = settings.lora.targets or adapter_targets({"transformer": pipeline.transformer})
    matched = {t: [p for p in linear if p == t or p.endswith(f".{t}")] for t in targets}
    assert [target for target, paths in matched.items() if not paths] == []
    Weights({"transformer": pipeline.transformer}, settings.lora, targets, DiffusersFiles())
    adapted = {
        path.removesuffix(".lora_A.default.weight")
        for path, _ in pipeline.transformer.named_parameters()
        if path.endswith(".lora_A.default.weight")
    }
    assert adapted == {path for paths in matched.values() for path in paths}


def test_second_attention_of_sd35_is_left_alone() -> None:
    settings = settings_of(load_config("models/sd3.5-medium"))
    plain = tiny_sd3().transformer
    transformer = plain.from_config({**plain.config, "dual_attention_layers": (0,)})
    Weights({"transformer": transformer}, settings.lora, (), DiffusersFiles())
    paths = [path for path, _ in transformer.named_parameters() if ".lora_" in path]
    assert any(".attn.to_q." in path for path in paths)
    assert not any(".attn2." in path for path in paths)


def test_unknown_source_key_raises() -> None:
    with pytest.raises(ConfigError, match=r"no key 'policy\.strenght'"):
        at(written("methods/flow-grpo"), "policy.strenght")
