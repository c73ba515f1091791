"""Competence-based curriculum, arXiv:1903.09848.

Prompts are sampled from a growing share of the data set, in order of difficulty.
"""

from __future__ import annotations

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, longest_waiting
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.prompt_weights import opened_share
from mmgrpo.memory import Memory
from mmgrpo.system.lazy import torch


@SAMPLERS.register
def curriculum(*, by: str, steps: int, start: float = 0.2, descending: bool = False) -> PromptSampler:
    """Easy prompts first: samples from the ``start`` share of lowest ``by``, which grows to all of them over ``steps``.

    share = start + (1 - start) min(step / steps, 1)

    ``by`` is a column of numbers in the data, or of the memory; ``descending`` where a high number is easy. Among these
    prompts, those that waited longest come first, so that new ones are sampled soon.
    """
    if not 0 < start <= 1 or steps < 1:
        raise ConfigError(f"prompts.sampler: curriculum needs 0 < start <= 1 and steps >= 1, got {start} and {steps}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        in_data = by not in COLUMNS or any(by in prompt.columns for prompt in pool.prompts)
        level_N = pool.column(by) if in_data else memory.read(by, pool.keys).double()
        num_open = max(round(opened_share(step, start=start, steps=steps) * len(pool.keys)), min(num, len(pool.keys)))
        open_N = torch.zeros(len(pool.keys), dtype=torch.bool)
        open_N[level_N.argsort(descending=descending, stable=True)[:num_open]] = True
        return longest_waiting(memory, step, pool, num, seed, open_N, others=False)

    return PromptSampler(draw, (COLUMNS["last_step"], *([COLUMNS[by]] if by in COLUMNS else [])))
