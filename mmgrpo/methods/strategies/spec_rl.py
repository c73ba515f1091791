"""SPEC-RL, arXiv:2509.23232.

Samples start from the accepted prefix of the prompt's previous samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Replay, Request, Round, Setting, strategy


def _check_with_drafts(per_prompt: int, total: int) -> None:
    if min(per_prompt, total) < 1:
        raise ConfigError(f"with_drafts remembers a row or more, got per_prompt={per_prompt} and total={total}")


@STRATEGIES.register
@strategy(replay=lambda per_prompt, total: Replay(per_prompt=per_prompt, total=total), check=_check_with_drafts)
def with_drafts(
    rounds: Sequence[Round], setting: Setting, *, lenience: float = 0.0, per_prompt: int = 16, total: int = 100_000
) -> Sequence[Request]:
    """Groups with members that begin with the accepted prefixes of the rows sampled at the prompt's last visit.

    Of each the first decisions that ``accepted`` keeps; the row continues from there, and one that is kept completely
    is the member. All its decisions are trained on as sampled now, with the log-probabilities of the current policy. If
    fewer rows than members are remembered, the rest are sampled from the prompt. Every trained row of a step is
    remembered, ``per_prompt`` of a prompt, ``total`` in all.

    Units: lenience in nats; rows.   Raises: ConfigError for a memory of nothing.
    Source: SPEC-RL, arXiv:2509.23232, and its code (ShopeeLLM/Spec-RL, ``ray_trainer.py``).
    """
    if rounds:
        return ()
    requests = []
    for prompt in range(setting.num_prompts):
        rows = setting.memory.replay.get(setting.key_of(prompt), ())
        drafts = [row for row in rows if row.step == rows[-1].step][: setting.group_size]
        members = tuple(range(setting.group_size))
        if drafts:
            drafted = members[: len(drafts)]
            requests.append(Request(prompt=prompt, members=drafted, off_policy_rows=drafts, lenience=lenience))
        if rest := members[len(drafts) :]:
            requests.append(Request(prompt=prompt, members=rest))
    return requests
