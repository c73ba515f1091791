"""What a planner asks for at a step, told by playing it with rewards made up for the purpose.

Axes: B rows of a round, over the whole job.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmgrpo.algorithm import Algorithm
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.planners import Planner, Request, Round, Setting, trained
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

HIGH = 1e9
"""A reward above every threshold; one below every threshold is its negative."""
MAX_ROUNDS = 25
"""Of a planner that asks for more, no more are played."""
MAX_PLACES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRounds:
    """A step as a planner asked for it.

    Attributes:
        drawn: how many samples were drawn with the settings of each request.
        num_rounds: how many times something was asked for.
        num_read: samples that were there already.
        trained_drawn: of the drawn ones, those that are trained on.
        trained_read: of the others, likewise.
    """

    drawn: Sequence[tuple[Request, int]]
    num_rounds: int
    num_read: int
    trained_drawn: int
    trained_read: int

    @property
    def num_drawn(self) -> int:
        """Samples that were drawn."""
        return sum(num for _, num in self.drawn)

    @property
    def num_trained(self) -> int:
        """Samples that are trained on."""
        return self.trained_drawn + self.trained_read


def played(algorithm: Algorithm) -> list[SimulatedRounds]:
    """A step of the run's planner where all groups fail or get 0, where all succeed, where rewards differ, and where
    half of them are right.

    Where they fail, no row reaches a place that others may go on from, nor its own end; otherwise every row has many.
    Each of them is the run's first step, with nothing remembered, and its last, with all rows that may be remembered.
    """
    config, planner, rollout = algorithm.config, algorithm.strategy, algorithm.config.rollout
    empty = Memory().declared(COLUMNS.values())
    first = Setting(step=0, num_prompts=rollout.prompts_per_step, group_size=rollout.group_size, memory=empty)
    full = replace(empty, replay={str(p): _rows(str(p), planner) for p in range(first.num_prompts)})
    last = replace(first, step=max(config.steps - 1, 0), memory=full)
    return [_play(planner, setting, case) for setting in (first, last) for case in CASES]


@dataclass(frozen=True, slots=True)
class _Case:
    """Rewards made up: those of a group's best, its first member or half of what is asked for, and of the others."""

    best: float
    others: float
    half: bool = False


CASES = (_Case(-HIGH, -HIGH), _Case(0.0, 0.0), _Case(HIGH, HIGH), _Case(HIGH, 0.0), _Case(1.0, 0.0, half=True))
"""All fail, all get 0, all succeed, they differ, half of them are right."""


def _rows(key: str, planner: Planner) -> tuple[ReplayRow, ...]:
    num = 0 if planner.replay is None else min(planner.replay.per_prompt, planner.replay.total)
    return tuple(ReplayRow(key=key, reward=float(place), advantage=0.0, step=0) for place in range(num))


def _play(planner: Planner, setting: Setting, case: _Case) -> SimulatedRounds:
    rounds: list[Round] = []
    while len(rounds) < MAX_ROUNDS and (requests := tuple(planner.ask(rounds, setting))):
        num_places = MAX_PLACES if planner.places is not None and case.best > 0 else 0
        rounds.append(_round(requests, case, num_places))
        if not planner.looks_back:
            break
    kept = planner.kept(rounds, setting) if planner.looks_back else [trained(one) for one in rounds]
    given = [torch.tensor([bool(one.requests[n].given) for n in one.request_B.tolist()]) for one in rounds]
    return SimulatedRounds(
        drawn=[(request, len(request.members)) for request in _requests(rounds) if not request.given],
        num_rounds=len(rounds),
        num_read=sum(len(request.members) for request in _requests(rounds) if request.given),
        trained_drawn=_total(keep_B & ~given_B for keep_B, given_B in zip(kept, given, strict=True)),
        trained_read=_total(keep_B & given_B for keep_B, given_B in zip(kept, given, strict=True)),
    )


def _requests(rounds: Sequence[Round]) -> Iterator[Request]:
    return (request for one in rounds for request in one.requests)


def _total(masks: Iterator[Tensor]) -> int:
    return sum(int(mask_B.sum()) for mask_B in masks)


def _round(requests: Sequence[Request], case: _Case, num_places: int) -> Round:
    sizes = torch.tensor([len(request.members) for request in requests])
    member_B = torch.tensor([member for request in requests for member in request.members])
    prompt_B = torch.tensor([request.prompt for request in requests]).repeat_interleave(sizes)
    place_B = torch.tensor([place for request in requests for place in range(len(request.members))])
    best_B = 2 * place_B < sizes.repeat_interleave(sizes) if case.half else member_B == 0
    reward_B = torch.where(best_B, case.best, case.others).double()
    return Round(
        requests=requests,
        request_B=torch.arange(len(requests)).repeat_interleave(sizes),
        prompt_B=prompt_B,
        member_B=member_B,
        reward_B=reward_B,
        valid_B=torch.ones_like(member_B, dtype=torch.bool),
        length_B=torch.ones_like(member_B),
        finished_B=reward_B > 0,
        places_B=[_places(request, num_places) for request in requests for _ in request.members],
        heights_B=[0.0 for request in requests for _ in request.members],
    )


def _places(request: Request, num: int) -> range:
    """Places of a row behind what it took over."""
    first = 1 if request.continues is None else request.continues.after + 1
    return range(first, first + num)
