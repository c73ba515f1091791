"""Every tiny pipeline keeps the laws of a policy, guided and unguided."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from torch import nn

from mmgrpo.policies.denoising import DenoisingPolicy
from mmgrpo.policy import Policy
from mmgrpo.types import Plan, Prompt
from tests.policies import contract
from tests.policies.contract import Subject
from tests.tiny.pipelines import PIPELINES, Tiny

EVERYDAY = ("sd15", "sdxl", "sd3", "flux", "flux2", "qwen-image", "sana", "z-image", "wan")
NATIVE = ("sd15-euler-a", "sd15-lcm")
VARIANCE_PRESERVING = ("sd15", "sd15-v", "sd15-dpm", "sd15-inpaint", "sdxl", "pixart-sigma", "cogvideox")
TEXTS = ("a red fox", "two blue squares on a table")


def settings_of(tiny: Tiny, *, guided: bool, batch: int = 8, **others: Any) -> dict[str, Any]:
    """Settings that train small adapters on a tiny pipeline."""
    call = {**tiny.call, **(tiny.cfg if guided else tiny.no_cfg)}
    if guided and tiny.needs_negative:
        call["negative_prompt"] = " "
    if "mask_image" in tiny.per_row:
        call |= tiny.per_row
    sampler = "native" if tiny.name in NATIVE else "ddim" if tiny.name in VARIANCE_PRESERVING else "flow_sde"
    return {
        "call": call,
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


def pipeline_of(tiny: Tiny) -> DiffusionPipeline:
    """A pipeline of one's own; all those of a name are equal."""
    return copy.deepcopy(_built(tiny.name))


def policy_of(tiny: Tiny, settings: Mapping[str, Any]) -> DenoisingPolicy:
    """A policy of one's own; the adapters' first factors are the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return DenoisingPolicy(pipeline_of(tiny), settings)


def prompts_of(tiny: Tiny, texts: Sequence[str] = TEXTS) -> list[Prompt]:
    """Prompts, with the picture that editing pipelines are shown."""
    pictures = (tiny.per_row["image"],) if set(tiny.per_row) == {"image"} else ()
    return [Prompt(text, images=pictures) for text in texts]


def parameters_of(policy: Policy) -> list[nn.Parameter]:
    """Every parameter of the pipeline's components."""
    assert isinstance(policy, DenoisingPolicy)
    parts = policy.pipeline.components.values()
    return [parameter for part in parts if isinstance(part, nn.Module) for parameter in part.parameters()]


def _subject(name: str, *, guided: bool, **others: Any) -> Subject:
    tiny = PIPELINES[name]

    def make(batch: int) -> DenoisingPolicy:
        return policy_of(tiny, settings_of(tiny, guided=guided, batch=batch, **others))

    # With these schedules a state of size 6 meets a std of 0.03: 6 * 6e-8 / 0.03 = 1e-5 for the rounding of an element.
    rounding = 1e-5 if name in (*VARIANCE_PRESERVING, *NATIVE) else 1e-6
    return Subject(
        make=make, parameters=parameters_of, prompts=prompts_of(tiny), rounding=rounding, min_trained_frac=0.9
    )


def _variants(*, unguided: bool) -> list[Any]:
    return [
        pytest.param(
            (name, guided),
            id=f"{name}-{'guided' if guided else 'unguided'}",
            marks=() if name in EVERYDAY else pytest.mark.slow,
        )
        for name in PIPELINES
        for guided in ((True, False) if unguided else (True,))
    ]


@pytest.fixture(params=_variants(unguided=False))
def subject(request: pytest.FixtureRequest) -> Subject:
    """A guided pipeline."""
    return _subject(request.param[0], guided=request.param[1])


@pytest.fixture(params=_variants(unguided=True))
def any_subject(request: pytest.FixtureRequest) -> Subject:
    """A pipeline, with or without guidance."""
    return _subject(request.param[0], guided=request.param[1])


def test_on_policy_gap_is_zero(any_subject: Subject) -> None:
    contract.check_on_policy_gap(any_subject)


def test_on_policy_gap_is_zero_with_shared_noise_and_a_window(subject: Subject) -> None:
    contract.check_on_policy_gap(subject, Plan(stochastic=(1, 2), share_noise=True))


def test_every_decision_is_streamed_once(subject: Subject) -> None:
    contract.check_every_decision_once(subject)


def test_rows_and_batches_change_nothing(subject: Subject) -> None:
    contract.check_rows_and_batches(subject)


def test_samples_are_functions_of_their_keys(subject: Subject) -> None:
    contract.check_seeds(subject)


def test_prompt_ids_key_the_noise(subject: Subject) -> None:
    contract.check_prompt_ids(subject)


def test_reference_is_the_untrained_policy(subject: Subject) -> None:
    contract.check_reference(subject)


def test_save_and_load_round_trip(subject: Subject, tmp_path: Path) -> None:
    contract.check_save_and_load(subject, tmp_path)


def test_gradients_reach_what_is_trained_alone(subject: Subject) -> None:
    contract.check_gradients(subject)
