"""Rewards from pairwise comparisons of the members of a group."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Literal, final, get_args

from mmgrpo.errors import ConfigError
from mmgrpo.maths.seeds import derive_seed
from mmgrpo.reward import Reward
from mmgrpo.types import Prompt, Sample, Score

from ..parsing.inner_rewards import is_score, needed_values
from .grouping import groups
from .pairwise_comparisons import (
    Decide,
    Judge,
    Meeting,
    Pair,
    PairDecider,
    explained_score,
    meetings_by_row,
    missing_score,
    outcome,
)

Seeding = Literal["anchor", "random"]
Placing = Literal["points", "matches"]


@final
class PairwiseWinRate:
    """Reward: win rate of a sample against the other members of its group, by a pairwise judge or another reward.

    w = mean over the others of 1 for a win, 1/2 for a tie, 0 for a defeat; with ``soft`` the mean of the probabilities.
    All G (G - 1) / 2 pairs of a group are compared, with twice as many calls with ``swap``: the judge is called in both
    orders and the probabilities are averaged, so a position bias results in a tie. A pair without a result is excluded.
    A sample without a decided pair, such as a single member, gets None; NaN if the judge failed.

    The explanation has the wins, ties and defeats of the sample, with its opponents.

    Example: ``{name: pairwise_win_rate, of: pick_score}``.
    Settings: either ``judge``, a ``python:module:function`` of two samples that returns the probability that the first
    is better (or a bool, or None), or ``of``, another reward whose higher score wins; with ``temperature`` t > 0 the
    probability is logistic((a - b) / t). ``workers``: number of threads, for judges that wait for an endpoint.
    Range: 0 to 1; the mean over a group is 1/2.
    Source: Wang et al. 2025 (Pref-GRPO), arXiv:2508.20751; ties count half as in its code. Deviations: order swap; a
    pair without a result is excluded, where the code counts a tie.
    Traps: its mean is always 1/2, independent of the quality of the group: monitor a held-out score. With ``of`` and
    without ``soft`` the scale of the other reward is discarded, by design. The cost is quadratic in the group size.
    """

    def __init__(
        self,
        judge: Judge | None = None,
        of: Reward | None = None,
        swap: bool = True,
        soft: bool = False,
        temperature: float = 0.0,
        workers: int = 1,
    ) -> None:
        self.needs_values = needed_values(of)
        self.of = of
        self._duels = PairDecider(judge, of, swap, temperature, workers)
        self._soft = soft

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        pairs = [pair for rows in groups(samples).values() for pair in combinations(rows, 2)]
        meetings = meetings_by_row(len(samples), pairs, self._duels.between(samples)(pairs))
        return [
            explained_score(win_rate(sample_meetings, soft=self._soft), sample_meetings, samples)
            for sample_meetings in meetings
        ]


@final
class Tournament:
    """Reward: rank in a knock-out tournament within the group: first 1, last 0, evenly spaced.

    First every member is compared with a random anchor, chosen by ``seed``, and seeded by the outcome, so that strong
    members meet late; ``seeding: random`` skips this round and randomizes the bracket. The winner of a match advances,
    at a tie the better seed. Losers of the same round are ranked by their mean points over their matches, ties sharing
    their mean rank, or with ``placing: matches`` by separate tournaments. With an anchor and placing by points a group
    of G takes at most 2 (G - 1) comparisons instead of G (G - 1) / 2; no pair is compared twice. A single member, or a
    sample without a decided match, gets None; NaN if the judge failed.

    The explanation has the rank, points and matches of the sample, in order.

    Example: ``{name: tournament, of: pick_score}``.
    Settings: ``judge``, ``of``, ``swap``, ``temperature`` and ``workers`` as in ``pairwise_win_rate``. Random choices
    depend only on ``seed``, the text of the prompt and the member indices.
    Range: 0 to 1; the mean over a group is 1/2.
    Source: Zhang et al. 2026 (ArenaRL), arXiv:2601.06487, seeded single elimination and its code; the reward is 1 -
    rank / (G - 1), which its advantages standardize. Deviations: the anchor is a random member, where the code takes
    the first and the paper a greedy sample; it is seeded with 1/2, not by its mean against the others; the best seeds
    get the byes; tied losers share their ranks; a pair is neither compared nor counted twice.
    Traps: even with a noiseless judge only the first rank is exact; a strong member that meets the strongest early is
    ranked low. For groups up to about 6 ``pairwise_win_rate`` costs little more and is exact.
    """

    def __init__(
        self,
        judge: Judge | None = None,
        of: Reward | None = None,
        swap: bool = True,
        temperature: float = 0.0,
        workers: int = 1,
        seeding: Seeding = "anchor",
        placing: Placing = "points",
        seed: int = 0,
    ) -> None:
        if seeding not in get_args(Seeding) or placing not in get_args(Placing):
            raise ConfigError(
                f"Tournament.seeding must be anchor or random and placing points or matches, got {seeding}, {placing}"
            )
        self.needs_values = needed_values(of)
        self.of = of
        self._duels = PairDecider(judge, of, swap, temperature, workers)
        self._seeding: Seeding = seeding
        self._placing: Placing = placing
        self._seed = seed

    def __call__(self, samples: Sequence[Sample]) -> list[Score | None]:
        decide = self._duels.between(samples)
        scores: list[Score | None] = [None] * len(samples)
        for rows in groups(samples).values():
            matches = Matches(decide)
            draw = self._draw(samples[rows[0]].prompt).sample(rows, len(rows))
            seeded = seeded_by_anchor(draw, matches) if self._seeding == "anchor" else draw
            for row, rank in shared_places(knock_out(seeded, matches, self._placing)).items():
                meetings, points = matches.of(row), matches.points(row)
                value = missing_score(meetings) if points is None else 1 - rank / (len(rows) - 1)
                scores[row] = explained_score(value, meetings, samples, place=rank + 1, points=points)
        return scores

    def _draw(self, prompt: Prompt) -> random.Random:
        text = hashlib.blake2b(prompt.text.encode("utf-8", "surrogatepass"), digest_size=7).digest()
        return random.Random(derive_seed(self._seed, int.from_bytes(text, "little")))


def win_rate(meetings: Sequence[Meeting], *, soft: bool = False) -> float | None:
    """Mean outcome of the comparisons of a sample.

    Args:
        meetings: opponents, with the probability that the sample is better.
        soft: use the probabilities instead of wins, ties and defeats.

    Returns:
        The mean over decided comparisons; None without any, NaN if the judge failed.
    """
    decided = [preference if soft else outcome(preference) for _, preference in meetings if is_score(preference)]
    return sum(decided) / len(decided) if decided else missing_score(meetings)


@final
class Matches:
    """The matches of one tournament; each pair is decided once."""

    def __init__(self, decide: Decide) -> None:
        self._decide = decide
        self._decided: dict[Pair, float | None] = {}

    def play(self, pairs: Sequence[Pair]) -> list[float | None]:
        """Probabilities that the first of each pair is better."""
        new = [(a, b) for a, b in pairs if (a, b) not in self._decided and (b, a) not in self._decided]
        self._decided.update(zip(new, self._decide(new), strict=True))
        return [self._preference_of(a, (a, b) if (a, b) in self._decided else (b, a)) for a, b in pairs]

    def of(self, row: int) -> list[Meeting]:
        """The opponents of a row with outcomes, in order."""
        return [(pair[pair[0] == row], self._preference_of(row, pair)) for pair in self._decided if row in pair]

    def points(self, row: int) -> float | None:
        """Mean over the row's decided matches; None without one."""
        mean = win_rate(self.of(row), soft=True)
        return mean if is_score(mean) else None

    def _preference_of(self, row: int, pair: Pair) -> float | None:
        value = self._decided[pair]
        return value if row == pair[0] or not is_score(value) else 1 - value


def seeded_by_anchor(draw: Sequence[int], matches: Matches) -> list[int]:
    """The rows sorted by their result against the first one, best first; ties keep the order of the draw."""
    played = matches.play([(row, draw[0]) for row in draw[1:]])
    preference = {row: value for row, value in zip(draw[1:], played, strict=True) if is_score(value)}
    return sorted(draw, key=lambda row: -preference.get(row, 0.5))


def knock_out(seeded: Sequence[int], matches: Matches, placing: Placing = "points") -> list[list[int]]:
    """Ranking of a knock-out tournament, best first; tied rows are grouped.

    Args:
        seeded: the rows, best seed first.
        matches: plays them.
        placing: how losers of the same round are ranked.

    Returns:
        Every row once.
    """
    seed = {row: rank for rank, row in enumerate(seeded)}
    slots = [seeded[rank] if rank < len(seeded) else None for rank in bracket(len(seeded))]
    out: list[list[int]] = []
    while len(slots) > 1:
        pairings = list(zip(slots[::2], slots[1::2], strict=True))
        played = [(a, b) for a, b in pairings if a is not None and b is not None]
        won = {pair: _winner(pair, value, seed) for pair, value in zip(played, matches.play(played), strict=True)}
        slots = [won[a, b] if a is not None and b is not None else a if b is None else b for a, b in pairings]
        out.append(sorted((a if won[a, b] == b else b for a, b in played), key=seed.__getitem__))
    places = [[row] for row in slots if row is not None]
    for losers in reversed([losers for losers in out if losers]):
        if placing == "matches" and len(losers) > 1:
            places += knock_out(losers, matches, placing)
        else:
            places += tied(losers, lambda row: matches.points(row) or 0.0)
    return places


def bracket(num: int) -> list[int]:
    """Seeds by position in a bracket of the next power of two, so that the best two can only meet in the final."""
    order = [0]
    while len(order) < num:
        order = [seed for best in order for seed in (best, 2 * len(order) - 1 - best)]
    return order


def tied(rows: Sequence[int], key: Callable[[int], float]) -> list[list[int]]:
    """The rows grouped by a key, highest first."""
    return [[row for row in rows if key(row) == value] for value in sorted({key(row) for row in rows}, reverse=True)]


def shared_places(places: Sequence[Sequence[int]]) -> Mapping[int, float]:
    """Rank of each row, from 0; tied rows share their mean rank."""
    before = [sum(map(len, places[:index])) for index in range(len(places))]
    return {row: first + (len(rows) - 1) / 2 for first, rows in zip(before, places, strict=True) for row in rows}


def _winner(pair: Pair, preference: float | None, seed: Mapping[int, int]) -> int:
    if is_score(preference) and preference != 0.5:
        return pair[preference < 0.5]
    return min(pair, key=seed.__getitem__)
