"""One pipeline class whose adapters are saved, and loaded into the stock pipeline by the code that their card shows."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import diffusers
import numpy as np
import torch
from mmgrpo.policies.diffusion import DenoisingPolicy
from mmgrpo.policies.diffusion.call_form import form_of
from mmgrpo.policies.diffusion.denoising_rows import DenoisingRow
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from mmgrpo.errors import ConfigError
from mmgrpo.report.usage_code import FOLDER, BaseModelSource, exported_in, usage
from tests.breadth import assembly
from tests.breadth.denoising import read_page
from tests.breadth.trial import prompts_and_call
from tests.policies.contract import move

SEED = 11
LORA = {"rank": 2, "alpha": 4.0}


BFLOAT16_ALONE = ("ZImageOmniPipeline",)
"""Classes whose stock call encodes images in bfloat16 whatever the dtype of the VAE, so that it fails in float32."""


def names(*, called: bool = False) -> list[str]:
    """The classes that the tables can build and that step by a scheduler; those alone whose stock calls work."""
    left_out = ("not built", "not supported", *(("stock fails", "needs a GPU") if called else ()))
    fails = BFLOAT16_ALONE if called else ()
    return sorted(name for name, row in read_page().items() if row.verdict not in left_out and name not in fails)


def stock_with_adapters(name: str, folder: Path) -> Any:
    """The stock pipeline of a class after the code of the card for a folder, its base built in place of read."""
    code = usage(exported_in(folder), BaseModelSource(model=name))
    variables: dict[str, Any] = {}
    with mock.patch.object(diffusers.DiffusionPipeline, "from_pretrained", return_value=assembly.build(name)):
        exec(code.replace(FOLDER, repr(str(folder))), variables)
    return variables["pipeline"]


def policy_of(name: str, pipeline: Any) -> DenoisingPolicy:
    """The pipeline with random adapters, on all linear layers where it has no attention."""
    settings = {"call": prompts_and_call(name, pipeline)[1], **(assembly.recipes()[name].get("settings") or {})}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        try:
            policy = DenoisingPolicy(pipeline, {**settings, "lora": LORA})
        except ConfigError as error:
            if "match no module" not in str(error):
                raise
            policy = DenoisingPolicy(assembly.build(name), {**settings, "lora": {**LORA, "targets": "all-linear"}})
    move(policy.trainable, scale=0.1)
    return policy


def differences(policy: DenoisingPolicy, stock: Any) -> list[str]:
    """Adapted layers, by component and path, that the stock pipeline lacks or has otherwise than the policy.

    Raises AssertionError where the policy adapts none.
    """
    wanted = dict(_added(policy.pipeline, policy.weights.modules))
    loaded = dict(_added(stock, policy.weights.modules))
    assert wanted
    return sorted(
        layer
        for layer in wanted.keys() | loaded.keys()
        if layer not in wanted or layer not in loaded or not torch.equal(wanted[layer], loaded[layer])
    )


def both(name: str) -> tuple[DenoisingPolicy, Any]:
    """A policy with random adapters, and the stock pipeline that has loaded them."""
    policy = policy_of(name, assembly.build(name))
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder))
        return policy, stock_with_adapters(name, Path(folder))


def output_gap(name: str, policy: DenoisingPolicy, stock: Any) -> float:
    """Largest difference between outputs of the policy's pipeline and the stock one; 1 is all of a pixel's range.

    Raises AssertionError for other shapes, or no outputs at all.
    """
    wanted, loaded = outputs(name, policy.pipeline), outputs(name, stock)
    assert wanted
    assert [value.shape for value in wanted] == [value.shape for value in loaded]
    pairs = zip(wanted, loaded, strict=True)
    ranges = [(left.astype(float), other.astype(float), 255 if left.dtype == np.uint8 else 1) for left, other in pairs]
    return max(float(np.abs(left - other).max(initial=0)) / scale for left, other, scale in ranges)


def outputs(name: str, pipeline: Any) -> list[np.ndarray]:
    """What a call gives, for one prompt and seed."""
    prompts, call = prompts_and_call(name, pipeline)
    form = replace(form_of(type(pipeline).__call__, ()), single=True)
    row = DenoisingRow(prompt=prompts[0], seed=SEED, group=0, member=0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        return list(_arrays(pipeline(**form.arguments([row], call))))


def _arrays(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _arrays(entry)
    elif isinstance(value, Tensor):
        yield value.float().numpy()
    elif value is not None and not isinstance(value, bool | int | float | str):
        yield np.asarray(value)


def _added(pipeline: Any, names: Any) -> Iterator[tuple[str, Tensor]]:
    """What each adapted layer adds to its weight, or its adapters where that is no product."""
    for name in names:
        module: nn.Module = getattr(pipeline, name)
        for path, part in module.named_modules():
            if isinstance(part, BaseTunerLayer):
                layer: Any = part
                (adapter,) = layer.active_adapters
                yield f"{name}.{path}", layer.get_delta_weight(adapter).detach()
