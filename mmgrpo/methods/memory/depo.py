"""DEPO (online), arXiv:2509.01321.

Prompts are selected by a reward of their last visits, such as explorability, in a share that falls over the epochs.
"""

from __future__ import annotations

from itertools import pairwise

from mmgrpo.data.samplers import SAMPLERS, Pool, PromptSampler, permutation
from mmgrpo.errors import ConfigError
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.prompt_weights import offered
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Column, Memory, Outcomes
from mmgrpo.system.lazy import torch


@SAMPLERS.register
def most_explorable(
    *, reward: str = "explorability", visits: int = 3, falls: float = 0.03, least: float = 0.4
) -> PromptSampler:
    """Of the next prompts of an epoch those with the highest value of their last visits; the sampled share falls.

    share = max(1 - falls epoch, least)

    Of the prompts that a step considers it takes this share, by the mean of the single reward ``reward`` over the
    samples of their last ``visits`` visits. Prompts without a visit come first; of equal ones those with
    fewer visits.

    Units: of the reward; falls is a share per epoch.
    Raises: ConfigError for a share that is none, or no visits; or where the run has no such reward.
    Source: DEPO, arXiv:2509.01321, and its code (txy77/DEPO, ``rollout_purning.py``). Deviation: a step is as large
        throughout, and considers so many more prompts; the code's steps shrink.
    """
    if visits < 1 or not 0 < least <= 1 or falls < 0:
        raise ConfigError(
            f"prompts.sampler: most_explorable needs visits >= 1, 0 < least <= 1 and falls >= 0, got {visits}, {least} "
            f"and {falls}"
        )
    recent = [Column(f"{reward}_{ago}_ago") for ago in range(visits)]

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        looked_at, epoch, begin = offered(step, len(pool.keys), num, falls=falls, least=least)
        order = permutation(derive_seed(seed, epoch), len(pool.keys))
        nearest = list(dict.fromkeys(order[(begin + i) % len(order)] for i in range(looked_at)))
        visits_N = memory.read("visits", pool.keys)
        total_N = torch.stack([memory.read(column.name, pool.keys) for column in recent]).sum(0)
        mean_N = total_N / visits_N.clamp(min=1, max=visits)
        ranked = sorted(nearest, key=lambda i: (bool(visits_N[i] > 0), -float(mean_N[i]), int(visits_N[i])))
        return [ranked[i % len(ranked)] for i in range(num)]

    def learn(memory: Memory, outcomes: Outcomes) -> Memory:
        if reward not in outcomes.rewards:
            raise ConfigError(f"most_explorable goes by the reward {reward!r}; the run has {sorted(outcomes.rewards)}")
        for older, newer in pairwise(reversed(recent)):
            memory = memory.write(older.name, outcomes.keys, memory.read(newer.name, outcomes.keys))
        return memory.write(recent[0].name, outcomes.keys, outcomes.rewards[reward])

    return PromptSampler(draw, (COLUMNS["visits"], *recent), learn)
