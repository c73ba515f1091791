"""Simulates the requests of a strategy at a step with synthetic rewards.

Axes: B rows of a round, over all processes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mmgrpo.algorithm import Algorithm
from mmgrpo.maths.columns import COLUMNS
from mmgrpo.maths.strategies import Request, Round, Setting, Strategy, trained
from mmgrpo.memory import Memory, ReplayRow
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

HIGH = 1e9
"""A reward above every threshold; one below every threshold is its negative."""
MAX_ROUNDS = 25
"""Maximum number of simulated rounds of a step."""
MAX_PLACES = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRounds:
    """A simulated step of a strategy.

    Attributes:
        sampled: (request, number of generated samples).
        num_rounds: number of rounds.
        num_supplied: number of samples that the requests supply, such as demonstrations and replayed samples.
        trained_sampled: number of generated samples that are trained on.
        trained_supplied: number of supplied samples that are trained on.
    """

    sampled: Sequence[tuple[Request, int]]
    num_rounds: int
    num_supplied: int
    trained_sampled: int
    trained_supplied: int

    @property
    def num_sampled(self) -> int:
        """Number of generated samples."""
        return sum(num for _, num in self.sampled)

    @property
    def num_trained(self) -> int:
        """Number of samples that are trained on."""
        return self.trained_sampled + self.trained_supplied


def simulate_rounds(algorithm: Algorithm) -> list[SimulatedRounds]:
    """Steps of the run's strategy for groups that all fail, all get 0, all succeed, differ, or are half right.

    Failing rows do not finish and have no branch points; other rows have many. Each case is simulated at the first
    step, with an empty memory, and at the last step, with a full replay memory.
    """
    config, strategy, rollout = algorithm.config, algorithm.strategy, algorithm.config.rollout
    empty = Memory().declared(COLUMNS.values())
    first = Setting(step=0, num_prompts=rollout.prompts_per_step, group_size=rollout.group_size, memory=empty)
    full = replace(empty, replay={str(p): _rows(str(p), strategy) for p in range(first.num_prompts)})
    last = replace(first, step=max(config.steps - 1, 0), memory=full)
    return [_simulate(strategy, setting, case) for setting in (first, last) for case in CASES]


@dataclass(frozen=True, slots=True)
class _Case:
    """Synthetic rewards: of the best members (the first member, or half of a request), and of the others."""

    best: float
    others: float
    half: bool = False


CASES = (_Case(-HIGH, -HIGH), _Case(0.0, 0.0), _Case(HIGH, HIGH), _Case(HIGH, 0.0), _Case(1.0, 0.0, half=True))
"""All fail, all get 0, all succeed, they differ, half of them are right."""


def _rows(key: str, strategy: Strategy) -> tuple[ReplayRow, ...]:
    num = 0 if strategy.replay is None else min(strategy.replay.per_prompt, strategy.replay.total)
    return tuple(ReplayRow(key=key, reward=float(rank), advantage=0.0, step=0) for rank in range(num))


def _simulate(strategy: Strategy, setting: Setting, case: _Case) -> SimulatedRounds:
    rounds: list[Round] = []
    while len(rounds) < MAX_ROUNDS and (requests := tuple(strategy.ask(rounds, setting))):
        num_places = MAX_PLACES if strategy.places is not None and case.best > 0 else 0
        rounds.append(_round(requests, case, num_places))
        if not strategy.looks_back:
            break
    keep = strategy.keep(rounds, setting) if strategy.looks_back else [trained(played) for played in rounds]
    is_supplied = [torch.tensor([bool(r.requests[n].off_policy_rows) for n in r.request_B.tolist()]) for r in rounds]
    return SimulatedRounds(
        sampled=[(request, len(request.members)) for request in _requests(rounds) if not request.off_policy_rows],
        num_rounds=len(rounds),
        num_supplied=sum(len(request.members) for request in _requests(rounds) if request.off_policy_rows),
        trained_sampled=_total(keep_B & ~supplied_B for keep_B, supplied_B in zip(keep, is_supplied, strict=True)),
        trained_supplied=_total(keep_B & supplied_B for keep_B, supplied_B in zip(keep, is_supplied, strict=True)),
    )


def _requests(rounds: Sequence[Round]) -> Iterator[Request]:
    return (request for played in rounds for request in played.requests)


def _total(masks: Iterator[Tensor]) -> int:
    return sum(int(mask_B.sum()) for mask_B in masks)


def _round(requests: Sequence[Request], case: _Case, num_places: int) -> Round:
    sizes = torch.tensor([len(request.members) for request in requests])
    member_B = torch.tensor([member for request in requests for member in request.members])
    prompt_B = torch.tensor([request.prompt for request in requests]).repeat_interleave(sizes)
    position_B = torch.tensor([position for request in requests for position in range(len(request.members))])
    best_B = 2 * position_B < sizes.repeat_interleave(sizes) if case.half else member_B == 0
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
    """Branch points of a row after the prefix that it continues."""
    first = 1 if request.continues is None else request.continues.after + 1
    return range(first, first + num)
