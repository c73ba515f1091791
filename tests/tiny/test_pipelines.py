"""Every tiny pipeline runs from text, row by row as in a batch, and every weight that can learn gets a gradient."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import Tensor, nn

from tests.policies.families import families
from tests.tiny.pipelines import DENOISERS, PIPELINES

PROMPTS = ("a red cat on a house", "a blue square")
OTHER_PROMPT = "a large dog running"
SEEDS = (11, 22)
ROUNDING = 2  # grey levels of 255 that batching may move a pixel by

# The last block of these reads the text stream and drops what it writes there.
LAST_TEXT_QUERY = {
    f"transformer_blocks.1.attn.{name}" for name in ("add_q_proj.weight", "add_q_proj.bias", "norm_added_q.weight")
}
LAST_TEXT_OUTPUT = {
    f"transformer_blocks.1.{layer}.{kind}"
    for layer in ("attn.to_add_out", "txt_mlp.net.0.proj", "txt_mlp.net.2")
    for kind in ("weight", "bias")
}
UNREACHED = {"sd3": LAST_TEXT_QUERY, "qwen-image": LAST_TEXT_QUERY | LAST_TEXT_OUTPUT}

SAME_PARTS_AS_SD15 = {"sd15-v", "sd15-dpm", "sd15-euler-a", "sd15-lcm", "sd15-inpaint"}

every_pipeline = pytest.mark.parametrize("name", families("denoising", PIPELINES))
every_set_of_parts = pytest.mark.parametrize(
    "name", families("denoising", [name for name in PIPELINES if name not in SAME_PARTS_AS_SD15])
)
with_and_without_guidance = pytest.mark.parametrize("guided", [True, False], ids=["cfg", "no-cfg"])


@cache
def built(name: str) -> Any:
    return PIPELINES[name].build()


def call(pipeline: Any, name: str, prompts: tuple[str, ...], seeds: tuple[int, ...], guided: bool, kind: str) -> Any:
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    arguments = PIPELINES[name].arguments(prompts, guided=guided)
    return pipeline(**arguments, generator=generators, output_type=kind)[0]


@cache
def pixels(name: str, prompts: tuple[str, ...], seeds: tuple[int, ...], guided: bool) -> list[np.ndarray]:
    """Grey levels of each row: (frames, height, width, 3)."""
    rows = call(built(name), name, prompts, seeds, guided, "pil")
    clips = rows if PIPELINES[name].video else [[image] for image in rows]
    return [np.stack([np.asarray(frame, dtype=np.float64) for frame in clip]) for clip in clips]


def largest_difference(first: np.ndarray, second: np.ndarray) -> float:
    return float(np.abs(first - second).max())


def denoiser(pipeline: Any) -> nn.Module:
    return next(getattr(pipeline, name) for name in DENOISERS if getattr(pipeline, name, None) is not None)


def tensors(output: Any) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output
        return
    for part in output.values() if isinstance(output, dict) else output:
        yield from tensors(part)


@every_pipeline
@with_and_without_guidance
def test_two_prompts_give_two_images(name: str, guided: bool) -> None:
    rows = pixels(name, PROMPTS, SEEDS, guided)
    assert len(rows) == 2
    frames = PIPELINES[name].call.get("num_frames", 1)
    for row in rows:
        assert row.shape[0] == frames
        assert row.std() > 5


@every_pipeline
@with_and_without_guidance
def test_a_row_alone_is_the_row_of_the_batch(name: str, guided: bool) -> None:
    together = pixels(name, PROMPTS, SEEDS, guided)[1]
    alone = pixels(name, PROMPTS[1:], SEEDS[1:], guided)[0]
    assert largest_difference(together, alone) <= ROUNDING


@every_pipeline
@with_and_without_guidance
def test_a_prompt_changes_its_own_row_only(name: str, guided: bool) -> None:
    before = pixels(name, PROMPTS, SEEDS, guided)
    after = pixels(name, (OTHER_PROMPT, PROMPTS[1]), SEEDS, guided)
    assert largest_difference(before[0], after[0]) > ROUNDING
    assert largest_difference(before[1], after[1]) <= ROUNDING


@every_pipeline
def test_guidance_changes_the_output(name: str) -> None:
    guided, unguided = (pixels(name, PROMPTS, SEEDS, switch) for switch in (True, False))
    assert largest_difference(guided[0], unguided[0]) > ROUNDING


@every_pipeline
def test_latents_are_finite_and_every_weight_that_reaches_them_gets_a_gradient(name: str) -> None:
    model, calls = denoiser(built(name)), []
    hook = model.register_forward_pre_hook(lambda _, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    latents = call(built(name), name, PROMPTS, SEEDS, True, "latent")
    hook.remove()
    assert torch.isfinite(latents).all()
    args, kwargs = calls[0]
    output = torch.cat([part.flatten() for part in tensors(model(*args, **kwargs))])
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(0))
    names, parameters = zip(*model.named_parameters(), strict=True)
    gradients = torch.autograd.grad((output * weights).sum(), parameters, allow_unused=True)
    still = {name for name, gradient in zip(names, gradients, strict=True) if gradient is None or not gradient.any()}
    assert still == UNREACHED.get(name, set())


@every_set_of_parts
def test_builds_are_equal_and_leave_the_random_state_alone(name: str) -> None:
    state = torch.get_rng_state()
    first, second = built(name), PIPELINES[name].build()
    assert torch.equal(torch.get_rng_state(), state)
    for key, module in first.components.items():
        if not isinstance(module, nn.Module):
            continue
        assert not module.training
        others = second.components[key].state_dict()
        assert all(torch.equal(value, others[entry]) for entry, value in module.state_dict().items()), key
        assert {parameter.dtype for parameter in module.parameters()} == {torch.float32}


@every_set_of_parts
def test_a_saved_pipeline_loads_as_it_was(name: str, tmp_path: Path) -> None:
    built(name).save_pretrained(tmp_path)
    loaded = DiffusionPipeline.from_pretrained(tmp_path)
    loaded.set_progress_bar_config(disable=True)
    before, after = (call(pipe, name, PROMPTS, SEEDS, True, "latent") for pipe in (built(name), loaded))
    assert torch.equal(before, after)
