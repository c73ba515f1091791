"""Strategies: request the samples of a step, round by round, from the results of earlier rounds.

A strategy is a pure function of rounds, which are the same on all processes, so that all of them make the same
requests. No requests end the step. A member's number within its group keys its random numbers; further members continue
the numbers of those before.

Axes: B rows of a round, over all processes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Concatenate

from mmgrpo.errors import ConfigError
from mmgrpo.maths.factories import Numbers, factory
from mmgrpo.maths.forgetting import Forgetting
from mmgrpo.maths.registry import Registry
from mmgrpo.maths.strategies.branch_points import Places
from mmgrpo.memory import Column, Memory, PartialRow, ReplayRow
from mmgrpo.splits import Lookahead
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


STRATEGIES: Registry[Callable[..., Strategy]] = Registry(arguments=(), decorator="mmgrpo.maths.strategies.strategy")
"""Strategies by the name that ``rollout.strategy`` uses; called with their numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Members of one group to sample.

    Attributes:
        prompt: identity of the prompt within the step: 0 to ``num_prompts`` - 1 are the step's own, those that follow
            are further prompts.
        members: their numbers within the group.
        prompt_template: name of the prompt template of the prompt; None: the unchanged prompt.
        share: share of an answer that the prompt template inserts, from 0 to 1, if the prompt template does not set it.
        settings: sampling settings of the policy, for these members only.
        weights: name of the policy's weights that sample; None: the current ones.
        trained: whether they may be trained on; otherwise they are sampled and scored for the strategy only, and count
            only among the forwards.
        train_without_template: whether samples of a prompt template are trained on with the unchanged prompt: their
            ratio is then to the policy with the prompt template.
        as_on_policy: with ``train_without_template``, whether the ratio is instead to the policy with the unchanged
            prompt, as if it had sampled them.
        off_policy_rows: in place of sampling, a sample for each member: a row of the memory, or an answer of the data
            row.
        lenience: with rows of the memory, they are drafts: the first decisions of each that ``accepted`` keeps count as
            sampled now, and the row continues from there.
        window: the maximum number of tokens that each member gets at this step, of texts; one that is unfinished then,
            within its length limit, is stored in the memory and is not scored. None: no maximum.
        partial_rows: with a window, the unfinished row of an earlier step that each member continues.
        continues: the position in another row of the group from which they continue; None: the prompt.
        lookahead: the search for different beginnings of the members; None: they are sampled from their first token on.
        after: group and member of rows of earlier rounds; the prompt template inserts their texts for all members. A
            prompt that no earlier round requested has the data row of the first of these.
    """

    prompt: int
    members: tuple[int, ...]
    prompt_template: str | None = None
    share: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    trained: bool = True
    train_without_template: bool = False
    as_on_policy: bool = False
    off_policy_rows: Sequence[ReplayRow | Answer] = ()
    lenience: float | None = None
    window: int | None = None
    partial_rows: Sequence[PartialRow] = ()
    continues: Branch | None = None
    lookahead: Lookahead | None = None
    after: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        if self.after and self.prompt_template is None:
            raise ConfigError(
                "a request after other samples needs a prompt template that inserts their texts: name one"
            )
        if self.off_policy_rows and len(self.off_policy_rows) != len(self.members):
            raise ConfigError(
                f"off_policy_rows must have a sample for each of {len(self.members)} members, got "
                f"{len(self.off_policy_rows)}"
            )
        if self.partial_rows and (self.window is None or len(self.partial_rows) != len(self.members)):
            raise ConfigError(
                f"partial_rows needs a window and a row for each of {len(self.members)} members, got window="
                f"{self.window} and {len(self.partial_rows)} rows"
            )
        if self.window is not None and (self.off_policy_rows or self.continues or self.prompt_template is not None):
            raise ConfigError(
                "a request with a window samples from the unchanged prompt: leave out off_policy_rows, continues and "
                "prompt_template"
            )
        if self.continues is not None and (self.off_policy_rows or self.prompt_template is not None):
            raise ConfigError(
                "a request that continues another row uses the prompt unchanged: leave out prompt_template and "
                "off_policy_rows"
            )
        if self.lookahead is not None and (self.off_policy_rows or self.continues or self.window is not None):
            raise ConfigError(
                "a request with a lookahead samples complete texts from the prompt: leave out off_policy_rows, "
                "continues and window"
            )


@dataclass(frozen=True, slots=True)
class Branch:
    """A position in a row of an earlier round.

    Attributes:
        member: the row's number within the group.
        after: number of its first decisions that are shared.
        then: a text that is forced after them and never trained, before the row continues.
    """

    member: int
    after: int
    then: str = ""

    def __post_init__(self) -> None:
        if self.member < 0 or self.after < 1:
            raise ConfigError(f"a branch leaves a member after 1 decision or more, got {self.member} and {self.after}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer that a data row brings along, as a member of its group.

    Attributes:
        column: which holds it.
        is_media: whether it is an image, or the frames of a video; otherwise a text.
    """

    column: str
    is_media: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """The results of one round of requests; rows of all processes, in rank order.

    Rewards that compare the members of a group score those of this round; after the last round they score the kept
    members again, if those differ.

    Attributes:
        requests: the requests.
        request_B: the request of each row.
        prompt_B: prompt of each row.
        member_B: number of each row within its group.
        reward_B: float64, its combined rewards.
        valid_B: bool, whether any reward applied to it.
        length_B: number of its decisions that can be trained on.
        finished_B: bool, False if its length limit cut it off.
        places_B: branch points of each row by the strategy's ``places``, in order; empty without any.
        heights_B: the value of the first of these; likewise.
    """

    requests: Sequence[Request]
    request_B: Tensor
    prompt_B: Tensor
    member_B: Tensor
    reward_B: Tensor
    valid_B: Tensor
    length_B: Tensor
    finished_B: Tensor
    places_B: Sequence[Sequence[int]] = ()
    heights_B: Sequence[float] = ()

    def rewards_of(self, prompt: int) -> Tensor:
        """Rewards of the members of a prompt that any applied to, (members,)."""
        return self.reward_B[(self.prompt_B == prompt) & self.valid_B]

    def rewards(self) -> dict[int, dict[int, float]]:
        """The rewards of the members that any applied to, by member, of every prompt that has one."""
        rewards_by_prompt: dict[int, dict[int, float]] = {}
        columns = (column.tolist() for column in (self.prompt_B, self.member_B, self.reward_B, self.valid_B))
        for prompt, member, reward, valid in zip(*columns, strict=True):
            if valid:
                rewards_by_prompt.setdefault(prompt, {})[member] = reward
        return rewards_by_prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The data of the step for a strategy.

    Attributes:
        step: counted from 0.
        num_prompts: groups of the step.
        group_size: members per group.
        seed: seed of all samples.
        memory: the memory of earlier steps.
        key_of: identity of a prompt in the step -> its key in the memory.
    """

    step: int
    num_prompts: int
    group_size: int
    seed: int = 0
    memory: Memory = field(default_factory=Memory)
    key_of: Callable[[int], str] = str

    def groups(self, first: int, num: int) -> tuple[Request, ...]:
        """Requests of complete groups for consecutive prompts from one on."""
        return tuple(Request(prompt=first + k, members=tuple(range(self.group_size))) for k in range(num))


@dataclass(frozen=True, slots=True)
class Replay:
    """How many rows are remembered.

    Attributes:
        per_prompt: of one prompt, the newest.
        total: of all prompts.
    """

    per_prompt: int
    total: int


def trained(round_: Round) -> Tensor:
    """The rows of a round that may be trained on.

    Shapes: -> bool (B,).
    """
    may = torch.tensor([request.trained for request in round_.requests], dtype=torch.bool)
    return may[round_.request_B]


def all_trained(rounds: Sequence[Round], setting: Setting) -> Sequence[Tensor]:
    """The rows of each round that may be trained on.

    Shapes: -> bool (B,) of each round.
    """
    return [trained(round_) for round_ in rounds]


def unchanged_prompts(rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
    """One round: a complete group of each prompt of the setting, with the prompt unchanged."""
    return () if rounds else setting.groups(0, setting.num_prompts)


Ask = Callable[[Sequence[Round], Setting], Sequence[Request]]
"""(rounds so far, setting) -> the next round's requests; none end the rounds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """One strategy, its settings bound.

    Attributes:
        ask: (rounds so far, setting) -> the next round's requests; none end the step.
        keep: (rounds, setting) -> per round bool (B,), the rows that are trained on and compared in groups; None: all
            that may be trained on.
        looks_back: whether it is called again after the first round; the round's rewards are then awaited.
        replay: the rows of a step to remember for replay; None: no rows.
        places: the positions in its rows from which others may continue; None: no positions.
        memory: columns of the memory that it reads.
        weights: names of the policy's weights that requests may name, besides those of ``forgetting``.
        forgetting: the unlearning step of weights that requests may name; None: no such
            weights.
        start: step of its first further round or row, counted from 0.
        off_policy: whether its rows may be of replay, of the data, or trained with another prompt than they were
            sampled from.
        window: the maximum number of tokens of a row at a step; unfinished rows continue at the next step. None: rows
            are complete within their step.
        looks_ahead: whether its requests may have a lookahead, a search by the current weights.
        evaluation: the rounds of an evaluation, whose setting has the held-out prompts and the samples of each; no
            reward applied to the rows of its rounds, and none of them is random.
    """

    ask: Ask
    keep: Callable[[Sequence[Round], Setting], Sequence[Tensor]] = all_trained
    looks_back: bool = False
    replay: Replay | None = None
    places: Places | None = None
    memory: tuple[Column, ...] = ()
    weights: tuple[str, ...] = ()
    forgetting: Forgetting | None = None
    start: int = 0
    off_policy: bool = False
    window: int | None = None
    looks_ahead: bool = False
    evaluation: Ask = unchanged_prompts


def strategy(
    *,
    keep: Callable[..., Sequence[Tensor]] = all_trained,
    looks_back: Callable[..., bool] | bool = False,
    replay: Callable[..., Replay | None] | Replay | None = None,
    places: Callable[..., Places] | None = None,
    memory: tuple[Column, ...] = (),
    weights: Callable[..., tuple[str, ...]] | tuple[str, ...] = (),
    start: Callable[..., int] | int = 0,
    off_policy: Callable[..., bool] | bool = False,
    window: Callable[..., int | None] | int | None = None,
    looks_ahead: bool = False,
    evaluation: Callable[..., Ask] = lambda: unchanged_prompts,
    check: Callable[..., Any] | None = None,
) -> Callable[
    [Callable[Concatenate[Sequence[Round], Setting, Numbers], Sequence[Request]]], Callable[Numbers, Strategy]
]:
    """A decorator: a function (rounds so far, setting, *, numbers) -> requests becomes a factory of strategies.

    Args:
        keep: as the attribute of ``Strategy``; settings that it names as keyword-only parameters are bound to it.
        looks_back: as the attribute, or a function of the settings that it names; so are those that follow.
        replay: likewise.
        places: a function of the settings that it names, as ``lambda: meanings_part()``.
        memory: as the attribute.
        weights: as ``looks_back``.
        start: as ``looks_back``.
        off_policy: as ``looks_back``.
        window: as ``looks_back``.
        looks_ahead: as the attribute.
        evaluation: a function of the settings that it names, which returns the attribute.
        check: raises ConfigError for settings that do not go together; called with those that it names.

    Returns:
        The decorator.
    """
    return factory(
        Strategy,
        "ask",
        check=check,
        functions={"keep": keep},
        looks_back=looks_back,
        replay=replay,
        places=places,
        memory=memory,
        weights=weights,
        start=start,
        off_policy=off_policy,
        window=window,
        looks_ahead=looks_ahead,
        evaluation=evaluation,
    )


def second_round(
    *,
    keep: Callable[..., Sequence[Tensor]] = all_trained,
    places: Callable[..., Places] | None = None,
    start: Callable[..., int] | int = 0,
    off_policy: Callable[..., bool] | bool = False,
    check: Callable[..., Any] | None = None,
) -> Callable[[Callable[Concatenate[Round, Setting, Numbers], Sequence[Request]]], Callable[Numbers, Strategy]]:
    """A decorator: a function (first round, setting, *, numbers) -> requests becomes a factory of strategies.

    Their first round is every group, their second one these requests.

    Args:
        keep: as that of ``strategy``.
        places: likewise.
        start: likewise.
        off_policy: likewise.
        check: likewise.

    Returns:
        The decorator.
    """
    return factory(
        _of_two_rounds,
        "further",
        check=check,
        functions={"keep": keep},
        places=places,
        start=start,
        off_policy=off_policy,
    )


def _of_two_rounds(
    *,
    further: Callable[[Round, Setting], Sequence[Request]],
    keep: Callable[[Sequence[Round], Setting], Sequence[Tensor]],
    places: Places | None,
    start: int,
    off_policy: bool,
) -> Strategy:
    ask = partial(ask_then, further=further)
    return Strategy(ask=ask, keep=keep, looks_back=True, places=places, start=start, off_policy=off_policy)


def ask_then(
    rounds: Sequence[Round], setting: Setting, *, further: Callable[[Round, Setting], Sequence[Request]]
) -> Sequence[Request]:
    """Every group; then, once, the requests that follow from the first round."""
    if not rounds:
        return setting.groups(0, setting.num_prompts)
    return further(rounds[0], setting) if len(rounds) == 1 else ()


def failed(round_: Round, setting: Setting, below: float) -> Sequence[int]:
    """The prompts with all rewards of a round under a bound; a prompt without rewards has not failed."""
    rewards = round_.rewards()
    return [prompt for prompt in range(setting.num_prompts) if max(rewards.get(prompt, UNREWARDED).values()) < below]


def failed_branches(round_: Round, below: float) -> list[tuple[int, Branch]]:
    """The prompt and the first branch point of each row with a reward under a bound, by prompt and member.

    Rows without a reward or a branch point have none.
    """
    columns = (column.tolist() for column in (round_.prompt_B, round_.member_B, round_.reward_B, round_.valid_B))
    return sorted(
        (
            (prompt, Branch(member, places[0]))
            for prompt, member, reward, valid, places in zip(*columns, round_.places_B, strict=True)
            if valid and reward < below and places
        ),
        key=lambda row: (row[0], row[1].member),
    )


UNREWARDED: Mapping[int, float] = {0: math.inf}
"""A group that no reward applied to has not failed."""


OF_GROUP_SIZE = ("fixed", "refill")
"""Strategies with ``rollout.group_size`` members in every group."""


@STRATEGIES.register
@strategy()
def fixed(rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
    """One round: ``prompts_per_step`` groups of ``group_size`` members each."""
    return unchanged_prompts(rounds, setting)


def _first_informative(
    rounds: Sequence[Round], setting: Setting, *, target: int | None, variance: float | None
) -> Sequence[Tensor]:
    chosen = torch.tensor(_differing(rounds, variance)[: target or setting.num_prompts], dtype=torch.long)
    return [trained(round_) & torch.isin(round_.prompt_B, chosen) for round_ in rounds]


def _check_refill(rounds: int, target: int | None, factor: float, variance: float | None) -> None:
    if rounds < 1 or factor <= 0 or (target is not None and target < 1):
        raise ConfigError(f"refill needs rounds >= 1, target >= 1 and factor > 0, got {rounds}, {target}, {factor}")
    if variance is not None and not 0 <= variance <= 1:
        raise ConfigError(f"refill's variance is a share of the largest there is, from 0 to 1, got {variance}")


@STRATEGIES.register
@strategy(keep=_first_informative, looks_back=True, check=_check_refill)
def refill(
    earlier: Sequence[Round],
    setting: Setting,
    *,
    rounds: int = 10,
    target: int | None = None,
    factor: float = 1.0,
    variance: float | None = None,
) -> Sequence[Request]:
    """Dynamic sampling: further prompts are sampled until ``target`` groups have rewards that differ, and those train.

    Each round requests ceil((target - groups found) * factor) further prompts, at most ``rounds`` rounds in all. Groups
    of equal rewards and groups beyond the target are left out; with ``variance``, so are groups with a variance of the
    rewards below that share of the largest possible one of n rewards of 0 or 1.

    Units: rounds and groups; target null: ``rollout.prompts_per_step``; variance is dimensionless, 0 to 1.
    Raises: ConfigError for numbers that request nothing.
    Source: DAPO, arXiv:2503.14476, sec. 3.2, eq. 11; VCRL, arXiv:2509.19803, p = sigma^2 / sigma_max^2 >= kappa.
    Deviation: DAPO's code samples batches of a constant size, and raises an error after its last one; here the groups
    found until then are trained on. VCRL takes missing groups from stored prompts of high variance.
    """
    if not earlier:
        return setting.groups(0, setting.num_prompts)
    missing = (target or setting.num_prompts) - len(_differing(earlier, variance))
    if missing <= 0 or len(earlier) == rounds:
        return ()
    return setting.groups(sum(len(round_.requests) for round_ in earlier), math.ceil(missing * factor))


def _differing(rounds: Sequence[Round], variance: float | None) -> list[int]:
    return informative(rounds) if variance is None else varied(rounds, least=variance)


def informative(rounds: Sequence[Round]) -> list[int]:
    """Prompts with differing rewards, in order.

    Shapes: (B,) of each round -> list.
    """
    if not rounds:
        return []
    reward_B, prompt_P, index_B = _by_prompt(rounds)
    low_P, high_P = (
        reward_B.new_zeros(len(prompt_P)).scatter_reduce(0, index_B, reward_B, end, include_self=False)
        for end in ("amin", "amax")
    )
    return prompt_P[low_P != high_P].tolist()


def varied(rounds: Sequence[Round], *, least: float) -> list[int]:
    """Prompts with rewards that differ enough, in order: n sum (r - mean r)^2 >= least floor(n / 2) ceil(n / 2).

    Shapes: (B,) of each round -> list.   Units: least is dimensionless, of rewards from 0 to 1.
    """
    differ = informative(rounds)
    if not differ:
        return []
    reward_B, prompt_P, index_B = _by_prompt(rounds)
    zero_P = reward_B.new_zeros(len(prompt_P))
    num_P = zero_P.scatter_add(0, index_B, torch.ones_like(reward_B))
    mean_P = zero_P.scatter_add(0, index_B, reward_B) / num_P
    square_P = zero_P.scatter_add(0, index_B, (reward_B - mean_P[index_B]).square())
    most_P = (num_P / 2).floor() * (num_P / 2).ceil()
    enough = set(prompt_P[num_P * square_P >= least * most_P - 1e-9].tolist())
    return [prompt for prompt in differ if prompt in enough]


def _by_prompt(rounds: Sequence[Round]) -> tuple[Tensor, Tensor, Tensor]:
    """Rewards that apply, the prompts that have any, and which of these each is of."""
    valid_B = torch.cat([round_.valid_B for round_ in rounds])
    reward_B = torch.cat([round_.reward_B for round_ in rounds])[valid_B]
    prompt_P, index_B = torch.cat([round_.prompt_B for round_ in rounds])[valid_B].unique(return_inverse=True)
    return reward_B, prompt_P, index_B
