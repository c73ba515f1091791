"""Policies on the tiny pipelines: settings, prompts, and a fresh copy for every test that trains one."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from diffusers import DiffusionPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.components import find_denoisers
from torch import nn

from mmgrpo.policy import Policy
from mmgrpo.types import Prompt, Rollout
from tests.tiny.pipelines import PIPELINES

NATIVE = ("sd15-euler-a", "sd15-lcm")
VARIANCE_PRESERVING = ("sd15", "sd15-v", "sd15-dpm", "sd15-inpaint", "sdxl", "pixart-sigma", "cogvideox")
CONVERTING = {"dtype", "components", "denoisers"}
"""Settings that change encoders or decoders."""
TEXTS = ("a red fox", "two blue squares on a table")


def settings_of(
    name: str, *, guided: bool = False, batch: int = 8, without: Sequence[str] = (), **others: Any
) -> dict[str, Any]:
    """Settings that train small adapters on a tiny pipeline, with its usual arguments except these."""
    tiny = PIPELINES[name]
    call = {**tiny.call, **(tiny.cfg if guided else tiny.no_cfg)}
    call = {key: value for key, value in call.items() if key not in without}
    if guided and tiny.needs_negative:
        call["negative_prompt"] = " "
    if "mask_image" in tiny.per_row:
        call |= tiny.per_row
    sampler = "native" if name in NATIVE else "ddim" if name in VARIANCE_PRESERVING else "flow_sde"
    return {
        "call": {**call, **others.pop("call", {})},
        "sampler": sampler,
        "strength": 0.7,
        "lora": {"rank": 2, "alpha": 2.0},
        "rollout_batch": batch,
        "update_batch": batch,
        **others,
    }


@cache
def _built(name: str) -> DiffusionPipeline:
    return PIPELINES[name].build()


def pipeline_of(name: str) -> Any:
    """A new pipeline; all those of a name are equal."""
    return copy.deepcopy(_built(name))


def build_sd3() -> Any:
    """For a configuration that names a Python function."""
    return pipeline_of("sd3")


def policy_of(name: str, pipeline: Any = None, **settings: Any) -> DenoisingPolicy:
    """A separate policy; policies without a pipeline share encoders and decoders, which none of them changes.

    The adapters' first factors are the same each time.
    """
    if pipeline is None:
        pipeline = pipeline_of(name) if CONVERTING & settings.keys() else _with_shared_parts(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DenoisingPolicy(pipeline, settings_of(name, **settings))


def _with_shared_parts(name: str) -> Any:
    """The built pipeline with copies of its denoisers and scheduler."""
    built = _built(name)
    copies = {"scheduler", *find_denoisers(built)}
    shared = [part for key, part in built.components.items() if part is not None and key not in copies]
    return copy.deepcopy(built, {id(part): part for part in shared})


def prompts_of(name: str, texts: Sequence[str] = TEXTS) -> list[Prompt]:
    """Prompts, with the picture that editing pipelines are shown."""
    per_row = PIPELINES[name].per_row
    pictures = (per_row["image"],) if set(per_row) == {"image"} else ()
    return [Prompt(text, images=pictures) for text in texts]


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    """Every parameter of the pipeline's components."""
    assert isinstance(policy, DenoisingPolicy)
    parts = policy.pipeline.components.values()
    return [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]


def final_latent(rollout: Rollout, row: int = 0) -> torch.Tensor:
    """(1, ...) what the last step of a sample returned."""
    return rollout.trace.transitions[row][-1].next_state
