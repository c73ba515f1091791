"""Rollouts with each approximation of the untrained steps, and without: forwards and CPU seconds.

python -m benchmarks.caches [--steps 16] [--window 0 4] [--group 2] [--layers 6] [--repeat 2]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

import torch
from diffusers.models.transformers.transformer_flux import FluxTransformer2DModel
from diffusers.pipelines.flux.pipeline_flux import FluxPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.rescoring import rescore

from mmgrpo.system.extras import is_installed
from mmgrpo.types import Plan, Prompt, Rollout
from tests.tiny.flux import PACKED_CHANNELS, flux
from tests.tiny.text_encoders import WIDTH

PIXELS = 64
PROMPT = Prompt("a red fox on a table")


def pipeline_of(layers: int) -> FluxPipeline:
    """A FLUX pipeline whose transformer has random weights, 256 image tokens and blocks of width 256."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        pipeline = flux()
        pipeline.transformer = FluxTransformer2DModel(
            in_channels=PACKED_CHANNELS,
            num_layers=layers,
            num_single_layers=layers,
            attention_head_dim=64,
            num_attention_heads=4,
            joint_attention_dim=WIDTH,
            pooled_projection_dim=WIDTH,
            guidance_embeds=True,
            axes_dims_rope=(16, 24, 24),
        ).eval()
    return pipeline


def settings_of(steps: int) -> dict[str, dict[str, Any]]:
    """Settings of the policy by name, ``none`` first; with random weights a threshold that all steps meet."""
    caches = {
        "FirstBlockCache": {"threshold": 10.0},
        "TaylorSeerCache": {"cache_interval": 3, "disable_cache_before_step": 2},
        "MagCache": {"num_inference_steps": steps, "mag_ratios": [1.0] * steps},
    }
    formats = ("Float8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig") if is_installed("torchao") else ()
    return {
        "none": {},
        **{name: {"cache": {"name": name, **fields}} for name, fields in caches.items()},
        **{name: {"step_quantization": {"name": name}} for name in formats},
    }


def policy_of(arguments: argparse.Namespace, settings: Mapping[str, Any]) -> DenoisingPolicy:
    """A policy of the same random pipeline each time."""
    call = {"height": PIXELS, "width": PIXELS, "num_inference_steps": arguments.steps, "guidance_scale": 3.5}
    call["max_sequence_length"] = 64
    return DenoisingPolicy(pipeline_of(arguments.layers), {"call": call, "lora": {"rank": 2}, **settings})


def sampled(policy: DenoisingPolicy, arguments: argparse.Namespace) -> tuple[Rollout, float]:
    """A rollout of one group, and its CPU seconds."""
    start, size = arguments.window
    start_s = time.process_time()
    rollout = policy.rollout(
        [PROMPT], group_size=arguments.group, seed=0, plan=Plan(stochastic=tuple(range(start, start + size)))
    )
    return rollout, time.process_time() - start_s


def main() -> None:
    """Prints a line per setting and repetition, each compared with the rollout without one just before it."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 16), ("group", 2), ("layers", 6), ("repeat", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--window", type=int, nargs=2, default=(0, 4), help="first trained step, and their number")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    policies = {name: policy_of(arguments, values) for name, values in settings_of(arguments.steps).items()}
    plain = policies.pop("none")
    for policy in (plain, *policies.values()):
        sampled(policy, arguments)  # with the check that replay is exact
    size = sum(parameter.numel() for parameter in plain.pipeline.transformer.parameters()) / 1e6
    print(json.dumps({"parameters_M": round(size, 1), "tokens": (PIXELS // 4) ** 2}))
    for name, policy in policies.items():
        for _ in range(arguments.repeat):
            expected, plain_s = sampled(plain, arguments)
            rollout, cached_s = sampled(policy, arguments)
            gap_BT = (rescore(policy, rollout, values=()).old_logprob_BT - rollout.old_logprob_BT).abs()
            result = {
                "name": name,
                "forwards": [expected.num_forwards, round(rollout.num_forwards, 2)],
                "cpu_s": [round(plain_s, 2), round(cached_s, 2)],
                "ratio": round(plain_s / cached_s, 2),
                "on_policy_gap": float(gap_BT[rollout.mask_BT].max()),
            }
            print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
