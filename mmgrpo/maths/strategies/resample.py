"""Strategies that sample again: after failure, among scouts, together with remembered rows and demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import (
    STRATEGIES,
    Answer,
    Replay,
    Request,
    Round,
    Setting,
    all_trained,
    failed,
    fixed,
    second_round,
    strategy,
    trained,
)
from mmgrpo.maths.strategies.replay_order import REPLAY_ORDERS, replayed
from mmgrpo.memory import ReplayRow
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _without_replaced(rounds: Sequence[Round], setting: Setting, members: int) -> Sequence[Tensor]:
    """All but the last members of each group that was resampled."""
    keep = [trained(round_) for round_ in rounds]
    again = torch.tensor([request.prompt for round_ in rounds[1:] for request in round_.requests], dtype=torch.long)
    replaced_B = torch.isin(rounds[0].prompt_B, again) & (rounds[0].member_B >= setting.group_size - members)
    return [keep[0] & ~replaced_B, *keep[1:]]


def _keep_on_failure(
    rounds: Sequence[Round], setting: Setting, *, members: int, replace_failed: bool
) -> Sequence[Tensor]:
    return _without_replaced(rounds, setting, members) if replace_failed else all_trained(rounds, setting)


def _check_on_failure(members: int, prompt_template: str | None, settings: Mapping[str, Any] | None) -> None:
    if members < 1 or (prompt_template is None and not settings):
        raise ConfigError("on_failure needs members >= 1, and a prompt template or settings for the second attempt")


@STRATEGIES.register
@second_round(
    keep=_keep_on_failure,
    off_policy=lambda prompt_template, train_without_template: prompt_template is not None and train_without_template,
    check=_check_on_failure,
)
def on_failure(
    first: Round,
    setting: Setting,
    *,
    members: int = 4,
    prompt_template: str | None = None,
    below: float = 1.0,
    replace_failed: bool = True,
    train_without_template: bool = True,
    settings: Mapping[str, Any] | None = None,
) -> Sequence[Request]:
    """A second attempt at prompts with only failed members: further members with a hint or other settings.

    A group fails where all rewards are under ``below``. Its further members have the prompt in ``prompt_template`` (one
    of ``rollout.prompt_templates``), or are sampled with other ``settings``; they replace as many failed ones, or join
    them. Samples with a hint are trained on with the unchanged prompt, their ratio to the policy with the hint, or with
    the hint in place.

    Units: members a group; below in those of the reward.
    Raises: ConfigError for numbers that change nothing.
    Source: hints after failure: Guide-GRPO, arXiv:2506.13923; Scaf-GRPO, arXiv:2510.19807; other settings: e-frame.
    """
    further = tuple(range(setting.group_size, setting.group_size + members))
    return tuple(
        Request(
            prompt=prompt,
            members=further,
            prompt_template=prompt_template,
            settings=settings or {},
            train_without_template=train_without_template and prompt_template is not None,
        )
        for prompt in failed(first, setting, below)
    )


def _check_two_stage_scouts(scouts: int, best: int, worst: int, settings: Mapping[str, Any]) -> None:
    if best < 0 or worst < 0 or not 2 <= best + worst <= scouts:
        raise ConfigError(f"two_stage_scouts needs best + worst from 2 to scouts={scouts}, got {best} + {worst}")
    if not settings:
        raise ConfigError("scouts are sampled with other settings; set settings, for example {call: {...}}")


@STRATEGIES.register
@strategy(looks_back=True, check=_check_two_stage_scouts)
def two_stage_scouts(
    rounds: Sequence[Round], setting: Setting, *, scouts: int, best: int, worst: int, settings: Mapping[str, Any]
) -> Sequence[Request]:
    """Many members sampled cheaply; the best and the worst of them are sampled again exactly, and only those are
    trained on.

    Scouts are sampled with other ``settings`` (fewer steps, lower resolution) from the same noise as the member of
    their number, so that their reward predicts that of the exact one.

    Units: members a group; settings are the policy's own.
    Raises: ConfigError unless best + worst is 2 to the number of scouts.
    Source: best and worst of many: Xu et al., Not all rollouts are useful, arXiv:2504.13818; cheap scouts are mmgrpo's.
    """
    prompts, every = range(setting.num_prompts), tuple(range(scouts))
    if not rounds:
        return tuple(Request(prompt=prompt, members=every, settings=settings, trained=False) for prompt in prompts)
    if len(rounds) > 1:
        return ()
    return tuple(Request(prompt=prompt, members=_extremes(rounds[0], prompt, best, worst)) for prompt in prompts)


def _extremes(round_: Round, prompt: int, best: int, worst: int) -> tuple[int, ...]:
    """Numbers of the best and the worst members; members without a reward are the worst."""
    rows = (round_.prompt_B == prompt).nonzero().flatten()
    reward_G = round_.reward_B[rows].where(round_.valid_B[rows], -torch.inf)
    order = reward_G.argsort(descending=True, stable=True)
    chosen = torch.cat([order[:best], order[len(order) - worst :]])
    return tuple(sorted(int(round_.member_B[rows[index]]) for index in chosen))


def _check_with_replay(strategy: str, num: int, per_prompt: int, total: int, least: int, start: int) -> None:
    if strategy not in REPLAY_ORDERS:
        raise ConfigError(f"unknown replay strategy {strategy!r}; choose from {', '.join(REPLAY_ORDERS)}")
    if min(num, per_prompt, total, least) < 1 or start < 0:
        raise ConfigError("with_replay needs num, per_prompt, total and least of at least 1, and start >= 0")
    if least > per_prompt:
        raise ConfigError(f"with_replay never has least={least} rows of a prompt: raise per_prompt={per_prompt}")


@STRATEGIES.register
@strategy(
    replay=lambda per_prompt, total: Replay(per_prompt=per_prompt, total=total),
    start=lambda start: start,
    off_policy=True,
    check=_check_with_replay,
)
def with_replay(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    num: int = 4,
    strategy: str = "recency",
    per_prompt: int = 16,
    total: int = 100_000,
    start: int = 0,
    least: int = 1,
    at_least: float | None = None,
) -> Sequence[Request]:
    """Groups that remembered rows of their prompt join, with the log-probabilities under their behavior policy.

    ``num`` of the prompt's rows by ``strategy`` (recency, reward, variance, full, surest), from step ``start`` on, once
    there are ``least`` of them; with ``at_least`` only rows of such a reward count. Every trained row of a step is
    remembered, ``per_prompt`` of a prompt, ``total`` in all.

    Units: rows; at_least in those of the reward.
    Raises: ConfigError for an unknown strategy, or numbers that store nothing.
    Source: RePO, arXiv:2506.09340, and its code (SihengLi99/RePO); ExGRPO, arXiv:2510.02245.
    """
    groups = fixed().ask(rounds, setting)
    if setting.step < start:
        return groups
    read = partial(replayed, setting.memory, num=num, strategy=strategy, least=least, at_least=at_least)
    rows_by_group = [read(setting.key_of(group.prompt)) for group in groups]
    return (*groups, *(_extended_group(group, rows) for group, rows in zip(groups, rows_by_group, strict=True) if rows))


def _extended_group(group: Request, samples: Sequence[ReplayRow | Answer]) -> Request:
    """Samples to re-score as further members of a complete group."""
    first = len(group.members)
    return Request(
        prompt=group.prompt, members=tuple(range(first, first + len(samples))), off_policy_rows=tuple(samples)
    )


def _keep_with_answer(
    rounds: Sequence[Round], setting: Setting, *, further: Sequence[str], replace_failed: bool
) -> Sequence[Tensor]:
    return _without_replaced(rounds, setting, 1 + len(further)) if replace_failed else all_trained(rounds, setting)


def _check_with_answer(below: float | None, replace_failed: bool) -> None:
    if below is None and replace_failed:
        raise ConfigError(
            "with_answer replaces members of groups that failed: set below, the reward under which a group failed"
        )


@STRATEGIES.register
@strategy(
    keep=_keep_with_answer,
    looks_back=lambda below: below is not None,
    off_policy=True,
    check=_check_with_answer,
)
def with_answer(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    column: str = "solution",
    further: Sequence[str] = (),
    below: float | None = None,
    replace_failed: bool = False,
) -> Sequence[Request]:
    """Groups that the answers of the data row join as members: all groups, or those with only failed members.

    One answer is in ``column``, and one in each of the ``further`` columns. With ``replace_failed`` they replace as
    many members that failed.

    Units: below in those of the reward; null: every group.
    Raises: ConfigError for ``replace_failed`` without ``below``.
    Source: the reference answer in place of a member when all fail: GCPO, arXiv:2510.07790; answers of several
    teachers: AMPO, arXiv:2510.02227; a demonstration in the group: LUFFY, arXiv:2504.14945.
    """
    answers = tuple(Answer(name) for name in (column, *further))
    groups = fixed().ask(rounds, setting)
    if below is None:
        return (*groups, *(_extended_group(group, answers) for group in groups))
    if len(rounds) != 1:
        return groups
    prompts = failed(rounds[0], setting, below)
    return tuple(_extended_group(group, answers) for prompt in prompts for group in setting.groups(prompt, 1))


def _check_stored_answers(columns: Sequence[str]) -> None:
    if not columns:
        raise ConfigError("stored_answers needs the columns that hold a row's answers, one at least")


@STRATEGIES.register
@strategy(off_policy=True, check=_check_stored_answers)
def stored_answers(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    columns: Sequence[str],
    source: str | None = None,
    media: bool = False,
) -> Sequence[Request]:
    """Groups consist of the answers of their rows, one in each column, without sampling.

    With a ``source`` only those of its prompts; groups of all other prompts are sampled. With ``media`` columns hold
    images, or the frames of videos.

    Units: source is a label of ``prompts.sources``.   Raises: ConfigError without columns.
    Source: pairs of a data set, DPO, arXiv:2305.18290; groups of equivalent programs in addition to sampled groups,
        OORL, arXiv:2505.12723.
    """
    answers = tuple(Answer(column, is_media=media) for column in columns)
    members = tuple(range(len(answers)))
    return tuple(
        Request(prompt=request.prompt, members=members, off_policy_rows=answers)
        if source is None or setting.key_of(request.prompt).startswith(f"{source}/")
        else request
        for request in fixed().ask(rounds, setting)
    )


def _check_mixed_prompt_templates(prompt_templates: Sequence[str | None], sizes: Sequence[int]) -> None:
    if not prompt_templates or (sizes and len(sizes) != len(prompt_templates)) or any(size < 1 for size in sizes):
        raise ConfigError(
            f"mixed_prompt_templates takes prompt templates, and a size of 1 or more for each or none, got {sizes}"
        )


@STRATEGIES.register
@strategy(off_policy=lambda train_without_template: train_without_template, check=_check_mixed_prompt_templates)
def mixed_prompt_templates(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    prompt_templates: Sequence[str | None],
    sizes: Sequence[int] = (),
    train_without_template: bool = False,
    as_on_policy: bool = False,
) -> Sequence[Request]:
    """Groups with the prompt in different prompt templates, part by part: the first members in the first.

    The group is split into equal parts, or into parts of these ``sizes``; null is the unchanged prompt. Samples of a
    prompt template are trained on with it in place, or with the unchanged prompt: their ratio is then to the policy
    with the prompt template or, with ``as_on_policy``, to the one with the unchanged prompt.

    Units: members.   Raises: ConfigError without prompt templates, for a size for less than each, or parts that are no
    group.
    Source: variants of a question in one group: Share-GRPO (R1-ShareVL), arXiv:2505.16673; members that see the rules,
    trained on without them: PolicyRollout (TriMPI), arXiv:2510.09474; a guided part: G2RPO-A, arXiv:2508.13023; members
    without a thought: RAIF, arXiv:2506.01413.
    """
    if rounds:
        return ()
    sizes = sizes or [setting.group_size // len(prompt_templates)] * len(prompt_templates)
    if sum(sizes) != setting.group_size:
        raise ConfigError(
            f"mixed_prompt_templates shows {sum(sizes)} members of a group something, and it has "
            f"{setting.group_size}: choose rollout.group_size as the sum of sizes, or a multiple of the prompt "
            "templates"
        )
    parts = list(zip(prompt_templates, sizes, accumulate(sizes), strict=True))
    return tuple(
        Request(
            prompt=prompt,
            members=tuple(range(end - size, end)),
            prompt_template=prompt_template,
            train_without_template=train_without_template and prompt_template is not None,
            as_on_policy=train_without_template and as_on_policy and prompt_template is not None,
        )
        for prompt in range(setting.num_prompts)
        for prompt_template, size, end in parts
    )
