"""Chains: rows that are sampled after others of the step, with prompts that a prompt template makes of their texts.

Each stage is a round. Its rows are trained like any others, each with its own prompt, in a separate group or in that of
the row before it. Rewards see all rows of a data row together, and may score a row by the rows after it
(``Sample.after``).

Axes: B rows of a round, over all processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Ask, Request, Round, Setting, strategy
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor

Identity = tuple[int, int]
Which = Literal["all", "best", "right", "wrong", "unfinished"]
Show = Literal["each", "group", "pair"]
Into = Literal["own", "parent", "stage"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage that is sampled after the rows of another stage.

    Attributes:
        prompt_template: name of the one of ``rollout.prompt_templates`` that inserts them; no two stages have the same.
        of: prompt template of the stage with these rows; None: the stage before.
        rows: which of them: all, the one of each group with the highest reward (the first of equal ones), those with a
            reward of at least ``right``, those under it, or those cut off by their length.
        right: the reward of a right row, for ``rows`` and ``show`` that read it; None: 1.
        rate: lowest and highest mean reward of groups with rows that continue; None: any.
        most: rows of each group that continue, the first ones; None: all.
        show: each row to separate members; all chosen rows of a group together; or its first right row with its first
            wrong one, of those.
        inherits: whether the rows that each of them was sampled after are inserted too, before it.
        members: number of members sampled after the inserted rows; None: ``rollout.group_size``.
        group: own, they are a group; parent, they join the group of the row before them; stage, all that are sampled at
            this stage after rows of one group are a group.
        trained: whether they are trained on; otherwise only rewards of other rows read them.
        settings: sampling settings of the policy.
        weights: name of the policy's weights that sample; None: the current ones.
        times: number of repetitions, from the second one on after its own rows.
    """

    prompt_template: str
    of: str | None = None
    rows: Which = "all"
    right: float | None = None
    rate: tuple[float, float] | None = None
    most: int | None = None
    show: Show = "each"
    inherits: bool = False
    members: int | None = None
    group: Into = "own"
    trained: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    weights: str | None = None
    times: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class First:
    """The first stage of a step.

    Attributes:
        prompt_template: name of the prompt template of the prompt of its rows; None: the unchanged prompt.
        members: of each group; None: ``rollout.group_size``.
        trained: whether they are trained on.
        settings: sampling settings of the policy.
    """

    prompt_template: str | None = None
    members: int | None = None
    trained: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)


def _parsed(then: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None) -> tuple[First, tuple[Stage, ...]]:
    first_stage = _parse_stage(First, first or {})
    later_stages = tuple(_parse_stage(Stage, settings) for settings in then)
    _require_chain(first_stage, later_stages)
    return first_stage, later_stages


def _weights(then: Sequence[Mapping[str, Any]], first: Mapping[str, Any] | None) -> tuple[str, ...]:
    names = (stage.weights for stage in _parsed(then, first)[1])
    return tuple(dict.fromkeys(name for name in names if name is not None))


@STRATEGIES.register
@strategy(looks_back=True, weights=_weights, check=_parsed)
def stages(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    then: Sequence[Mapping[str, Any]],
    first: Mapping[str, Any] | None = None,
) -> Sequence[Request]:
    """Consecutive rounds: a prompt template inserts the samples of one round into the prompts of the next.

    ``first`` holds any of prompt template, members, trained and settings of the step's first rows; ``then`` a mapping
    for each later stage: ``prompt_template``, and any of of, rows (all, best, right, wrong, unfinished), right, rate,
    most, show (each, group, pair), inherits, members, group (own, parent, stage), trained, settings, weights, times. A
    stage for which there are no rows is left out.

    Units: right and rate in those of the reward; times in rounds.
    Raises: ConfigError for invalid stages, or stages that follow no other.
    Source: proposer and solver: SvS, arXiv:2508.14029; rounds of thinking: MOTIF, arXiv:2507.02851; Delethink,
        arXiv:2510.06557.
    """
    first_stage, later_stages = _parsed(then, first)
    if not rounds:
        members = tuple(range(first_stage.members or setting.group_size))
        return tuple(
            Request(
                prompt=prompt,
                members=members,
                prompt_template=first_stage.prompt_template,
                trained=first_stage.trained,
                settings=first_stage.settings,
            )
            for prompt in range(setting.num_prompts)
        )
    num_rounds = 1
    # the first stage, in order, that has rows to follow and was not sampled yet
    for index, stage in enumerate(later_stages):
        before = later_stages[index - 1].prompt_template if index else first_stage.prompt_template
        followed = stage.of if stage.of is not None else before
        for time in range(stage.times):
            label = stage.prompt_template if time else followed
            parents = (each for each in reversed(rounds[:num_rounds]) if each.requests[0].prompt_template == label)
            requests = _requests(stage, rounds[:num_rounds], setting, next(parents, None))
            if requests and num_rounds == len(rounds):
                return requests
            num_rounds += bool(requests)
    return ()


def _check_take_turns(roles: Sequence[str], turns: int, follow: str) -> None:
    if not roles or not all(isinstance(role, str) for role in roles) or turns < 2:
        raise ConfigError(f"take_turns needs roles, names of rollout.prompt_templates, and turns >= 2, got {turns}")
    if turns < len(roles):
        raise ConfigError(f"take_turns: {roles[turns]} has no turn: {turns} turns of {len(roles)} roles; raise turns")
    if follow not in FOLLOW:
        raise ConfigError(f"take_turns: follow is one of {', '.join(FOLLOW)}, got {follow!r}")


def _request_turn(
    rounds: Sequence[Round], setting: Setting, *, roles: Sequence[str], turns: int, follow: str
) -> Sequence[Request]:
    """The next turn of each conversation."""
    role = roles[len(rounds) % len(roles)]
    if not rounds:
        members = tuple(range(setting.group_size))
        return [Request(prompt=p, members=members, prompt_template=role) for p in range(setting.num_prompts)]
    if len(rounds) == turns:
        return ()
    return _requests(FOLLOW[follow](prompt_template=role), rounds, setting, rounds[-1])


def _single_answers(roles: Sequence[str], turns: int) -> Ask:
    return partial(_request_turn, roles=roles, turns=turns, follow="each")


@STRATEGIES.register
@strategy(looks_back=True, evaluation=_single_answers, check=_check_take_turns)
def take_turns(
    rounds: Sequence[Round], setting: Setting, *, roles: Sequence[str], turns: int, follow: str = "each"
) -> Sequence[Request]:
    """Conversations between roles of the policy, each turn a round of rows with the prompt of its role.

    Turn k, from 0, is that of role k modulo their number: the name of one of ``rollout.prompt_templates``, such as
    ``role``, whose text a row continues. The first turn has ``group_size`` rows of each prompt.

    - ``each``: every row is followed by one row, so that there are ``group_size`` conversations of a prompt; the rows
      of one turn of a prompt are a group.
    - ``best``: the row of a group with the highest reward, the first of equal ones, is followed by a group of
      ``group_size`` rows.

    A row is trained on the advantage within its group: among rows of the same role, turn and prompt and, with ``best``,
    of the same conversation so far. A conversation ends before a turn whose prompt template does not apply. An
    evaluation has the conversations of ``each``.

    Units: turns in rounds, 2 or more.
    Raises: ConfigError for less, no roles, a role without a turn, or another choice.
    Source: ``best``: AT-GRPO, arXiv:2510.11062, agent- and turn-wise groups, sampled greedily by the reward, and its
        code (pettingllms-ai/PettingLLMs, ``multi_agents_execution_engine.py``), where a role reads a separate prompt;
        ``each``: CoMAS, arXiv:2510.08529.
    """
    return _request_turn(rounds, setting, roles=roles, turns=turns, follow=follow)


FOLLOW: Mapping[str, Callable[..., Stage]] = MappingProxyType(
    {"each": partial(Stage, members=1, group="stage"), "best": partial(Stage, rows="best")}
)
"""The stage after each turn, by ``follow`` of ``take_turns``."""


def _parse_stage(kind: type[Any], values: Mapping[str, Any]) -> Any:
    names = {field.name for field in fields(kind)}
    if wrong := sorted(values.keys() - names):
        raise ConfigError(f"stages: a stage takes {', '.join(sorted(names))}; got {', '.join(wrong)}")
    if kind is Stage and not isinstance(values.get("prompt_template"), str):
        raise ConfigError(
            "stages: each stage after the first names its prompt template, one of rollout.prompt_templates"
        )
    ordered: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return kind(**ordered)


def _require_chain(first: First, then: Sequence[Stage]) -> None:
    labels = [first.prompt_template, *(stage.prompt_template for stage in then)]
    if not then or len(set(labels)) < len(labels):
        raise ConfigError("stages needs one stage or more after the first, each with a different prompt template")
    for index, stage in enumerate(then):
        _require_rows(stage)
        if stage.of is not None and stage.of not in labels[: index + 1]:
            raise ConfigError(f"stages: {stage.prompt_template} follows {stage.of!r}, which is no stage before it")
        if min(stage.members or 1, stage.most or 1, stage.times) < 1:
            raise ConfigError(f"stages: {stage.prompt_template}: members, most and times are 1 or more")
        if stage.rate is not None and (len(stage.rate) != 2 or stage.rate[0] > stage.rate[1]):
            raise ConfigError(f"stages: {stage.prompt_template}: rate is the least and the highest mean reward")


def _require_rows(stage: Stage) -> None:
    for value, allowed in ((stage.rows, Which), (stage.show, Show), (stage.group, Into)):
        if value not in get_args(allowed):
            raise ConfigError(
                f"stages: {stage.prompt_template}: choose from {', '.join(get_args(allowed))}, got {value!r}"
            )
    if stage.show == "pair" and (stage.rows in ("best", "right", "wrong") or stage.most is not None):
        raise ConfigError(
            f"stages: {stage.prompt_template}: show: pair takes a right and a wrong row of all or unfinished ones: "
            f"leave out most and rows: {stage.rows}"
        )
    if stage.right is not None and stage.rows not in ("right", "wrong") and stage.show != "pair":
        raise ConfigError(
            f"stages: {stage.prompt_template}: right is for rows: right or wrong, and show: pair; leave it out"
        )


def _requests(stage: Stage, rounds: Sequence[Round], setting: Setting, parents: Round | None) -> tuple[Request, ...]:
    """The requests of a stage after the rows of one of the rounds."""
    if parents is None:
        return ()
    earlier = [request for round_ in rounds for request in round_.requests]
    unused = max(request.prompt for request in earlier) + 1
    taken: dict[int, int] = {}
    new_groups: dict[int, int] = {}
    for request in earlier:
        taken[request.prompt] = max(taken.get(request.prompt, 0), max(request.members) + 1)
    requests, num = [], stage.members or setting.group_size
    before = {(request.prompt, member): request.after for request in earlier for member in request.members}
    for number, chosen in enumerate(_prompt_samples(stage, parents)):
        family = chosen[0][0]
        inherited = before if stage.inherits else {}
        after = tuple(identity for row in chosen for identity in (*inherited.get(row, ()), row))
        key = number if stage.group == "own" else family
        group = family if stage.group == "parent" else unused + new_groups.setdefault(key, len(new_groups))
        start = taken.get(group, 0)
        taken[group] = start + num
        requests.append(
            Request(
                prompt=group,
                members=tuple(range(start, start + num)),
                prompt_template=stage.prompt_template,
                settings=stage.settings,
                weights=stage.weights,
                trained=stage.trained,
                after=after,
            )
        )
    return tuple(requests)


def _prompt_samples(stage: Stage, parents: Round) -> Iterator[tuple[Identity, ...]]:
    """The rows that are inserted together, by group and in the order of their members."""
    right_B = parents.valid_B & (parents.reward_B >= (1.0 if stage.right is None else stage.right))
    chosen_B = _chosen(stage, parents, right_B)
    for group in parents.prompt_B.unique().tolist():
        rows = ((parents.prompt_B == group) & chosen_B).nonzero().flatten()
        rows = rows[parents.member_B[rows].argsort()]
        members = [(group, int(member)) for member in parents.member_B[rows]]
        if stage.show == "pair":
            sides = [member for side_B in (right_B, ~right_B) for member in _first(members, side_B[rows])]
            members = sides if len(sides) == 2 else []
        members = members[: stage.most]
        yield from ([(member,) for member in members] if stage.show == "each" else [tuple(members)] if members else [])


def _best(parents: Round) -> Tensor:
    """(B,) bool, the row of each group with the highest reward; of rows without one, and of equal ones, the first."""
    reward_B = parents.reward_B.where(parents.valid_B, -torch.inf)
    best_B = torch.zeros_like(parents.valid_B)
    for group in parents.prompt_B.unique().tolist():
        rows = (parents.prompt_B == group).nonzero().flatten()
        rows = rows[parents.member_B[rows].argsort()]
        best_B[rows[reward_B[rows] == reward_B[rows].max()][0]] = True
    return best_B


def _first(members: Sequence[Identity], of_side: Tensor) -> Sequence[Identity]:
    return [member for member, is_so in zip(members, of_side.tolist(), strict=True) if is_so][:1]


def _chosen(stage: Stage, parents: Round, right_B: Tensor) -> Tensor:
    """(B,) bool, the rows that others are sampled after."""
    every_B = torch.ones_like(right_B)
    which = {"all": every_B, "right": right_B, "wrong": ~right_B, "unfinished": ~parents.finished_B}
    which["best"] = _best(parents)
    if stage.rate is None:
        return which[stage.rows]
    least, highest = stage.rate
    rates = {group: parents.rewards_of(group) for group in parents.prompt_B.unique().tolist()}
    within = [group for group, rate_G in rates.items() if len(rate_G) and least <= float(rate_G.mean()) <= highest]
    return which[stage.rows] & torch.isin(parents.prompt_B, torch.tensor(within, dtype=parents.prompt_B.dtype))
