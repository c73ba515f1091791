"""Strategies of trees: rows that continue from branch points in rows of earlier rounds.

A group begins as ``group_size`` rows from the prompt, sampled to their ends. In each later round rows branch: for each
row, ``factor`` - 1 further members share its decisions up to a branch point and continue from there, so that with the
row itself there are ``factor`` continuations of that state, all sampled alike. A row that ended before a branch point
does not branch, and is a leaf higher up.

Members are numbered by their position in the tree, even if rows ended early: after a round with up to ``most`` branch
points for each of n rows, the p-th branch point of row m has the members n + (m most + p) (factor - 1) and those that
follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from random import Random

from mmgrpo.errors import ConfigError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.maths.strategies import STRATEGIES, Branch, Request, Round, Setting, Strategy
from mmgrpo.maths.strategies.branch_points import Places, at_decisions, evenly


@STRATEGIES.register
def branch_at(*, at: Sequence[int], factor: int = 2) -> Strategy:
    """Trees that branch into ``factor`` after each of these numbers of decisions.

    group_size roots and up to group_size factor^n leaves, n the branch points; each round branches all rows at the next
    one.

    Units: decisions.   Raises: ConfigError for numbers without any branch.
    Source: own.
    """
    return branching(at_decisions(at=at), factor=factor, rounds=len(at), most=1)


@STRATEGIES.register
def branch_evenly(*, every: int, factor: int = 2, levels: int = 1) -> Strategy:
    """Trees that branch into ``factor`` after every so many decisions, ``levels`` times.

    group_size roots and up to group_size factor^levels leaves. The last segments continue to their ends.

    Units: decisions.   Raises: ConfigError for numbers without any branch.
    Source: TreeRPO, arXiv:2506.05183, and SPO-tree, arXiv:2505.23564, and its code (AIFrameResearch/SPO,
        hybrid_inference_strategy.py): segments of M tokens, the last of any length.
    """
    return branching(evenly(every=every), factor=factor, rounds=levels, most=1)


def require_text(then: str) -> None:
    if not then:
        raise ConfigError(
            "exits append a text to the prefix that they cut: set then, for example the end of the thought"
        )


Then = Callable[[int], str]
"""The text that is appended to the shared decisions at a branch point."""


def _empty_text(position: int) -> str:
    return ""


def branching(
    places: Places, *, factor: int, rounds: int, most: int, among: int | None = None, then: Then = _empty_text
) -> Strategy:
    if factor < 2 or rounds < 1 or most < 1:
        raise ConfigError(
            f"trees part into 2 or more, once or more, at 1 place or more; got {factor}, {rounds}, {most}"
        )
    if among is not None and among < most:
        raise ConfigError(f"branches part at {most} places among as many or more, got among={among}")
    ask = partial(_ask, factor=factor, num_rounds=rounds, most=most, among=among, then=then)
    return Strategy(ask=ask, looks_back=True, places=places)


def _ask(
    rounds: Sequence[Round], setting: Setting, *, factor: int, num_rounds: int, most: int, among: int | None, then: Then
) -> Sequence[Request]:
    if not rounds:
        return setting.groups(0, setting.num_prompts)
    if len(rounds) > num_rounds:
        return ()
    taken = {
        (request.prompt, request.continues)
        for done in rounds
        for request in done.requests
        if request.continues is not None
    }
    num_taken = setting.group_size * (1 + most * (factor - 1)) ** (len(rounds) - 1)
    requests = []
    for prompt, member, places in sorted(_rows(rounds)):
        free = (
            branch for position in places if (prompt, branch := Branch(member, position, then(position))) not in taken
        )
        best = list(islice(free, among or most))
        random = Random(derive_seed(setting.seed, prompt, member, len(rounds)))
        for order, branch in enumerate(best if among is None else random.sample(best, min(most, len(best)))):
            first = num_taken + (member * most + order) * (factor - 1)
            requests.append(Request(prompt=prompt, members=tuple(range(first, first + factor - 1)), continues=branch))
    return requests


def _rows(rounds: Sequence[Round]) -> list[tuple[int, int, Sequence[int]]]:
    """Prompt, member and places of every row that is there."""
    return [
        (prompt, member, tuple(places))
        for round_ in rounds
        for prompt, member, places in zip(
            round_.prompt_B.tolist(), round_.member_B.tolist(), round_.places_B, strict=True
        )
    ]
