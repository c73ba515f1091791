"""The strategy of a task after another one: samples for each sample of the other task at the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Request, Round, Setting, Strategy
from mmgrpo.samples import TASK_TEMPLATE


def following(identities: Sequence[tuple[int, int]], *, compare: Literal["sample", "prompt"]) -> Strategy:
    """Members after each sample, all with its text in their prompt.

    sample: a group of ``group_size`` after each, numbered after the groups of the samples; prompt: the
    ``group_size`` members of a prompt's group are shared out evenly over the samples of that prompt, in their order.

    Args:
        identities: group and member of the samples of all processes, groups together.
        compare: ``sample`` or ``prompt``, the members that form a group.

    Returns:
        The strategy, with one round.
    """
    return Strategy(ask=partial(_downstream_requests, identities=tuple(identities), compare=compare))


def _downstream_requests(
    rounds: Sequence[Round], setting: Setting, *, identities: tuple[tuple[int, int], ...], compare: str
) -> Sequence[Request]:
    if rounds:
        return ()
    if compare == "sample":
        first, members = 1 + max(group for group, _ in identities), tuple(range(setting.group_size))
        return tuple(
            Request(prompt=first + number, members=members, prompt_template=TASK_TEMPLATE, after=(identity,))
            for number, identity in enumerate(identities)
        )
    num_samples, next_member = Counter(group for group, _ in identities), Counter[int]()
    requests = []
    for group, member in identities:
        each = setting.group_size // num_samples[group]
        if not each:
            raise ConfigError(
                f"rollout.group_size={setting.group_size} is fewer than the {num_samples[group]} samples of a prompt"
            )
        members = tuple(range(next_member[group], next_member[group] + each))
        next_member[group] += each
        requests.append(Request(prompt=group, members=members, prompt_template=TASK_TEMPLATE, after=((group, member),)))
    return tuple(requests)
