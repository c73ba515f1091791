"""Drafts: rows of an earlier step that are kept as far as the policy of now would have written them.

Axes: T decisions of a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from mmgrpo.errors import ConfigError
from mmgrpo.maths.planners import Planner, Replay, Request, Round, Setting

if TYPE_CHECKING:
    from torch import Tensor


def accepted(logprob_T: Tensor, draft_logprob_T: Tensor, uniform_T: Tensor, *, lenience: float) -> int:
    """How many of the first decisions of a draft are kept: those before the first that is refused.

    A decision is kept where log u <= logprob - draft_logprob + lenience.

    Shapes: (T,) each -> 0 to T.   Units: nats; u in [0, 1).
    Source: SPEC-RL, arXiv:2509.23232, and its code (ShopeeLLM/Spec-RL, ``speculative_decoding.py``,
        spec_cut_with_knobs, whose bias is minus the lenience). Where speculative sampling, arXiv:2302.01318, draws a
        refused token from what is left of the policy, that code draws it from the policy.
    """
    refused_T = uniform_T.log() > logprob_T - draft_logprob_T + lenience
    return int((~refused_T).int().cumprod(0).sum())


def with_drafts(*, lenience: float = 0.0, per_prompt: int = 16, total: int = 100_000) -> Planner:
    """Groups whose members begin as the rows that were drawn of their prompt the last time, as far as these are kept.

    Of each the first decisions that ``accepted`` keeps; the row goes on from there, and one that is kept whole is the
    member. All its decisions are trained on as drawn now, with the log-probabilities of now. Where fewer rows than
    members are remembered, the rest are drawn as ever. Of each step every trained row is remembered, ``per_prompt`` of
    a prompt, ``total`` in all.

    Units: lenience in nats; rows.   Raises: ConfigError for a memory of nothing.
    Source: SPEC-RL, arXiv:2509.23232, and its code (ShopeeLLM/Spec-RL, ``ray_trainer.py``).
    """
    if min(per_prompt, total) < 1:
        raise ConfigError(f"with_drafts remembers a row or more, got per_prompt={per_prompt} and total={total}")
    return Planner(ask=partial(_ask, lenience=lenience), replay=Replay(per_prompt=per_prompt, total=total))


def _ask(rounds: Sequence[Round], setting: Setting, *, lenience: float) -> Sequence[Request]:
    if rounds:
        return ()
    asked = []
    for prompt in range(setting.num_prompts):
        held = setting.memory.replay.get(setting.key_of(prompt), ())
        drafts = [row for row in held if row.step == held[-1].step][: setting.group_size]
        members = tuple(range(setting.group_size))
        if drafts:
            drafted = members[: len(drafts)]
            asked.append(Request(prompt=prompt, members=drafted, given=drafts, lenience=lenience))
        if rest := members[len(drafts) :]:
            asked.append(Request(prompt=prompt, members=rest))
    return asked
