"""CurES, arXiv:2510.01037.

Prompts are sampled by the posterior of their success rate.
"""

from __future__ import annotations

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, sample_by_weight
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.prompt_weights import variance
from mmgrpo.memory import Memory


@SAMPLERS.register
def by_posterior(*, scale: float = 0.01) -> PromptSampler:
    """Samples without replacement, with probabilities by the posterior of the success rate after a uniform prior.

    w = exp(scale sqrt(p (1 - p)) / (a + 1)), p = (a + 1) / (n + 2), the mean of Beta(a + 1, n - a + 1), a = the sum of
    the prompt's rewards so far, n their number.

    Units: rewards are right or wrong, 1 or 0; scale is dimensionless.   Raises: ConfigError for a scale below 0.
    Source: CurES, arXiv:2510.01037, and its code (ZexuSun/CurES, ``epic_sampler.py``), with t = (a + 1) / 0.01.
    """
    if scale < 0:
        raise ConfigError(f"prompts.sampler: by_posterior needs scale >= 0, got {scale}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        right_N = memory.read("reward_sum", pool.keys).double()
        mean_N = (right_N + 1) / (memory.read("num_samples", pool.keys) + 2)
        return sample_by_weight(scale * variance(mean_N).clamp(min=0).sqrt() / (right_N + 1), step, num, seed)

    return PromptSampler(draw, (COLUMNS["num_samples"], COLUMNS["reward_sum"]))
