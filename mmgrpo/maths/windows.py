"""Windows: the denoising steps that are stochastic and trained on.

Pure functions of integers, so every rank trains on the same steps. Each returns increasing
indices into the schedule's usable stochastic decisions, 0 .. num_decisions - 1, and never the empty tuple. Where a
function takes ``low`` and ``high``, the window stays within low .. high - 1; high=None means num_decisions. ``seed``
must already contain the step.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from mmgrpo.errors import ConfigError
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.seeds import derive_seed

WINDOWS: Registry[Callable[..., tuple[int, ...]]] = Registry(arguments=("num_decisions",))
"""Windows by the name that a method's configuration uses; the first argument is num_decisions."""


@WINDOWS.register("all")
def all_window(num_decisions: int) -> tuple[int, ...]:
    """Every decision.

    Raises: ConfigError if the schedule has none.
    Source: Flow-GRPO, arXiv:2505.05470.
    """
    _checked_end(num_decisions, size=1, low=0, high=None)
    return tuple(range(num_decisions))


@WINDOWS.register("fixed")
def fixed_window(num_decisions: int, *, start: int, size: int) -> tuple[int, ...]:
    """The same ``size`` consecutive decisions at every iteration, from ``start``.

    Raises: ConfigError if they are not within the schedule.
    Source: the frozen window of MixGRPO, arXiv:2507.21802.
    """
    _checked_end(num_decisions, size=size, low=start, high=None)
    return tuple(range(start, start + size))


@WINDOWS.register("random")
def random_window(
    num_decisions: int, *, size: int, low: int = 0, high: int | None = None, seed: int
) -> tuple[int, ...]:
    """``size`` consecutive decisions, their start uniform on low .. high - size.

    Raises: ConfigError if the window does not fit.
    Source: Flow-GRPO-Fast's ``sde_window_size`` and ``sde_window_range`` (arXiv:2505.05470). Deviation: one window for
    all processes at a step, where that code samples one per batch and rank.
    """
    end = _checked_end(num_decisions, size=size, low=low, high=high)
    start = random.Random(derive_seed(seed)).randint(low, end - size)
    return tuple(range(start, start + size))


@WINDOWS.register
def random_subset(
    num_decisions: int, *, size: float, low: int = 0, high: int | None = None, seed: int
) -> tuple[int, ...]:
    """``size`` decisions, any subset of low .. high - 1 with equal probability; below 1, size is a share of them.

    A share is rounded down, to one decision at least, so that a method need not know the number of steps.

    Raises: ConfigError if there are fewer than ``size``, or it is neither a share nor an
    integer. Source: Flow-Factory's ``num_sde_steps``; DanceGRPO's random fraction of timesteps, arXiv:2505.07818.
    """
    num_sampled = subset_size(size, (num_decisions if high is None else high) - low)
    end = _checked_end(num_decisions, size=num_sampled, low=low, high=high)
    return tuple(sorted(random.Random(derive_seed(seed)).sample(range(low, end), num_sampled)))


def subset_size(size: float, num_decisions: int) -> int:
    """The number of decisions that ``random_subset`` samples.

    Raises: ConfigError if the size is neither a share nor an integer.
    """
    if 0 < size < 1:
        return max(1, int(size * num_decisions))
    if size != int(size):
        raise ConfigError(
            f"the size of a subset must be an integer number of decisions, or a share below 1, got {size}"
        )
    return int(size)


def shortened(num_steps: int, last: int, frac: float) -> tuple[float, ...]:
    """The start times of the steps of a flow, from 1 to 0, with fewer of them after decision ``last``.

    Up to it they begin at 1 - i / num_steps; from its end on, ``frac`` times as many points are evenly spaced down to
    0.

    Raises: ConfigError unless 0 <= last < num_steps - 1 and 0 < frac < 1.
    Source: MixGRPO-Flash, arXiv:2507.21802, and its code, which rounds the number of points down. Deviation: two points
    at least, since one would end before 0.
    """
    if not (0 <= last < num_steps - 1 and 0 < frac < 1):
        raise ConfigError(
            f"fast_remainder reduces the steps after the last stochastic one: {last} of {num_steps} steps leaves none, "
            f"or the share {frac} is not between 0 and 1"
        )
    num_points = max(int((num_steps - last) * frac), 2)
    ends = 1 - (last + 1) / num_steps
    after = (ends * (1 - i / (num_points - 1)) for i in range(num_points - 1))
    return (*(1 - i / num_steps for i in range(last + 1)), *after)


@WINDOWS.register("progressive")
def progressive_window(
    num_decisions: int,
    *,
    step: int,
    size: int,
    stride: int = 1,
    interval: int,
    low: int = 0,
    high: int | None = None,
) -> tuple[int, ...]:
    """``size`` consecutive decisions that move by ``stride`` every ``interval`` iterations, from noise to image.

    start = low + stride * (floor(step / interval) mod n), n = floor((high - low - size) / stride) + 1.

    Raises: ConfigError if the window does not fit, or step < 0, stride < 1 or interval < 1.
    Source: MixGRPO, arXiv:2507.21802, and its code. Deviation: the start rolls back to ``low`` as soon as a full
    window no longer fits; the reference code continues with a shorter one, then with an empty one that trains nothing.
    """
    end = _checked_end(num_decisions, size=size, low=low, high=high)
    if step < 0 or stride < 1 or interval < 1:
        raise ConfigError(
            f"a progressive window needs step >= 0, stride >= 1 and interval >= 1, "
            f"got step={step}, stride={stride}, interval={interval}"
        )
    num_starts = (end - low - size) // stride + 1
    start = low + stride * (step // interval % num_starts)
    return tuple(range(start, start + size))


def _checked_end(num_decisions: int, *, size: int, low: int, high: int | None) -> int:
    """One past the last decision that a window may hold."""
    if num_decisions < 1:
        raise ConfigError(
            "the schedule has no usable stochastic decision, so that no window fits: set policy.steps to 2 or more "
            "(the last step is often deterministic), and policy.sampler to a stochastic one"
        )
    end = num_decisions if high is None else high
    if not 0 <= low < end <= num_decisions:
        raise ConfigError(
            f"a window within decisions {low} to {end} (exclusive) is outside the schedule, which has {num_decisions} "
            f"usable stochastic decisions: choose 0 <= low < high <= {num_decisions}"
        )
    if not 1 <= size <= end - low:
        raise ConfigError(
            f"a window of {size} decisions does not fit between {low} and {end} (exclusive): choose a size from 1 to "
            f"{end - low}, or more sampling steps (this schedule has {num_decisions} usable stochastic decisions)"
        )
    return end
