"""EEPO (exploration-enhanced policy optimization), arXiv:2510.05837.

The second half of each group is sampled from weights that were moved away from the first half.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.forgetting import FORGETTING, Forgetting
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, Strategy


@STRATEGIES.register
def unlearn_between_halves(*, rate: float = 0.003, below: float = 0.3, limit: float = 1e-4) -> Strategy:
    """Half of each group; then the other half, by weights that have unlearned the first.

    The weights that sample the second half have taken one step of plain gradient descent at ``rate`` on -log(1 - p) of
    the first halves, where their mean entropy is under ``below``; the trained weights have not.

    Units: below is in nats, limit a probability.   Raises: ConfigError for a rate of 0 or less, or groups of 1.
    Source: EEPO, arXiv:2510.05837.
    """
    how = Forgetting(rate=rate, below=below, limit=limit)
    return Strategy(ask=_halves, looks_back=True, forgetting=how)


def _halves(rounds: Sequence[Round], setting: Setting) -> Sequence[Request]:
    if setting.group_size < 2:
        raise ConfigError("unlearn_between_halves samples groups in two halves: raise rollout.group_size to 2 or more")
    first, size = setting.group_size // 2, setting.group_size
    if len(rounds) > 1:
        return ()
    members, weights = (tuple(range(first, size)), FORGETTING) if rounds else (tuple(range(first)), None)
    return [Request(prompt=prompt, members=members, weights=weights) for prompt in range(setting.num_prompts)]
