"""What a task draws that is after another: something of each sample that the other has drawn at the step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Literal

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import Request, Round, Setting, Strategy

FOLLOWED = "after"
"""The context that shows a sample of the task before."""


def following(identities: Sequence[tuple[int, int]], *, compare: Literal["sample", "prompt"]) -> Strategy:
    """Members after each sample, all of which are shown its text.

    sample: a group of ``group_size`` after each, numbered behind the groups of the samples; prompt: the
    ``group_size`` members of a prompt's group are shared out evenly over the samples of that prompt, in their order.

    Args:
        identities: group and member of the samples of the whole job, groups together.
        compare: what makes a group.

    Returns:
        The strategy, which asks once.
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
            Request(prompt=first + number, members=members, context=FOLLOWED, after=(identity,))
            for number, identity in enumerate(identities)
        )
    written, begun = Counter(group for group, _ in identities), Counter[int]()
    requests = []
    for group, member in identities:
        each = setting.group_size // written[group]
        if not each:
            raise ConfigError(
                f"rollout.group_size={setting.group_size} is fewer than the {written[group]} samples of a prompt"
            )
        members = tuple(range(begun[group], begun[group] + each))
        begun[group] += each
        requests.append(Request(prompt=group, members=members, context=FOLLOWED, after=((group, member),)))
    return tuple(requests)
