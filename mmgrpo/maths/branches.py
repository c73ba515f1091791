"""Planners of trees: rows that go on from places in rows of earlier rounds.

A group begins as ``group_size`` rows from the prompt, drawn to their ends. In each later round rows part: beside each
that is there, ``factor`` - 1 further members take over its decisions up to a place and go on from there, so that with
its own way on there are ``factor`` ways on from that state, all drawn alike. A row that ended before a place is not
parted, and so a leaf higher up.

Members are numbered by where they stand in the tree, whatever ended early: after a round that may bring each of n rows
``most`` places, the row m's p-th place has the members n + (m most + p) (factor - 1) and those that follow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from random import Random

from mmgrpo.errors import ConfigError
from mmgrpo.maths.places import Places, at_decisions, at_text, before_text, budgets, evenly, meanings_part, uncertain
from mmgrpo.maths.planners import Branch, Planner, Request, Round, Setting
from mmgrpo.maths.seeds import derive_seed


def branch_at(*, at: Sequence[int], factor: int = 2) -> Planner:
    """Trees whose branches part into ``factor`` after each of the given numbers of decisions.

    group_size roots and up to group_size factor^n leaves, n the places; each round parts all rows at the next one.

    Units: decisions.   Raises: ConfigError for numbers that part nothing.
    Source: own.
    """
    return _planner(at_decisions(at=at), factor=factor, rounds=len(at), most=1)


def branch_evenly(*, every: int, factor: int = 2, levels: int = 1) -> Planner:
    """Trees whose branches part into ``factor`` after every so many decisions, ``levels`` times.

    group_size roots and up to group_size factor^levels leaves. The last segments go on to their ends.

    Units: decisions.   Raises: ConfigError for numbers that part nothing.
    Source: TreeRPO, arXiv:2506.05183, and SPO-tree, arXiv:2505.23564, and its code (AIFrameResearch/SPO,
        hybrid_inference_strategy.py): segments of M tokens, the last of any length.
    """
    return _planner(evenly(every=every), factor=factor, rounds=levels, most=1)


def branch_at_uncertain(
    *, num: int = 2, factor: int = 2, levels: int = 1, apart: int = 1, among: int | None = None
) -> Planner:
    """Trees whose rows part into ``factor`` before the ``num`` decisions of theirs that had the highest entropy.

    In each of ``levels`` rounds; decisions that a row took over are not its own. Group_size roots and up to
    group_size (1 + num (factor - 1))^levels leaves. With ``among``, at ``num`` drawn from so many of the highest.

    Units: apart in decisions.   Raises: ConfigError for numbers that part nothing, or among < num.
    Source: TreeRL, arXiv:2506.11902, and its code (THUDM/TreeRL): m roots, n tokens, l rounds, t branches each; one of
        the 20 highest: CURE, arXiv:2508.11016, and its code (bytedance/CURE, ``dapo_ray_trainer.py``).
        Deviations from TreeRL: n tokens of each row, there of each tree; their entropies, there -log p of the token.
    """
    return _planner(uncertain(apart=apart), factor=factor, rounds=levels, most=num, among=among)


def branch_one_by_one(*, from_root: float = 0.5) -> Planner:
    """Trees that grow by a row of each group a round, from where the group's rows could have meant most other things.

    The first row begins at the prompt. Each of the group_size - 1 that follow does so too with the probability
    ``from_root``; otherwise it goes on from before the decision of the highest semantic entropy of all rows there are.

    Units: from_root is a probability.   Raises: ConfigError for none.
    Source: ROSE, arXiv:2601.05053, and its code (ZiqiZhao1/ROSE-rl, ``vllm_rollout_spmd.py``,
        generate_sequences_loop_entropy, branch_metric cosine-entropy). Deviation: a row's first decision is no place.
    """
    if not 0 <= from_root <= 1:
        raise ConfigError(f"branch_one_by_one begins at the prompt with a probability, got from_root={from_root}")
    return Planner(ask=partial(_ask_one, from_root=from_root), looks_back=True, places=meanings_part())


def _ask_one(rounds: Sequence[Round], setting: Setting, *, from_root: float) -> Sequence[Request]:
    member = len(rounds)
    if member == setting.group_size:
        return ()
    asked = []
    for prompt in range(setting.num_prompts):
        parts = Random(derive_seed(setting.seed, prompt, member)).random() >= from_root
        asked.append(Request(prompt=prompt, members=(member,), continues=_highest(rounds, prompt) if parts else None))
    return asked


def _highest(rounds: Sequence[Round], prompt: int) -> Branch | None:
    """The first of the highest places in the rows of a prompt; None where they have none."""
    found = [
        (height, Branch(member, places[0]))
        for one in rounds
        for of, member, places, height in zip(
            one.prompt_B.tolist(), one.member_B.tolist(), one.places_B, one.heights_B, strict=True
        )
        if of == prompt and places
    ]
    return max(found, key=lambda one: one[0])[1] if found else None


def branch_at_text(*, pattern: str, num: int = 1, factor: int = 2, levels: int = 1) -> Planner:
    """Trees whose rows part into ``factor`` after the first ``num`` matches of a regular expression, as ``</think>``.

    In each of ``levels`` rounds, after the next ones; group_size roots and up to
    group_size (1 + num (factor - 1))^levels leaves.

    Units: matches.   Raises: ConfigError for numbers that part nothing, or what is no expression.
    Source: several answers behind one thought: GRPO-MA, arXiv:2509.24494.
    """
    return _planner(at_text(pattern=pattern), factor=factor, rounds=levels, most=num)


def exits(*, num: int, then: str, before: str = "</think>", room: int = 256) -> Planner:
    """Each row is left at ``num`` places drawn at random, where a text is put behind it and a further row goes on.

    The text, as one that ends the thought, is given and never trained. The places lie before the first match of
    ``before``, and ``room`` or more decisions before the row's end, so that the text and what is written behind it are
    within the policy's limit too. Group_size rows and up to num more beside each.

    Units: places; room in decisions.   Raises: ConfigError for numbers that leave nothing, no text, or what is no
        expression.
    Source: S-GRPO, arXiv:2505.07686: exits of one chain of thought, forced to answer.
    """
    _require_text(then)
    places = before_text(pattern=before, room=room)
    return _planner(places, factor=2, rounds=1, most=num, among=MANY, then=lambda place: then)


def exits_at(*, at: Sequence[int], then: str, num: int = 4, before: str = "</think>", room: int = 256) -> Planner:
    """Each row is left after so many decisions, where a text is put behind it and ``num`` further rows go on.

    And after the first match of ``before``, without the text: there are ``num`` further answers as well. The places lie
    as those of ``exits``; group_size rows and up to num (n + 1) more beside each, n the places.

    Units: decisions.   Raises: ConfigError as ``exits``.
    Source: AnytimeReasoner, arXiv:2505.13438, and its code (sail-sg/AnytimeReasoner, ``brpo.py``).
    """
    _require_text(then)
    places = budgets(at=at, pattern=before, room=room)
    return _planner(places, factor=num + 1, rounds=1, most=len(at) + 1, then=partial(_within, at=tuple(at), text=then))


def _within(place: int, *, at: tuple[int, ...], text: str) -> str:
    return text if place in at else ""


def _require_text(then: str) -> None:
    if not then:
        raise ConfigError("exits put a text behind what they leave: set then, as the one that ends a thought")


MANY = 2**31
"""More places than a row has."""

Then = Callable[[int], str]
"""What is put behind the decisions that are taken over up to a place."""


def _nothing(place: int) -> str:
    return ""


def _planner(
    places: Places, *, factor: int, rounds: int, most: int, among: int | None = None, then: Then = _nothing
) -> Planner:
    if factor < 2 or rounds < 1 or most < 1:
        raise ConfigError(
            f"trees part into 2 or more, once or more, at 1 place or more; got {factor}, {rounds}, {most}"
        )
    if among is not None and among < most:
        raise ConfigError(f"branches part at {most} places among as many or more, got among={among}")
    ask = partial(_ask, factor=factor, num_rounds=rounds, most=most, among=among, then=then)
    return Planner(ask=ask, looks_back=True, places=places)


def _ask(
    rounds: Sequence[Round], setting: Setting, *, factor: int, num_rounds: int, most: int, among: int | None, then: Then
) -> Sequence[Request]:
    if not rounds:
        return setting.groups(0, setting.num_prompts)
    if len(rounds) > num_rounds:
        return ()
    taken = {(one.prompt, one.continues) for done in rounds for one in done.requests if one.continues is not None}
    there = setting.group_size * (1 + most * (factor - 1)) ** (len(rounds) - 1)
    asked = []
    for prompt, member, places in sorted(_rows(rounds)):
        free = (branch for place in places if (prompt, branch := Branch(member, place, then(place))) not in taken)
        best = list(islice(free, among or most))
        drawn = Random(derive_seed(setting.seed, prompt, member, len(rounds)))
        for order, branch in enumerate(best if among is None else drawn.sample(best, min(most, len(best)))):
            first = there + (member * most + order) * (factor - 1)
            asked.append(Request(prompt=prompt, members=tuple(range(first, first + factor - 1)), continues=branch))
    return asked


def _rows(rounds: Sequence[Round]) -> list[tuple[int, int, Sequence[int]]]:
    """Prompt, member and places of every row that is there."""
    return [
        (prompt, member, tuple(places))
        for one in rounds
        for prompt, member, places in zip(one.prompt_B.tolist(), one.member_B.tolist(), one.places_B, strict=True)
    ]
