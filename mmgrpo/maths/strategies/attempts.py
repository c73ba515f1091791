"""Strategies of further attempts: groups resampled until a member is right, and answers written after drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Replay, Request, Round, Setting, all_trained, failed, strategy, trained
from mmgrpo.maths.strategies.replay_order import replayed
from mmgrpo.system.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor


def _keep_attempts(rounds: Sequence[Round], setting: Setting, *, keep: str) -> Sequence[Tensor]:
    """All rows that may be trained on; with ``last``, of each prompt those of the last round that has any."""
    masks = all_trained(rounds, setting)
    if keep == "all":
        return masks
    last = list(masks)
    for number, keep_B in enumerate(masks):
        later = {prompt for round_ in rounds[number + 1 :] for prompt in round_.prompt_B[trained(round_)].tolist()}
        last[number] = keep_B & ~torch.isin(rounds[number].prompt_B, torch.tensor(sorted(later), dtype=torch.long))
    return last


def _check_resample_until_correct(
    attempts: Sequence[str | None], keep: str, start: int, reuse: int, rows_per_prompt: int
) -> None:
    if not attempts or keep not in ("last", "all") or min(start, reuse) < 0 or rows_per_prompt < 1:
        raise ConfigError(
            "resample_until_correct needs attempts >= 1, keep: last or all, start and reuse >= 0, and held >= 1"
        )


@STRATEGIES.register
@strategy(
    keep=_keep_attempts,
    looks_back=True,
    replay=lambda reuse, rows_per_prompt: Replay(per_prompt=rows_per_prompt, total=100_000) if reuse else None,
    start=lambda start: start,
    off_policy=lambda reuse: reuse > 0,
    check=_check_resample_until_correct,
)
def resample_until_correct(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    attempts: Sequence[str | None],
    below: float = 1.0,
    start: int = 0,
    keep: str = "last",
    asks: str | None = None,
    reuse: int = 0,
    rows_per_prompt: int = 16,
) -> Sequence[Request]:
    """Complete groups are resampled, attempt after attempt, until a member is right; the last or all attempts train.

    A group is unsolved while all its rewards are under ``below``. Each of ``attempts`` names the prompt template in
    which the unsolved groups are resampled and trained on; null is the unchanged prompt. ``keep`` selects the attempts
    of a group that train: its ``last`` one, or ``all``. Before the attempts, ``asks`` samples one further answer to
    each unsolved prompt in that prompt template, which later prompt templates may insert and which is not trained on.
    After them, up to ``reuse`` right answers of earlier steps join a group that is still unsolved; the memory stores
    ``rows_per_prompt`` rows per prompt for it. Before step ``start`` there are no further attempts.

    Units: below in those of the reward; start in steps; reuse and held in rows.   Raises: ConfigError for no attempts,
        another keep, or negative numbers.
    Source: a growing part of the solution, the last attempt trained: GHPO, arXiv:2507.10628, and its code
        (hkgc-1/GHPO, ``ghpo_trainer.py``); hints that the policy writes: SAGE, arXiv:2602.03143, and its code
        (BaohaoLiao/SAGE, ``hint_trainer.py``); further samples in stages and right answers of earlier steps: AR3PO,
        arXiv:2509.25808.
    """
    if not rounds:
        return setting.groups(0, setting.num_prompts)
    if setting.step < start:
        return ()
    size, prompts = setting.group_size, _unsolved(rounds, setting, below)
    if asks is not None and len(rounds) == 1:
        return tuple(Request(prompt=prompt, members=(size,), prompt_template=asks, trained=False) for prompt in prompts)
    done = len(rounds) - 1 - (asks is not None)
    if done < len(attempts):
        members = tuple(range(len(rounds) * size, (len(rounds) + 1) * size))
        return tuple(Request(prompt=prompt, members=members, prompt_template=attempts[done]) for prompt in prompts)
    return _right_before(prompts, setting, below, reuse, len(rounds) * size) if done == len(attempts) else ()


def _unsolved(rounds: Sequence[Round], setting: Setting, below: float) -> list[int]:
    """The prompts that failed at every attempt; samples only for the strategy are no attempt."""
    attempts = [round_ for round_ in rounds if bool(trained(round_).any())]
    return sorted(
        set(failed(rounds[0], setting, below)).difference(*(_solved(round_, below) for round_ in attempts[1:]))
    )


def _solved(round_: Round, below: float) -> set[int]:
    return set(round_.prompt_B[round_.valid_B & (round_.reward_B >= below)].tolist())


def _right_before(prompts: Sequence[int], setting: Setting, below: float, num: int, first: int) -> tuple[Request, ...]:
    """Right answers of earlier steps, to be read as members of groups that are unsolved."""
    replay_rows = {prompt: replayed(setting.memory, setting.key_of(prompt), num, "reward") for prompt in prompts}
    right = {prompt: [row for row in rows if row.reward >= below] for prompt, rows in replay_rows.items()}
    return tuple(
        Request(prompt=prompt, members=tuple(range(first, first + len(rows))), off_policy_rows=rows)
        for prompt, rows in right.items()
        if rows
    )


def _best_second(rounds: Sequence[Round], setting: Setting, *, keep: int | None) -> Sequence[Tensor]:
    """All drafts that train, and the second answers of the highest rewards; of equal ones the first."""
    if keep is None:
        return all_trained(rounds, setting)
    drafts, *others = (trained(round_) for round_ in rounds)
    if not others:
        return [drafts]
    second = rounds[1]
    reward_B = second.reward_B.where(second.valid_B, -torch.inf)
    keep_B = torch.zeros_like(second.valid_B)
    for prompt in second.prompt_B.unique():
        rows = (second.prompt_B == prompt).nonzero().flatten()
        keep_B[rows[reward_B[rows].argsort(descending=True, stable=True)[:keep]]] = True
    return [drafts, keep_B]


def _check_revise(drafts: int | None, members: int | None, keep: int | None) -> None:
    if any(number is not None and number < 1 for number in (drafts, members, keep)):
        raise ConfigError(f"revise needs drafts, members and keep of 1 or more, got {drafts}, {members} and {keep}")


@STRATEGIES.register
@strategy(
    keep=_best_second,
    looks_back=True,
    off_policy=lambda train_without_template: train_without_template,
    check=_check_revise,
)
def revise(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    prompt_template: str,
    drafts: int | None = None,
    members: int | None = None,
    train_drafts: bool = True,
    train_without_template: bool = False,
    keep: int | None = None,
    below: float | None = None,
) -> Sequence[Request]:
    """Answers are sampled twice: drafts for each prompt, then answers in a prompt template that may insert the drafts.

    ``drafts`` members first (null: the group size), trained on or not; then ``members`` more (null: as many) in
    ``prompt_template``, trained on with that prompt template or with the unchanged prompt. Of these, the ``keep`` of
    the highest rewards are left (null: all). If a draft's reward reaches ``below`` (null: never) they have the
    unchanged prompt.

    Units: members a group; below in those of the reward.   Raises: ConfigError for numbers that sample or keep nothing.
    Source: the best draft in the prompt of the second half: iGRPO, arXiv:2602.09000; a refinement of each draft, the
        best of
        which joins: Critique-GRPO, arXiv:2506.03106, and its code (zhangxy-2019/critique-GRPO,
        ``critique_vllm_rollout_spmd.py``); where no draft will do: RGR-GRPO, arXiv:2511.12344.
    """
    first, prompts = drafts or setting.group_size, range(setting.num_prompts)
    if not rounds:
        draft_members = tuple(range(first))
        return tuple(Request(prompt=prompt, members=draft_members, trained=train_drafts) for prompt in prompts)
    if len(rounds) > 1:
        return ()
    draft_members = tuple(range(first, first + (members or first)))
    revised_prompts = prompts if below is None else failed(rounds[0], setting, below)
    return tuple(
        Request(
            prompt=prompt,
            members=draft_members,
            prompt_template=prompt_template,
            train_without_template=train_without_template,
        )
        if prompt in revised_prompts
        else Request(prompt=prompt, members=draft_members)
        for prompt in prompts
    )
