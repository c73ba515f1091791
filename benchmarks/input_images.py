"""Prompts with input images, batched and row by row: CPU seconds of a rollout and its update, alternating.

``python -m benchmarks.input_images [NAME ...]``: a tiny FLUX Kontext, an SD3 img2img and a FLUX.2, four prompts with an
image each and four members. A runs the pipeline once per row, B on as many rows as the pipeline takes. The first turn
of each is not measured.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch
from diffusers import StableDiffusion3Img2ImgPipeline
from mmgrpo.policies.diffusion import DenoisingPolicy
from PIL import Image

from benchmarks.timing import timed
from mmgrpo.types import Prompt
from tests.policies.tiny_policies import pipeline_of, policy_of

PIPELINES: dict[str, tuple[str, int, Callable[[], Any]]] = {
    "FLUX Kontext": ("flux-kontext", 16, lambda: pipeline_of("flux-kontext")),
    "SD3 img2img": ("sd3", 16, lambda: StableDiffusion3Img2ImgPipeline(**pipeline_of("sd3").components)),
    "FLUX.2": ("flux2", 64, lambda: pipeline_of("flux2")),
}
GROUPS, MEMBERS, TURNS = 4, 4, 3


def _prompts(side: int) -> list[Prompt]:
    pictures = np.random.RandomState(0).randint(0, 256, (GROUPS, side, side, 3)).astype(np.uint8)
    return [Prompt(f"edit number {n}", images=(Image.fromarray(picture),)) for n, picture in enumerate(pictures)]


def _iteration(policy: DenoisingPolicy, prompts: list[Prompt], seed: int) -> None:
    rollout = policy.rollout(prompts, group_size=MEMBERS, seed=seed)
    for evaluation in policy.evaluate(rollout):
        evaluation.logprob_BT.sum().backward()


def main(names: Sequence[str]) -> None:
    """Prints a row per pipeline of these names, or of all: seconds of both, and the speedup of each repetition."""
    torch.set_num_threads(1)
    print("| pipeline | media of a batch | separate, s | batched, s | times faster, per repetition | median |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in names or PIPELINES:
        tiny, side, build = PIPELINES[name]
        prompts = _prompts(side)
        alone, batched = (policy_of(tiny, build(), batch=size) for size in (1, GROUPS * MEMBERS))
        for policy in (alone, batched):
            _iteration(policy, prompts, seed=0)
        seconds: list[list[float]] = [[], []]
        for turn in range(1, TURNS + 1):
            for result, policy in zip(seconds, (alone, batched), strict=True):
                result.append(timed("cpu", partial(_iteration, policy, prompts, turn)).spent.cpu_s)
        ratios = [a / b for a, b in zip(*seconds, strict=True)]
        form = next(choice for choice in batched.resolved_settings if "rows show" in choice).rpartition(" as ")[2]
        turns = ", ".join(f"{ratio:.1f}" for ratio in ratios)
        spent = " | ".join(f"{median(times):.2f}" for times in seconds)
        print(f"| {name} | {form} | {spent} | {turns} | {median(ratios):.1f} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
