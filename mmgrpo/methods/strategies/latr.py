"""LATR, arXiv:2510.24302.

The members of a group begin with different likely tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmgrpo.errors import ConfigError
from mmgrpo.maths.strategies import STRATEGIES, Request, Round, Setting, strategy
from mmgrpo.splits import Lookahead

SYMBOLS = "+-*/\\<>=()[]{}_^&%$0123456789"
"""Symbols and digits: a different one is a different calculation, however similar the texts are."""


def _search(
    max_tokens: int,
    min_probability: float,
    max_gap: float,
    ages: Sequence[int],
    min_distance: float,
    symbols: str,
    share: float,
) -> Lookahead:
    if not 0 <= share <= 1:
        raise ConfigError(f"the share of a group with a lookahead must be from 0 to 1, got {share}")
    return Lookahead(
        max_tokens=max_tokens,
        min_probability=min_probability,
        max_gap=max_gap,
        ages=tuple(ages),
        min_distance=min_distance,
        symbols=symbols,
    )


@STRATEGIES.register
@strategy(looks_ahead=True, check=_search)
def with_lookahead(
    rounds: Sequence[Round],
    setting: Setting,
    *,
    share: float = 1.0,
    max_tokens: int = 512,
    min_probability: float = 0.25,
    max_gap: float = 0.15,
    ages: Sequence[int] = (20, 30, 50),
    min_distance: float = 0.4,
    symbols: str = SYMBOLS,
) -> Sequence[Request]:
    """Groups whose members begin as a tree of likely tokens that stays different, and are then sampled.

    round(share G) of G members begin with a search of at most ``max_tokens`` tokens: it takes the likeliest tokens, and
    a further row branches with the second likeliest one where p_2 > min_probability and p_1 - p_2 < max_gap, until
    there are enough. A branch is dropped where, at one of its ages, its edit distance from the row that it left is less
    than min_distance per token, unless the token that it left is one of the symbols. All tokens are trained as sampled.

    Units: probabilities; ages and max_tokens in tokens, min_distance in edits per token.
    Raises: ConfigError for other shares, probabilities, ages or distances than there are.
    Source: LATR, arXiv:2510.24302, and its code (starreeze/latr, ``model/generation.py``).
    """
    if rounds:
        return ()
    lookahead = _search(max_tokens, min_probability, max_gap, ages, min_distance, symbols, share)
    members = tuple(range(setting.group_size))
    searched, sampled = members[: round(share * len(members))], members[round(share * len(members)) :]
    requests = []
    for prompt in range(setting.num_prompts):
        if searched:
            requests.append(Request(prompt=prompt, members=searched, lookahead=lookahead))
        if sampled:
            requests.append(Request(prompt=prompt, members=sampled))
    return requests
