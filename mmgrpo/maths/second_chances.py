"""Planners that draw again: after failure, among scouts, beside remembered rows and given answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, final

from mmgrpo.errors import ConfigError
from mmgrpo.maths.planners import Answer, Planner, Replay, Request, Round, Setting, fixed, refill, trained
from mmgrpo.maths.replays import STRATEGIES, replayed
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class OnFailure(Planner):
    """A second attempt of groups that failed: see ``on_failure``."""

    context: str | None
    members: int
    below: float
    replace_failed: bool
    behind_prompt: bool
    settings: Mapping[str, Any]

    @property
    def replay(self) -> None:
        """Nothing."""

    @property
    def looks_back(self) -> bool:
        """Always."""
        return True

    def ask(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
        """Every group; then, once, further members of those that failed."""
        if not rounds:
            return setting.groups(0, setting.num_prompts)
        if len(rounds) > 1:
            return ()
        further = tuple(range(setting.group_size, setting.group_size + self.members))
        return tuple(
            Request(
                prompt=prompt,
                members=further,
                context=self.context,
                settings=self.settings,
                behind_prompt=self.behind_prompt,
            )
            for prompt in range(setting.num_prompts)
            if self._failed(rounds[0], prompt)
        )

    def kept(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Tensor]:
        """All; where further members take the place of failed ones, without the last of these."""
        keep = [trained(one) for one in rounds]
        if not self.replace_failed or len(rounds) < 2:
            return keep
        again = {request.prompt for request in rounds[1].requests}
        retried_B = torch.tensor([prompt in again for prompt in rounds[0].prompt_B.tolist()])
        keep[0] = keep[0] & ~(retried_B & (rounds[0].member_B >= setting.group_size - self.members))
        return keep

    def _failed(self, one: Round, prompt: int) -> bool:
        reward_G = one.rewards_of(prompt)
        return len(reward_G) > 0 and bool((reward_G < self.below).all())


def on_failure(
    *,
    members: int = 4,
    context: str | None = None,
    below: float = 1.0,
    replace_failed: bool = True,
    behind_prompt: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Planner:
    """A second attempt at prompts whose every member failed: further members, shown a hint or drawn otherwise.

    A group fails where all rewards are under ``below``. Its further members are shown the prompt in ``context`` (one of
    ``rollout.contexts``), or drawn with other ``settings``; they take the place of as many failed ones, or join them.
    What was drawn with a hint is trained on behind the bare prompt, its ratio to the policy that saw the hint, or with
    the hint in place.

    Units: members a group; below in those of the reward.
    Raises: ConfigError for numbers that change nothing.
    Source: hints after failure: Guide-GRPO, arXiv:2506.13923; Scaf-GRPO, arXiv:2510.19807; other settings: e-frame.
    """
    if members < 1 or (context is None and not settings):
        raise ConfigError(
            "on_failure needs members >= 1 and a context or settings that the second attempt is drawn with"
        )
    return OnFailure(
        context=context,
        members=members,
        below=below,
        replace_failed=replace_failed,
        behind_prompt=behind_prompt and context is not None,
        settings=settings or {},
    )


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Scouts(Planner):
    """Many cheap draws, of which the best and the worst are drawn again: see ``scouts``."""

    scouts: int
    best: int
    worst: int
    settings: Mapping[str, Any]

    @property
    def replay(self) -> None:
        """Nothing."""

    @property
    def looks_back(self) -> bool:
        """Always."""
        return True

    def ask(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
        """The scouts of every group; then those chosen, as they are trained on."""
        prompts = range(setting.num_prompts)
        if not rounds:
            every = tuple(range(self.scouts))
            return tuple(Request(prompt=p, members=every, settings=self.settings, trained=False) for p in prompts)
        if len(rounds) > 1:
            return ()
        return tuple(Request(prompt=prompt, members=self._chosen(rounds[0], prompt)) for prompt in prompts)

    def kept(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Tensor]:
        """What was drawn again."""
        return [trained(one) for one in rounds]

    def _chosen(self, one: Round, prompt: int) -> tuple[int, ...]:
        """Numbers of the best and the worst scouts; what no reward applied to is the worst."""
        rows = (one.prompt_B == prompt).nonzero().flatten()
        reward_G = one.reward_B[rows].where(one.valid_B[rows], -torch.inf)
        order = reward_G.argsort(descending=True, stable=True)
        chosen = torch.cat([order[: self.best], order[len(order) - self.worst :]])
        return tuple(sorted(int(one.member_B[rows[place]]) for place in chosen))


def scouts(*, scouts: int, best: int, worst: int, settings: Mapping[str, Any]) -> Planner:
    """Many members drawn cheaply, the best and the worst of them drawn again exactly, and those alone trained on.

    Scouts are drawn with other ``settings`` (fewer steps, lower resolution) from the same noise as the member of their
    number, so that a reward of theirs tells of the exact one.

    Units: members a group; settings are the policy's own.
    Raises: ConfigError unless best + worst is 2 to the number of scouts.
    Source: best and worst of many: Xu et al., Not all rollouts are useful, arXiv:2504.13818; cheap scouts are ours.
    """
    if best < 0 or worst < 0 or not 2 <= best + worst <= scouts:
        raise ConfigError(f"scouts needs best + worst from 2 to scouts={scouts}, got {best} + {worst}")
    if not settings:
        raise ConfigError("scouts are drawn with other settings; give settings, for example {call: {...}}")
    return Scouts(scouts=scouts, best=best, worst=worst, settings=settings)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Beside(Planner):
    """Groups with further members that are read: see ``with_replay`` and ``with_answer``."""

    num: int
    strategy: str | None
    start: int
    column: str | None
    replay: Replay | None
    below: float | None

    @property
    def looks_back(self) -> bool:
        """Where it waits for a failure."""
        return self.below is not None

    def ask(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
        """Every group, and beside it what is read."""
        prompts = range(setting.num_prompts)
        if not rounds:
            own = setting.groups(0, setting.num_prompts)
            return own if self.below is not None else (*own, *self._read(prompts, setting))
        if len(rounds) > 1:
            return ()
        below = self.below
        assert below is not None
        return tuple(self._read([p for p in prompts if bool((rounds[0].rewards_of(p) < below).all())], setting))

    def kept(self, rounds: Sequence[Round], setting: Setting) -> Sequence[Tensor]:
        """All."""
        return [trained(one) for one in rounds]

    def _read(self, prompts: Sequence[int], setting: Setting) -> Sequence[Request]:
        asked = []
        for prompt in prompts:
            if self.column is not None:
                given: Sequence[Any] = (Answer(self.column),)
            elif setting.step < self.start:
                given = ()
            else:
                given = replayed(setting.memory, setting.key_of(prompt), self.num, self.strategy or "recency")
            if given:
                members = tuple(range(setting.group_size, setting.group_size + len(given)))
                asked.append(Request(prompt=prompt, members=members, given=tuple(given)))
        return asked


def with_replay(
    *, num: int = 4, strategy: str = "recency", per_prompt: int = 16, total: int = 100_000, start: int = 0
) -> Planner:
    """Groups that remembered rows of their prompt join, with the log-probabilities that they were drawn with.

    ``num`` of the prompt's rows by ``strategy`` (recency, reward, variance, full), from step ``start`` on; of each step
    every trained row is remembered, ``per_prompt`` of a prompt and ``total`` in all.

    Units: rows.   Raises: ConfigError for an unknown strategy, or numbers that hold nothing.
    Source: RePO, arXiv:2506.09340, and its code (SihengLi99/RePO).
    """
    if strategy not in STRATEGIES:
        raise ConfigError(f"unknown replay strategy {strategy!r}; choose from {', '.join(STRATEGIES)}")
    if min(num, per_prompt, total) < 1 or start < 0:
        raise ConfigError("with_replay needs num, per_prompt and total of at least 1, and start >= 0")
    limits = Replay(per_prompt=per_prompt, total=total)
    return Beside(num=num, strategy=strategy, start=start, column=None, replay=limits, below=None)


def with_answer(*, column: str = "solution", below: float | None = None) -> Planner:
    """Groups that the data row's own answer joins as a member: all of them, or those whose members all failed.

    Units: below in those of the reward; null: every group.
    Source: the reference answer as a member when all fail: GCPO, arXiv:2510.07790; the given demonstration in the
    group: LUFFY, arXiv:2504.14945.
    """
    return Beside(num=1, strategy=None, start=0, column=column, replay=None, below=below)


PLANNERS: Mapping[str, Callable[..., Planner]] = MappingProxyType(
    {
        "fixed": fixed,
        "refill": refill,
        "on_failure": on_failure,
        "scouts": scouts,
        "with_replay": with_replay,
        "with_answer": with_answer,
    }
)
"""Planners by the name that ``rollout.planner`` uses; called with their numbers."""
