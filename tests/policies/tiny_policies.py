"""Policies on the tiny pipelines: settings, prompts, and a fresh copy for every test that trains one."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from diffusers import DiffusionPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.components import find_denoisers
from torch import nn

from mmgrpo.errors import MmgrpoError
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
    """Prompts, with the image that editing pipelines are shown."""
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


@dataclass(frozen=True, slots=True)
class _Measurements:
    """What a policy has measured before its first update, by kinds of rows that equal policies share."""

    needs_full: Mapping[Any, bool]
    compared: frozenset[Any]
    longest: Mapping[Any, Mapping[str, int]]

    @classmethod
    def of(cls, policy: DenoisingPolicy, prompts: Sequence[Prompt]) -> _Measurements | None:
        """Those of a rollout of these prompts; None if its rows run alone or have media, which change the policy."""
        with suppress(MmgrpoError):
            policy.rollout(prompts, group_size=2, seed=0)
            exactness, form = policy._sampler_loop.exactness, policy._instrumented.form
            if not (policy._batches.alone or form.single or form.is_verified):
                longest = {kind: dict(lengths) for kind, lengths in policy._parity._longest.items()}
                return cls(dict(exactness._needs_full), frozenset(exactness._compared), longest)
        return None

    def hand_to(self, policy: DenoisingPolicy) -> None:
        """Makes a policy measure only what is not among these."""
        policy._sampler_loop.exactness._needs_full.update(self.needs_full)
        policy._sampler_loop.exactness._compared.update(self.compared)
        policy._parity._longest.update({kind: dict(lengths) for kind, lengths in self.longest.items()})


_measurements: dict[bytes, _Measurements | None] = {}


def measurement_key(make: Callable[..., Policy], prompts: Sequence[Prompt], settings: Mapping[str, Any]) -> bytes:
    """Equal only for the same function, settings of equal content, and prompts of equal texts, columns and images.

    Raises PicklingError or AttributeError for a function, or a setting, that is no name of a module: what it depends
    on is not in its name.
    """
    return pickle.dumps((make, list(prompts), sorted(settings.items())))


def measured(make: Callable[..., DenoisingPolicy], prompts: Sequence[Prompt], **settings: Any) -> DenoisingPolicy:
    """A new policy with the measurements of an equal one, which take most of the time of a small test.

    They are made once per process, for each function and its settings. Tests of measurements use ``make`` itself.

    Args:
        make: settings -> a policy, with the same weights each time.
        prompts: of the rollout that is measured.
        settings: for ``make``.

    Returns:
        The policy; it measures rows of other kinds, and longer prompts, as any policy does.
    """
    key = measurement_key(make, prompts, settings)
    if key not in _measurements:
        with torch.random.fork_rng(devices=[]):
            _measurements[key] = _Measurements.of(make(**settings), prompts)
    policy, measurements = make(**settings), _measurements[key]
    if measurements is not None:
        measurements.hand_to(policy)
    return policy


def measured_policy_of(name: str, **settings: Any) -> DenoisingPolicy:
    """``policy_of``, measured once."""
    return measured(policy_of, prompts_of(name), name=name, **settings)
