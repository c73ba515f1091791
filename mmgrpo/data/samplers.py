"""Which prompts a step takes: pure functions of the memory, the step and the seed.

To add a sampler: a function of its numbers that returns a ``PromptSampler``, and a line in ``SAMPLERS``.

Axes: N prompts of a source.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Protocol

from pydantic import ValidationError

from mmgrpo.config import Named
from mmgrpo.config.numbers import bound
from mmgrpo.errors import ConfigError, DataError
from mmgrpo.maths.columns import COLUMNS, column_of
from mmgrpo.maths.prompt_weights import FORMULAS, adapted_probability, kept_probability, offered, opened_share, variance
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.memory import Column, Memory, Outcomes
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

    from mmgrpo.types import Prompt

DRAW = 1  # keeps a sampler's random numbers apart from the permutations
NEVER = -1e6  # a log-weight that loses to every other


@dataclass(frozen=True, slots=True)
class Pool:
    """The prompts of a source.

    Attributes:
        keys: of each.
        prompts: in the order of the source.
    """

    keys: tuple[str, ...]
    prompts: Sequence[Prompt]

    def column(self, name: str) -> Tensor:
        """(N,) float64 numbers that the rows hold in a column. Raises DataError where one has none."""
        numbers = [prompt.columns.get(name) for prompt in self.prompts]
        for row, number in enumerate(numbers):
            if isinstance(number, bool) or not isinstance(number, int | float):
                raise DataError(f"prompts, row {row}: column '{name}' must be a number to sort by, got {number!r:.60}")
        return torch.tensor(numbers, dtype=torch.float64)


class Draw(Protocol):
    """Chooses a step's prompts."""

    def __call__(self, memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        """Places in the pool, ``num`` of them, the same for the same arguments; steps count from 0."""
        ...


@dataclass(frozen=True, slots=True)
class PromptSampler:
    """A way to choose prompts.

    Attributes:
        draw: chooses those of a step.
        columns: of the memory, that it reads.
        learn: what it makes of a step in its own state.
    """

    draw: Draw
    columns: tuple[Column, ...] = ()
    learn: Callable[[Memory, Outcomes], Memory] | None = None


def shuffled() -> PromptSampler:
    """A new permutation every epoch, each prompt at least once in it."""
    return PromptSampler(_next_of_permutation)


def in_order() -> PromptSampler:
    """The prompts as they stand in the source, round and round."""
    return PromptSampler(lambda memory, step, pool, num, seed: [(step * num + i) % len(pool.keys) for i in range(num)])


def weighted(
    *,
    formula: str = "variance",
    floor: float = 0.01,
    added: float = 0.0,
    unseen: float = 0.5,
    column: str | None = None,
) -> PromptSampler:
    """Drawn without replacement, with probability by the success rate so far; see the formulas.

    w = max(formula(p), floor) + added, p = all rewards of the prompt / their number, held in [0, 1]; ``unseen`` before
    any. With a ``column`` of the memory, say ``value``, p is what stands there.

    Source: MMR1, arXiv:2509.21268; SPO, arXiv:2509.13232, and its code (verl, recipe/spo), which adds 0.05.
    """
    if formula not in FORMULAS:
        raise ConfigError(f"prompts.sampler: weighted has no formula {formula!r}; known are {', '.join(FORMULAS)}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        rate_N = _mean_reward(memory, pool, unseen) if column is None else memory.read(column, pool.keys).double()
        weight_N = FORMULAS[formula](rate_N.clamp(0, 1)).clamp(min=floor) + added
        return _drawn(weight_N.log(), step, num, seed)

    read = (COLUMNS["num_samples"], COLUMNS["reward_sum"]) if column is None else (column_of(column),)
    return PromptSampler(draw, read)


def by_successes(*, group: int = 8, width: float = 1.0) -> PromptSampler:
    """Drawn without replacement, in shares for each number of successes: most for prompts that half of a group solves.

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
        known_N = memory.read("num_samples", pool.keys) > 0
        successes_N = (memory.read("last_rate", pool.keys) * group).round().long().clamp(0, group)
        usable_N = known_N & (successes_N > 0) & (successes_N < group)
        shared_N = torch.bincount(successes_N[usable_N], minlength=group + 1)[successes_N].clamp(min=1)
        log_weight_N = -((successes_N - group / 2) / width).square() / 2 - shared_N.log()
        return _drawn(log_weight_N.double().where(usable_N, NEVER), step, num, seed)

    return PromptSampler(draw, (COLUMNS["num_samples"], COLUMNS["last_rate"]))


def by_posterior(*, scale: float = 0.01) -> PromptSampler:
    """Drawn without replacement, with probability by what is thought of the success rate after a uniform prior.

    w = exp(scale sqrt(p (1 - p)) / (a + 1)), p = (a + 1) / (n + 2), the mean of Beta(a + 1, n - a + 1), a = the sum of
    the prompt's rewards so far, n their number.

    Units: rewards are right or wrong, 1 or 0; scale is dimensionless.   Raises: ConfigError for a scale below 0.
    Source: CurES, arXiv:2510.01037, and its code (ZexuSun/CurES, ``epic_sampler.py``), whose t is (a + 1) / 0.01.
    """
    if scale < 0:
        raise ConfigError(f"prompts.sampler: by_posterior needs scale >= 0, got {scale}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        right_N = memory.read("reward_sum", pool.keys).double()
        mean_N = (right_N + 1) / (memory.read("num_samples", pool.keys) + 2)
        return _drawn(scale * variance(mean_N).clamp(min=0).sqrt() / (right_N + 1), step, num, seed)

    return PromptSampler(draw, (COLUMNS["num_samples"], COLUMNS["reward_sum"]))


def _mean_reward(memory: Memory, pool: Pool, unseen: float) -> Tensor:
    num_N = memory.read("num_samples", pool.keys)
    return (memory.read("reward_sum", pool.keys) / num_N.clamp(min=1)).where(num_N > 0, unseen)


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
    """Skips prompts whose last visits were all right, or all wrong, the more likely the longer that lasted.

    keep = max(p ** z, floor), z = visits in a row with mean reward >= right (or <= wrong); p of each kind starts at
    ``start`` and moves by ``pace``: down while a third of ``target`` of a step's prompts are right (two thirds: wrong)

    Whether a prompt is skipped is drawn once an epoch; of the others those that waited longest come first.

    Source: GRESO, arXiv:2506.02177, and its code. Deviation: an epoch is as many steps as it takes without skipping.
    """

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        probability = {"easy": start, "hard": start, **memory.state("skip_settled")}
        easy_N = kept_probability(probability["easy"], memory.read("right_streak", pool.keys), floor=floor)
        hard_N = kept_probability(probability["hard"], memory.read("wrong_streak", pool.keys), floor=floor)
        epoch = step // -(-len(pool.keys) // num)
        kept_N = _uniform(derive_seed(seed, DRAW, epoch), len(pool.keys)) < easy_N * hard_N
        return _longest_waiting(memory, step, pool, num, seed, kept_N)

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


def drop_solved(*, times: int = 1, right: float = 0.98) -> PromptSampler:
    """Leaves out prompts whose last ``times`` visits were all right; if that is all of them, they all come back.

    Of the others those that waited longest come first.

    Source: SRPO, arXiv:2504.14286, history resampling. Deviation: from the next step on, not from the next epoch.
    """

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        return _longest_waiting(memory, step, pool, num, seed, memory.read("right_streak", pool.keys) < times)

    return PromptSampler(draw, (column_of("right_streak", {"right": right}), COLUMNS["last_step"]))


def curriculum(*, by: str, steps: int, start: float = 0.2, descending: bool = False) -> PromptSampler:
    """Easy prompts first: draws from the ``start`` share of lowest ``by``, which grows to all of them over ``steps``.

    share = start + (1 - start) min(step / steps, 1)

    ``by`` is a column of numbers in the data, or of the memory; ``descending`` where a high number is easy. Of what is
    open those that waited longest come first, so that what opens is looked at soon.
    """
    if not 0 < start <= 1 or steps < 1:
        raise ConfigError(f"prompts.sampler: curriculum needs 0 < start <= 1 and steps >= 1, got {start} and {steps}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        in_data = by not in COLUMNS or any(by in prompt.columns for prompt in pool.prompts)
        level_N = pool.column(by) if in_data else memory.read(by, pool.keys).double()
        num_open = max(round(opened_share(step, start=start, steps=steps) * len(pool.keys)), min(num, len(pool.keys)))
        open_N = torch.zeros(len(pool.keys), dtype=torch.bool)
        open_N[level_N.argsort(descending=descending, stable=True)[:num_open]] = True
        return _longest_waiting(memory, step, pool, num, seed, open_N, others=False)

    return PromptSampler(draw, (COLUMNS["last_step"], *([COLUMNS[by]] if by in COLUMNS else [])))


def most_explorable(
    *, reward: str = "explorability", visits: int = 3, falls: float = 0.03, least: float = 0.4
) -> PromptSampler:
    """Of the next prompts of an epoch those whose last visits were worth the most; the share that is drawn falls.

    share = max(1 - falls epoch, least)

    Of the prompts that a step looks at it takes this share, by the mean over their last ``visits`` visits of what the
    single reward ``reward`` came to over their samples. Prompts without a visit come first; of equal ones those with
    fewer visits.

    Units: of the reward; falls is a share per epoch.
    Raises: ConfigError for a share that is none, or no visits; or where the run has no such reward.
    Source: DEPO, arXiv:2509.01321, and its code (txy77/DEPO, ``rollout_purning.py``). Deviation: a step is as large
        throughout, and looks at so many more prompts; the code's steps shrink.
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


def mixed(*, share: float, first: PromptSampler, second: PromptSampler) -> PromptSampler:
    """A share of each step by one sampler, the rest by another.

    ``share`` of a step's prompts by ``first``, the rest by ``second``, no prompt twice while it offers others.

    Source: MMR1, arXiv:2509.21268: part by variance, the rest uniform.
    """
    if not 0 <= share <= 1:
        raise ConfigError(f"prompts.sampler: mixed needs 0 <= share <= 1, got {share}")

    def draw(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
        num_first = int(share * num + 0.5)
        chosen = first.draw(memory, step, pool, num_first, seed) if num_first else []
        others = second.draw(memory, step, pool, num, seed)
        ordered = sorted(others, key=lambda index: index in chosen)
        return [*chosen, *ordered[: num - num_first]]

    learners = [one.learn for one in (first, second) if one.learn is not None]
    return PromptSampler(draw, (*first.columns, *second.columns), partial(_learn_all, learners) if learners else None)


SAMPLERS: Registry[Callable[..., PromptSampler]] = Registry(
    {
        "shuffled": shuffled,
        "in_order": in_order,
        "weighted": weighted,
        "skip_settled": skip_settled,
        "drop_solved": drop_solved,
        "curriculum": curriculum,
        "by_successes": by_successes,
        "by_posterior": by_posterior,
        "most_explorable": most_explorable,
        "mixed": mixed,
    }
)
"""Ways to choose prompts by the name that ``prompts.sampler`` uses."""


def build_sampler(named: Named, where: str = "prompts.sampler") -> PromptSampler:
    """The sampler that a configuration names; ``first`` and ``second`` of ``mixed`` are samplers themselves.

    Raises ConfigError for an unknown name or wrong numbers.
    """
    parts = {
        name: _part(named.numbers[name], f"{where}.{name}") for name in ("first", "second") if name in named.numbers
    }
    return bound(where, SAMPLERS, named.model_copy(update=parts) if parts else named)()


def _part(given: Any, where: str) -> PromptSampler:
    try:
        return build_sampler(Named.model_validate(given), where)
    except ValidationError:
        raise ConfigError(f"{where} must be the name of a sampler or a mapping with one, got {given!r:.80}") from None


def _learn_all(learners: Sequence[Callable[[Memory, Outcomes], Memory]], memory: Memory, outcomes: Outcomes) -> Memory:
    for learn in learners:
        memory = learn(memory, outcomes)
    return memory


def _next_of_permutation(memory: Memory, step: int, pool: Pool, num: int, seed: int) -> list[int]:
    """An epoch is ceil(N / num) steps over a permutation of its own; its last step is filled up from the start."""
    N = len(pool.keys)
    epoch, step_in_epoch = divmod(step, -(-N // num))
    order = permutation(derive_seed(seed, epoch), N)
    return [order[(step_in_epoch * num + i) % N] for i in range(num)]


def _longest_waiting(
    memory: Memory, step: int, pool: Pool, num: int, seed: int, wanted_N: Tensor, *, others: bool = True
) -> list[int]:
    """The wanted prompts that were drawn longest ago, in the epoch's own order where equally long; then the others."""
    N = len(pool.keys)
    order = permutation(derive_seed(seed, step // -(-N // num)), N)
    last_N, wanted = memory.read("last_step", pool.keys).tolist(), wanted_N.tolist()
    ranked = sorted(order, key=lambda index: (not wanted[index], last_N[index]))
    ranked = ranked if others else ranked[: sum(wanted)]
    return [ranked[i % len(ranked)] for i in range(num)]


def _drawn(log_weight_N: Tensor, step: int, num: int, seed: int) -> list[int]:
    """Places drawn one after another with probability by their weights, none twice while there are others."""
    uniform_N = _uniform(derive_seed(seed, DRAW, step), len(log_weight_N))
    return _first(log_weight_N - (-uniform_N.log()).log(), num)


def _first(score_N: Tensor, num: int) -> list[int]:
    """The places of the highest scores, highest first; round and round where there are fewer."""
    ranked = score_N.argsort(descending=True, stable=True)[:num].tolist()
    return [ranked[i % len(ranked)] for i in range(num)]


def _uniform(seed: int, size: int) -> Tensor:
    """(N,) float64 in (0, 1)."""
    drawn_N = torch.rand(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn_N.clamp(min=torch.finfo(torch.float64).tiny)


@lru_cache(maxsize=8)
def permutation(seed: int, size: int) -> tuple[int, ...]:
    """The numbers below ``size`` in an order that follows from the seed."""
    return tuple(torch.randperm(size, generator=torch.Generator().manual_seed(seed)).tolist())
