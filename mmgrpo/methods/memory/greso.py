"""GRESO, arXiv:2506.02177.

Prompts with equal rewards at their last visits are skipped with a probability that grows with the number of such
visits.
"""

from __future__ import annotations

from mmgrpo.data.samplers import DRAW, SAMPLERS, Pool, PromptSampler, longest_waiting, uniform
from mmgrpo.maths.columns import COLUMNS, column_of
from mmgrpo.maths.prompt_weights import adapted_probability, keep_probability
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Memory, Outcomes


@SAMPLERS.register
def skip_settled(
    *,
    right: float = 0.98,
    wrong: float = 0.11,
    start: float = 0.5,
    floor: float = 0.01,
    target: float = 0.25,
    pace: float = 0.01,
    low: float = 0.05,
    high: float = 0.95,
) -> PromptSampler:
    """Skips prompts with last visits that were all right, or all wrong, more likely the longer the streak.

    keep = max(p ** z, floor), z = visits in a row with mean reward >= right (or <= wrong); p of each kind starts at
    ``start`` and moves by ``pace``: down while a third of ``target`` of a step's prompts are right (two thirds: wrong)

    Whether a prompt is skipped is sampled once an epoch; of the others those that waited longest come first.

    Source: GRESO, arXiv:2506.02177, and its code. Deviation: an epoch is as many steps as it takes without skipping.
    """

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        probability = {"easy": start, "hard": start, **memory.state("skip_settled")}
        easy_N = keep_probability(probability["easy"], memory.read("right_streak", pool.keys), floor=floor)
        hard_N = keep_probability(probability["hard"], memory.read("wrong_streak", pool.keys), floor=floor)
        epoch = step // -(-len(pool.keys) // num)
        keep_N = uniform(derive_seed(seed, DRAW, epoch), len(pool.keys)) < easy_N * hard_N
        return longest_waiting(memory, step, pool, num, seed, keep_N)

    def learn(memory: Memory, outcomes: Outcomes) -> Memory:
        if not bool(outcomes.scored_K.any()):
            return memory
        rate = outcomes.rate_K[outcomes.scored_K]
        share = {"easy": float((rate >= right).double().mean()), "hard": float((rate <= wrong).double().mean())}
        aim = {"easy": target / 3, "hard": target * 2 / 3}
        before = {"easy": start, "hard": start, **memory.state("skip_settled")}
        after = {
            kind: adapted_probability(before[kind], share[kind], target=aim[kind], pace=pace, low=low, high=high)
            for kind in aim
        }
        return memory.with_state("skip_settled", after)

    streaks = column_of("right_streak", {"right": right}), column_of("wrong_streak", {"wrong": wrong})
    return PromptSampler(draw, (*streaks, COLUMNS["last_step"]), learn)
