"""Partial rollouts: long rows are sampled over several steps."""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy


def _check_partial_rollouts(window: int) -> None:
    if window < 1:
        raise ConfigError(f"partial_rollouts needs a window of at least 1 token, got {window}")


@STRATEGIES.register
@strategy(window=lambda window: window, check=_check_partial_rollouts)
def partial_rollouts(rounds: Sequence[Round], setting: Setting, *, window: int) -> Sequence[Request]:
    """A row gets at most ``window`` tokens a step; an unfinished one continues at the next step with the new weights.

    A step has the unfinished rows of the step before, and as many new groups as fit in ``prompts_per_step`` times
    ``group_size`` rows. The tokens of the step are trained on, with the log-probabilities of the weights that sampled
    them; those of earlier steps are not. An unfinished row has no reward; one as long as the length limit is truncated.

    Units: tokens; the window is below the length limit of a row.   Raises: ConfigError for a window without a token.
    Source: successive batching, T-PPO, arXiv:2506.15050; partial rollouts, Kimi k1.5, arXiv:2501.12599.
    Deviation: new prompts begin in complete groups, so that a step may have up to ``group_size`` - 1 rows less.
    """
    if rounds:
        return ()
    groups = [] if setting.memory.partial is None else setting.memory.partial.groups
    continued = [
        Request(prompt=number, members=tuple(row.member for row in rows), window=window, partial_rows=rows)
        for number, rows in enumerate(groups)
    ]
    free = setting.num_prompts * setting.group_size - sum(map(len, groups))
    members = tuple(range(setting.group_size))
    new = [
        Request(prompt=len(groups) + number, members=members, window=window)
        for number in range(max(free, 0) // setting.group_size)
    ]
    return [*continued, *new]
