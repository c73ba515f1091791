"""ExGRPO, arXiv:2510.02245.

Prompts are sampled by their number of successes, most often those of a medium success rate.
"""

from __future__ import annotations

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, sample_by_weight
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.memory import Memory
from mmgrpo.system.lazy import torch

NEVER = -1e6  # a log-weight that loses to every other


@SAMPLERS.register
def by_successes(*, group: int = 8, width: float = 1.0) -> PromptSampler:
    """Samples without replacement, in shares for each number of successes: most for prompts that half of a group
    solves.

    A number k of successes in ``group``, at the prompt's last visit, has the weight exp(-(k - group / 2)^2 / (2
    width^2)), which its prompts share equally. Prompts without a visit, or with 0 or all successes, come only where
    there are no others.

    Units: width is a number of successes; rewards are right or wrong, 1 or 0.
    Raises: ConfigError for no group or no width.
    Source: ExGRPO, arXiv:2510.02245, and its code (ElliottYan/LUFFY, ``weighted_bucket_sampler.py``, normal).
    """
    if group < 1 or width <= 0:
        raise ConfigError(f"prompts.sampler: by_successes needs group >= 1 and width > 0, got {group} and {width}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        sampled_N = memory.read("num_samples", pool.keys) > 0
        successes_N = (memory.read("last_rate", pool.keys) * group).round().long().clamp(0, group)
        usable_N = sampled_N & (successes_N > 0) & (successes_N < group)
        shared_N = torch.bincount(successes_N[usable_N], minlength=group + 1)[successes_N].clamp(min=1)
        log_weight_N = -((successes_N - group / 2) / width).square() / 2 - shared_N.log()
        return sample_by_weight(log_weight_N.double().where(usable_N, NEVER), step, num, seed)

    return PromptSampler(draw, (COLUMNS["num_samples"], COLUMNS["last_rate"]))
